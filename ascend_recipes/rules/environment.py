"""Rules about what variables say: values that stop a start, that do nothing, or that lose.

Whether anybody reads a name at all is judged in `rules.surface`.
"""

from collections.abc import Iterator

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.planning.environment import NATIVE_VARIABLES
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules import options
from ascend_recipes.rules.holding import holds

_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"
"""The list of devices that torch_npu and the engine read (cpu_binding.py:20, utils.py:541)."""

_OTHER_LISTS = ("ASCEND_VISIBLE_DEVICES", "NPU_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")

_OTHER_VENDOR = {
    "CUDA_LAUNCH_BLOCKING": "ASCEND_LAUNCH_BLOCKING",
    "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_NPU_ALLOC_CONF",
    "NCCL_SOCKET_IFNAME": "HCCL_SOCKET_IFNAME",
    "NCCL_BUFFSIZE": "HCCL_BUFFSIZE",
    "NCCL_TIMEOUT": "HCCL_EXEC_TIMEOUT",
}
"""Variable of another vendor's stack -> what says the same on NPUs."""

_OTHER_PREFIXES = ("NCCL_", "CUDA_", "CUBLAS_", "CUDNN_")

_RANGES: dict[str, tuple[int, int | None]] = {
    "VLLM_ASCEND_ENABLE_FUSED_MC2": (0, 1),
    "VLLM_ASCEND_ENABLE_NZ": (0, 2),
    "VLLM_ASCEND_ENABLE_MLAPO": (0, 1),
    "VLLM_ASCEND_BALANCE_SCHEDULING": (0, 1),
    "VLLM_ASCEND_FUSION_OP_TRANSPOSE_KV_CACHE_BY_BLOCK": (0, 1),
    "MSMONITOR_USE_DAEMON": (0, 1),
    "HCCL_BUFFSIZE": (1, None),
    "HCCL_CONNECT_TIMEOUT": (120, 7200),
}
"""Variables that are read with `int()`, or by HCCL as a number: least and largest value."""

_TRUTH = {"true": 1, "on": 1, "yes": 1, "false": 0, "off": 0, "no": 0}

_KEY_OF = {
    "VLLM_ASCEND_ENABLE_FUSED_MC2": "enable_fused_mc2",
    "VLLM_ASCEND_ENABLE_NZ": "weight_nz_mode",
    "VLLM_ASCEND_ENABLE_MLAPO": "enable_mlapo",
    "VLLM_ASCEND_BALANCE_SCHEDULING": "enable_balance_scheduling",
    "VLLM_ASCEND_FUSION_OP_TRANSPOSE_KV_CACHE_BY_BLOCK": "enable_transpose_kv_cache_by_block",
}
"""Variable -> key of `--additional-config` that wins over it (ascend_config.py:360-372)."""

_STEP_TIMEOUT = 1836
"""Seconds after which HCCL itself gives up (platform.py:740)."""


@holds("native")
def variables_are_not_the_runtimes(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """What the native runtime sets by itself is not set otherwise by a recipe."""
    for name, value in resolved.recipe.env.items():
        planned, _ = NATIVE_VARIABLES.get(name, (str(value), ""))
        if str(value) != planned:
            at = f"env.{name}"
            yield finding(
                "env.runtime_sets",
                at=at,
                fix=options.removed(at),
                name=name,
                value=value,
                planned=planned,
            )


def devices_are_chosen(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Devices are chosen by one variable; its relatives belong to containers and other vendors."""
    for name in _OTHER_LISTS:
        given = options.variable(resolved, name)
        if given is not None:
            ids = str(given.value).replace(" ", "").strip(",").split(",")
            numbers = ids if all(item.isdigit() for item in ids) else []
            chosen = f" site.device_ids=[{','.join(numbers)}]" if numbers else ""
            yield finding(
                "env.visible",
                at=given.at,
                fix=options.removed(given.at) + chosen,
                name=name,
                wanted=_DEVICES,
            )
    given = options.variable(resolved, _DEVICES)
    recipe = resolved.recipe
    if given is None or "serve" not in recipe.roles:
        return
    seen = len([item for item in str(given.value).split(",") if item.strip()])
    needed = -(-recipe.parallel.world_size // recipe.nodes)
    if seen < needed:
        yield finding(
            "env.visible_few", at=given.at, fix=options.removed(given.at), seen=seen, needed=needed
        )


def variables_are_of_the_vendor(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Variables of CUDA and NCCL do nothing on NPUs."""
    for name, value in resolved.recipe.env.items():
        if name in _OTHER_LISTS or not (name in _OTHER_VENDOR or name.startswith(_OTHER_PREFIXES)):
            continue
        instead = _OTHER_VENDOR.get(name)
        more = f" env.{instead}={value}" if instead else ""
        plain = more if value.replace("_", "").isalnum() else ""
        yield finding(
            "env.other_vendor",
            at=f"env.{name}",
            fix=options.removed(f"env.{name}") + plain,
            name=name,
            instead=instead or "-",
        )


@holds("vllm_ascend")
def numbers_are_numbers(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A variable that is read as a number holds one, in its range."""
    for name, (least, most) in _RANGES.items():
        value = resolved.recipe.env.get(name)
        if value is None or _inside(value, least, most):
            continue
        number = _TRUTH.get(value.lower())
        nearest = _nearest(value, least, most) if number is None else max(number, least)
        at = f"env.{name}"
        yield finding(
            "env.number",
            at=at,
            fix=options.removed(at) if nearest is None else f"{at}={nearest}",
            name=name,
            value=value,
            least=least,
            most="-" if most is None else most,
        )


def _inside(value: str, least: int, most: int | None) -> bool:
    if not value.isascii() or not value.lstrip("-").isdigit():
        return False
    return least <= int(value) and (most is None or int(value) <= most)


def _nearest(value: str, least: int, most: int | None) -> int | None:
    if not value.lstrip("-").isdigit():
        return None
    return max(least, int(value)) if most is None else min(max(least, int(value)), most)


@holds("vllm_ascend")
def keys_win_over_variables(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Where a key and its variable disagree, the key wins."""
    moe, scheduler = resolved.recipe.moe, resolved.recipe.scheduler
    fields = {
        "enable_fused_mc2": options.field(moe.fused_communication, "moe.fused_communication"),
        "enable_balance_scheduling": options.field(scheduler.balance, "scheduler.balance"),
    }
    for name, key in _KEY_OF.items():
        given = options.variable(resolved, name)
        winner = fields.get(key) or options.scheduler_key(resolved, key)
        winner = winner or options.key(resolved, key)
        if given is None or winner is None or _number(given) == _number(winner):
            continue
        yield finding(
            "env.overruled",
            at=given.at,
            fix=options.removed(given.at),
            name=name,
            value=given.value,
            winner=winner.at,
        )


def _number(setting: options.Setting) -> object:
    text = str(setting.value).strip().lower()
    return _TRUTH.get(text, int(text) if text.lstrip("-").isdigit() else text)


@holds("vllm_ascend")
def steps_may_take_their_time(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """A step must outlive HCCL's own limit; shorter limits are raised."""
    given = options.variable(resolved, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS")
    if given is not None and str(given.value).isdigit() and int(str(given.value)) < _STEP_TIMEOUT:
        yield finding(
            "env.step_timeout",
            at=given.at,
            fix=f"{given.at}=3000",
            value=given.value,
            least=_STEP_TIMEOUT,
        )


@holds("vllm_ascend")
def variables_fit_generation(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """Variables whose feature exists on some generations only."""
    hardware = resolved.recipe.hardware
    fabric = options.switched_on(options.variable(resolved, "ASCEND_ENABLE_USE_FABRIC_MEM"))
    if fabric is not None and hardware != "a3":
        yield finding(
            "env.fabric_hardware", at=fabric.at, fix=options.off(fabric), hardware=hardware
        )
    invariant = options.switched_on(options.variable(resolved, "VLLM_BATCH_INVARIANT"))
    if invariant is not None and hardware in ("a5", "310p"):
        yield finding(
            "env.batch_invariant", at=invariant.at, fix=options.off(invariant), hardware=hardware
        )


@holds("vllm_ascend")
def second_runner_takes_it(resolved: ResolvedRecipe) -> Iterator[Finding]:
    """The second model runner splits no contexts."""
    dcp = resolved.recipe.parallel.dcp
    if options.second_runner(resolved) and dcp > 1:
        at = "env.VLLM_USE_V2_MODEL_RUNNER"
        yield finding("env.second_runner", at=at, fix=f"{at}=0", dcp=dcp)
