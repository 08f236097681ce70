"""Resolve: turn the names of a recipe into registry rows and check needs against offers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ascend_recipes.errors import Finding, RecipeError, Severity, Source
from ascend_recipes.findings import finding
from ascend_recipes.patching.select import PlanFacts, needed_patches
from ascend_recipes.registry.load import Registry
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.drafter import NoDrafterSpec
from ascend_recipes.schema.hook import HookKind
from ascend_recipes.schema.operation import Binding, OperationContract
from ascend_recipes.schema.recipe import Because, Recipe
from ascend_recipes.schema.roles import role_recipe
from ascend_recipes.schema.rows import (
    BackendRow,
    CheckpointFacts,
    DrafterFacts,
    HardwareRow,
    ModelRow,
    QuantizationRow,
    RuntimeRow,
)
from ascend_recipes.schema.serving import RoleName

SourceOf = Callable[[str], Source | None]
"""Where the value at a dotted recipe path was set."""

_PROVIDER_ORDER = ("torch_npu", "cann_custom", "triton", "torch")


@dataclass(frozen=True, kw_only=True)
class ResolvedRecipe:
    """A recipe whose names are replaced by rows."""

    recipe: Recipe
    registry: Registry
    source_of: SourceOf
    model: ModelRow
    hardware: HardwareRow
    runtime: RuntimeRow
    runtime_version: str
    checkpoint: CheckpointFacts
    quantization: QuantizationRow
    drafter: DrafterFacts | None
    config: Mapping[str, Json]
    """Language-model configuration that will run: the published one, or the tiny one."""
    tiny_fields: tuple[str, ...]
    """Configuration fields that the tiny model changes; empty at real scale."""
    traits: frozenset[str]
    backends: Mapping[str, str]
    """Layer kind -> row in `registry/backends`."""
    hooks: tuple[str, ...]
    platform: str
    bindings: Mapping[str, Binding]
    """Operation -> how it is performed."""
    patches: Mapping[str, str]
    """Row in `registry/patches` -> what of this deployment needs it."""
    findings: tuple[Finding, ...] = field(default=())
    """Warnings and remarks; errors are raised."""

    @property
    def published_config(self) -> dict[str, Json]:
        """Language-model configuration of the full model in the chosen weights."""
        return {**self.model.config, **self.checkpoint.config}


def resolve_recipe(
    recipe: Recipe, registry: Registry, source_of: SourceOf = lambda _: None
) -> ResolvedRecipe:
    """Look up every name, then run the rules over the result.

    Raises:
        RecipeError: unknown names (exit code 2), or all errors that the rules find (3).
    """
    resolved = look_up(recipe, registry, source_of)
    findings = tuple(
        item if item.source else replace(item, source=source_of(item.at))
        for item in _excuse(tuple(_findings(resolved)), recipe)
    )
    errors = tuple(item for item in findings if item.severity is Severity.ERROR)
    if errors:
        rest = tuple(item for item in findings if item not in errors)
        raise RecipeError(errors + rest, complete=True)
    return replace(resolved, findings=findings)


def _findings(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """What the rules say, about every role where prefill and decode are apart."""
    from ascend_recipes.rules import check_pair, check_rules

    recipe = resolved.recipe
    if "serve" in recipe.roles:
        yield from check_rules(resolved)
        return
    views = role_views(resolved)
    found = {role: tuple(check_rules(view)) for role, view in views.items()}
    everywhere = [
        item
        for item in found["prefill"]
        if item in found["decode"] and not any(_overrides(recipe, role, item.at) for role in views)
    ]
    yield from (_in_all_roles(item, recipe) for item in everywhere)
    for role in sorted(views):
        for item in found[role]:
            if item not in everywhere:
                yield _in_role(item, role, recipe)
    yield from check_pair(views["prefill"], views["decode"])


def role_views(resolved: ResolvedRecipe) -> dict[RoleName, ResolvedRecipe]:
    """The deployment as each of its roles sees it, with the role's overrides merged."""
    recipe = resolved.recipe
    return {
        role: look_up(role_recipe(recipe, role), resolved.registry, resolved.source_of)
        for role in recipe.roles
    }


def _overrides(recipe: Recipe, role: RoleName, path: str) -> bool:
    section, _, name = path.partition(".")
    spec = recipe.roles[role]
    return name in (spec.env if section == "env" else spec.sections.get(section, {}))


def _in_all_roles(item: Finding, recipe: Recipe) -> Finding:
    """Every role has its own number of nodes."""
    words = [
        word
        if not word.startswith("nodes=")
        else " ".join(f"roles.{r}.{word}" for r in recipe.roles)
        for word in item.fix.split(" ")
    ]
    return replace(item, fix=" ".join(words))


def _in_role(item: Finding, role: RoleName, recipe: Recipe) -> Finding:
    """Say which role is meant; change the role alone, whoever set the value."""
    at = f"roles.{role}.{item.at}" if _overrides(recipe, role, item.at) else item.at
    fix, fix_zh = (
        " ".join(_role_word(word, role, recipe) for word in text.split(" "))
        for text in (item.fix, item.fix_zh)
    )
    return replace(
        item,
        at=at,
        fix=fix,
        fix_zh=fix_zh,
        message=f"{role}: {item.message}",
        message_zh=item.message_zh and f"{role}：{item.message_zh}",
    )


def _role_word(word: str, role: RoleName, recipe: Recipe) -> str:
    """An override of the recipe as an override of one role, where roles have the field."""
    if word.startswith("~"):
        return f"~roles.{role}.{word[1:]}" if _overrides(recipe, role, word[1:]) else word
    section, dot, _ = word.partition("=")[0].partition(".")
    own = dot and (section in recipe.roles[role].sections or section == "env")
    return f"roles.{role}.{word}" if own or word.startswith("nodes=") else word


def _excuse(findings: tuple[Finding, ...], recipe: Recipe) -> tuple[Finding, ...]:
    """Drop the warnings that the recipe gives a reason for; an idle reason is an error itself."""
    reasons = tuple(item for item in recipe.because if item.runtime in (None, recipe.runtime.kind))
    excused = {item.finding for item in reasons}
    kept = tuple(
        item for item in findings if item.id not in excused or item.severity is Severity.ERROR
    )
    idle = () if recipe.changed else tuple(_idle_reasons(findings, reasons))
    return kept + idle


def _idle_reasons(findings: tuple[Finding, ...], reasons: tuple[Because, ...]) -> Iterator[Finding]:
    for item in reasons:
        severities = {found.severity for found in findings if found.id == item.finding}
        if Severity.ERROR in severities:
            yield finding("because.error", at="because", finding=item.finding)
        elif not severities:
            yield finding("because.unused", at="because", finding=item.finding)


def look_up(recipe: Recipe, registry: Registry, source_of: SourceOf) -> ResolvedRecipe:
    """Replace names by rows, without asking any rule.

    Raises:
        RecipeError: a checkpoint or drafter that the model does not have.
    """
    model = registry.models[recipe.model]
    hardware = registry.hardware[recipe.hardware]
    runtime = registry.runtimes[recipe.runtime.kind]
    checkpoint = _checkpoint(recipe, model, registry)
    published = {**model.config, **checkpoint.config}
    config, tiny_fields = _effective_config(recipe, model, published)
    drafter = _drafter(recipe, model)
    traits = _traits(recipe, model, config)
    if registry.quantization[checkpoint.format].native:
        traits |= {f"method_{registry.quantization[checkpoint.format].method}"}
    backends = _backends(recipe, model, registry)
    hooks = _hooks(registry, traits, model)
    called = called_operations(registry, backends, hooks, traits, checkpoint)
    platform = next((key for key in hooks if registry.hooks[key].kind is HookKind.PLATFORM), "none")
    return ResolvedRecipe(
        recipe=recipe,
        registry=registry,
        source_of=source_of,
        model=model,
        hardware=hardware,
        runtime=runtime,
        runtime_version=recipe.runtime.version or runtime.versions[-1],
        checkpoint=checkpoint,
        quantization=registry.quantization[checkpoint.format],
        drafter=drafter,
        config=config,
        tiny_fields=tiny_fields,
        traits=traits,
        backends=backends,
        hooks=tuple(key for key in hooks if key != platform),
        platform=platform,
        bindings=dict(_bindings(recipe, registry, called, traits)),
        patches=_patches(recipe, registry, backends, traits),
    )


def _checkpoint(recipe: Recipe, model: ModelRow, registry: Registry) -> CheckpointFacts:
    variant = recipe.checkpoint.variant
    if variant not in model.checkpoints:
        unknown = finding(
            "checkpoint.unknown_variant",
            at="checkpoint.variant",
            fix=f"checkpoint.variant={_likeliest(recipe, model, registry)}",
            model=recipe.model,
            variant=variant,
            options=sorted(model.checkpoints),
        )
        raise RecipeError((unknown,))
    return model.checkpoints[variant]


def _likeliest(recipe: Recipe, model: ModelRow, registry: Registry) -> str:
    """The variant in the recipe's format, else the smallest weights that the hardware runs."""
    quant = "bf16" if recipe.quant.kind == "none" else recipe.quant.kind
    formats = {key: facts.format for key, facts in model.checkpoints.items()}

    def rank(key: str) -> tuple[bool, bool, float]:
        row = registry.quantization[formats[key]]
        return formats[key] != quant, recipe.hardware not in row.hardware, row.weight_bits

    return min(formats, key=rank)


def _drafter(recipe: Recipe, model: ModelRow) -> DrafterFacts | None:
    if isinstance(recipe.drafter, NoDrafterSpec):
        return None
    kind = recipe.drafter.kind
    if kind not in model.drafters:
        unknown = finding(
            "drafter.not_offered",
            at="drafter.kind",
            fix=f"drafter={next(iter(sorted(model.drafters)), 'none')}",
            model=recipe.model,
            kind=kind,
            options=sorted(model.drafters) or "none",
        )
        raise RecipeError((unknown,))
    return model.drafters[kind]


def _effective_config(
    recipe: Recipe, model: ModelRow, published: Mapping[str, Json]
) -> tuple[Mapping[str, Json], tuple[str, ...]]:
    if recipe.scale.kind == "real":
        return published, ()
    from ascend_recipes.tiny import tiny_family

    values = tiny_family(model.family).tiny_values(published)
    return {**published, **values}, tuple(values)


def _traits(recipe: Recipe, model: ModelRow, config: Mapping[str, Json]) -> frozenset[str]:
    """Properties that hooks, bindings and rules ask for by name."""
    traits = set(model.traits)
    cache = recipe.cache
    if cache.kind == "hybrid" and "recurrent_state" in traits:
        traits.add("state_cache")
        traits.add(f"state_{state_dtype(recipe, config)}")
        if cache.prefix_caching and cache.state_mode == "align":
            traits.add("prefix_align")
    if not isinstance(recipe.drafter, NoDrafterSpec):
        traits |= {"drafter", f"{recipe.drafter.kind}_drafter"}
    return frozenset(traits)


def state_dtype(recipe: Recipe, config: Mapping[str, Json]) -> str:
    """Element type of recurrent states: the recipe's, or the model's own setting."""
    chosen = recipe.cache.state_dtype if recipe.cache.kind == "hybrid" else "model_config"
    if chosen != "model_config":
        return chosen
    default = "float32" if "linear_attn_config" in config else recipe.checkpoint.dtype
    return str(config.get("mamba_ssm_dtype", default))


def _backends(recipe: Recipe, model: ModelRow, registry: Registry) -> dict[str, str]:
    """Backend of every layer kind; kinds without one are left out for the rules to report."""
    chosen = {}
    for layer in model.layers:
        for key in registry.backends:
            if serves(registry.backends[key], layer.kind, recipe):
                chosen[layer.kind] = key
                break
    return chosen


def serves(row: BackendRow, layer_kind: str, recipe: Recipe) -> bool:
    """Whether a backend is the one for a layer kind under the recipe's choices."""
    return (
        layer_kind in row.layer_kinds
        and recipe.attention.kind in row.attention_kinds
        and recipe.hardware in row.hardware
    )


def _hooks(registry: Registry, traits: frozenset[str], model: ModelRow) -> tuple[str, ...]:
    general = [key for key in registry.hooks if traits.issuperset(registry.hooks[key].needs)]
    return tuple(sorted({*general, *model.model_hooks}))


def _patches(
    recipe: Recipe, registry: Registry, backends: Mapping[str, str], traits: frozenset[str]
) -> dict[str, str]:
    facts = PlanFacts(
        traits=traits,
        backends=frozenset(backends.values()),
        hardware=recipe.hardware,
        drafter=recipe.drafter.kind,
        roles=frozenset(recipe.roles),
    )
    return needed_patches(registry.patches, facts)


def called_operations(
    registry: Registry,
    backends: Mapping[str, str],
    hooks: tuple[str, ...],
    traits: frozenset[str],
    checkpoint: CheckpointFacts,
) -> frozenset[str]:
    """Operations that hooks, backends and the weight format call."""
    quantization = registry.quantization[checkpoint.format]
    called = set(quantization.operations)
    called.update(name for key in hooks for name in registry.hooks[key].operations)
    called.update(
        name for key in set(backends.values()) for name in registry.backends[key].operations
    )
    if "moe" in traits:
        called.update(quantization.expert_operations)
    return frozenset(quantization.replaces.get(name, name) for name in called)


def _bindings(
    recipe: Recipe, registry: Registry, called: frozenset[str], traits: frozenset[str]
) -> Iterator[tuple[str, Binding]]:
    """One binding an operation: the first provider in the order of preference that fits."""
    for name in sorted(called):
        only = ("torch",) if name in recipe.allow_reference else _PROVIDER_ORDER
        chosen = choose_binding(registry.operations[name], recipe.hardware, traits, only)
        if chosen is not None:
            yield name, chosen


def choose_binding(
    contract: OperationContract,
    hardware: str,
    traits: frozenset[str],
    providers: Sequence[str] = _PROVIDER_ORDER,
) -> Binding | None:
    """The binding of the first of `providers` that serves the hardware under these traits."""
    fitting = [
        binding
        for binding in contract.bindings
        if binding.provider in providers
        and hardware in binding.hardware
        and traits.issuperset(binding.needs)
    ]
    return min(fitting, key=lambda item: providers.index(item.provider), default=None)


def binding_name(binding: Binding) -> str:
    """Name in the plan: provider and the symbol without its namespace."""
    return f"{binding.provider}.{binding.symbol.rpartition('::')[2]}"
