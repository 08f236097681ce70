"""Weights of one device: parameters by component, their format, and how they are divided."""

from collections import Counter
from collections.abc import Mapping
from typing import Literal, NamedTuple

from ascend_recipes.memory.headers import CheckpointSizes, component_of
from ascend_recipes.memory.pages import ITEM_BYTES
from ascend_recipes.memory.parameters import (
    Part,
    Sizes,
    drafter_parts,
    expert_count,
    model_parts,
)
from ascend_recipes.memory.views import RoleView

_MICROSCALED = 1 / 32
"""Bytes of scales per element: one exponent for 32 elements."""

_BYTES = {
    # Bytes of a parameter in (linear layers, routed experts); the rest stays in the model's dtype.
    "w8a8": (1.0, 1.0),
    "w4a8": (1.0, 0.5),
    "fp8_block": (1 + 4 / 128**2, 1 + 4 / 128**2),
    "fp8_fp4": (1.0, 0.5 + _MICROSCALED),
    "w8a8_mxfp8": (1 + _MICROSCALED, 1 + _MICROSCALED),
    "w4a8_mxfp4": (2.0, 0.5 + _MICROSCALED),
    "w4a4_mxfp4": (1 + _MICROSCALED, 0.5 + _MICROSCALED),
}
"""Formats by their registry row. Scales per output channel (0.1 % and less) are left out. Of
w4a4_mxfp4 nobody has published which layers keep 8 bits; experts are counted with 4, linears 8."""

WeightSource = Literal["safetensors headers", "architecture"]


class WeightPlan(NamedTuple):
    """Weights of one device and of the whole checkpoint, in bytes."""

    source: WeightSource
    components: Mapping[str, int]
    """Bytes of one device by component."""
    checkpoint_bytes: int
    """Bytes of all components that are counted, before they are divided over devices."""
    parameters: int
    notes: tuple[str, ...] = ()

    @property
    def device_bytes(self) -> int:
        """Bytes of one device."""
        return sum(self.components.values())


def counted_parts(view: RoleView) -> tuple[Part, ...]:
    """Parameters of model and drafter."""
    parts = model_parts(view.config, view.layers)
    drafter = view.drafter
    if drafter and drafter.layers and drafter.layer_kind and view.drafter_inside:
        parts += drafter_parts(view.config, drafter.layer_kind, drafter.layers)
    return parts


def part_bytes(part: Part, format: str, dtype: str) -> float:
    """Bytes of a part in a format."""
    if part.precision in ("float32", "int32"):
        return part.parameters * 4.0
    plain = ITEM_BYTES[dtype]
    linear, expert = _BYTES.get(format, (plain, plain))
    width = {"linear": linear, "expert": expert, "float": plain}[part.precision]
    return part.parameters * width


def plan_weights(view: RoleView, files: CheckpointSizes | None = None) -> WeightPlan:
    """Weights of one device of a role.

    Args:
        view: the role.
        files: sizes of the checkpoint's tensors, where it is present. Then the bytes are theirs,
            and the architecture only says how they divide.
    """
    dtype = view.recipe.checkpoint.dtype
    parts = counted_parts(view)
    stored = "bf16" if view.recipe.scale.kind == "tiny" else view.format
    whole: Counter[str] = Counter()
    device: Counter[str] = Counter()
    for part in parts:
        size = part_bytes(part, stored, dtype)
        whole[part.component] += round(size)
        device[part.component] += round(size / _ways(part, view))
    notes = _notes(view)
    source: WeightSource = "architecture"
    if files is not None:
        source = "safetensors headers"
        whole, device = _from_files(whole, device, files, view)
    elif (tower := _tower_bytes(view, whole)) is not None:
        whole["vision tower"] = tower
        device["vision tower"] = tower if _copies_tower(view) else tower // view.recipe.parallel.tp
    return WeightPlan(
        source=source,
        components=dict(device),
        checkpoint_bytes=sum(whole.values()),
        parameters=sum(part.parameters for part in parts),
        notes=notes,
    )


def _ways(part: Part, view: RoleView) -> float:
    """Over how many devices a part is divided; pipeline stages hold their layers."""
    recipe = view.recipe
    parallel, moe = recipe.parallel, recipe.moe
    ways = {"tp": parallel.tp, "none": 1, "shared": 1 if moe.shared_expert == "dp" else parallel.tp}
    divided: float = ways.get(part.split, parallel.tp)
    if part.split == "ep" and parallel.ep:
        experts = expert_count(Sizes(view.config))
        divided = parallel.tp * parallel.dp * experts / (experts + moe.redundant_experts)
    inside = part.component not in ("embedding", "output head", "drafter")
    return divided * (parallel.pp if inside else 1)


def _loads_tower(view: RoleView) -> bool:
    """Whether the vision tower is loaded: the native runtime serves text only."""
    recipe = view.recipe
    text_only = recipe.multimodal.text_only or recipe.runtime.kind == "native"
    return "vision" in view.traits and not text_only


def _copies_tower(view: RoleView) -> bool:
    return view.recipe.multimodal.encoder == "data"


def _tower_bytes(view: RoleView, whole: Mapping[str, int]) -> int | None:
    """The vision tower: what a published size has more than the language model."""
    if not _loads_tower(view) or view.published_bytes is None:
        return None
    return max(0, view.published_bytes - sum(whole.values()))


def _from_files(
    whole: Counter[str], device: Counter[str], files: CheckpointSizes, view: RoleView
) -> tuple[Counter[str], Counter[str]]:
    """Bytes of the files, divided as the architecture divides them.

    Exact for experts, drafter and vision tower; the rest is scaled as one, because files name
    tensors as their publisher likes.
    """
    found: Counter[str] = Counter()
    for name, size in files.tensors.items():
        found[component_of(name)] += size
    if not files.tensors:
        found["layers"] = files.total
    own = [name for name in whole if name in found and name != "layers"]
    rest = [name for name in whole if name not in own]
    factors = {name: found[name] / whole[name] for name in own}
    share = found["layers"] / sum(whole[name] for name in rest)
    scaled = {name: factors.get(name, share) for name in whole}
    total = Counter({name: round(size * scaled[name]) for name, size in whole.items()})
    local = Counter({name: round(size * scaled[name]) for name, size in device.items()})
    if found["vision"]:
        total["vision tower"] = found["vision"]
        loaded = found["vision"] if _loads_tower(view) else 0
        local["vision tower"] = loaded if _copies_tower(view) else loaded // view.recipe.parallel.tp
    total["layers"] += files.total - sum(total.values())
    return total, +local


def _notes(view: RoleView) -> tuple[str, ...]:
    notes = []
    drafter = view.drafter
    if drafter is not None and not view.drafter_inside:
        notes.append("the drafter's weights are a checkpoint of their own and not counted")
    if _loads_tower(view) and view.published_bytes is None:
        notes.append("the vision tower is not counted: no size is published for this checkpoint")
    return tuple(notes)
