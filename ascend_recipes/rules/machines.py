"""Rules over a recipe and a machine: generations, images, ports, and stacks with known faults."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.planning.ports import collective_ports
from ascend_recipes.resolve import ResolvedRecipe
from ascend_recipes.rules import options
from ascend_recipes.rules.holding import holds
from ascend_recipes.rules.roles import POINT_TO_POINT, Role
from ascend_recipes.versions import in_range, older, parse_version

if TYPE_CHECKING:
    from ascend_recipes.machine import InstalledVersions
    from ascend_recipes.schema.rows import HardwareRow

_BUILT_FOR = {"A2": "a2", "A3": "a3", "A5": "a5", "_310P": "310p", "310P": "310p"}
"""How vllm-ascend's build note writes a generation (device/hardware.py:16)."""

_GRAPHS_HDK, _GRAPHS_CANN = "25.5.1", "8.5.0"
_FABRIC_HDK, _FABRIC_CANN = "25.5", "9.0.0"
_X86_CANN = "9.0.0"
_MOONCAKE_GLIBC = "2.35"

_FREE_FROM = 50000
"""First port that is offered in place of HCCL's own, the example of CANN's documentation."""


def generations_agree(resolved: ResolvedRecipe, installed: InstalledVersions) -> Iterator[Finding]:
    """Chip, compiled part and image are of the recipe's generation."""
    hardware = resolved.recipe.hardware
    chip = generation_of_chip(resolved.registry.hardware, installed.soc)
    if chip not in ("", hardware):
        yield finding(
            "image.machine",
            at="hardware",
            fix=f"hardware={chip}",
            soc=str(installed.soc),
            chip=chip,
            hardware=hardware,
        )
    built = _BUILT_FOR.get(installed.built_for or "", "")
    image = _generation_of_image(resolved, installed.image)
    wanted = chip or hardware
    for field, name, generation in (
        ("built_for", "vllm-ascend", built),
        ("image", str(installed.image), image),
    ):
        if generation not in ("", wanted):
            yield finding(
                "image.soc",
                at=f"installed.{field}",
                name=name,
                generation=generation,
                hardware=wanted,
            )


def generation_of_chip(rows: Mapping[str, HardwareRow], soc: str | None) -> str:
    """Generation whose rows know the chip; empty where none does."""
    name = (soc or "").lower()
    exact = (key for key in rows if name and name in rows[key].soc_names)
    prefix = (
        key
        for key in rows
        for known in rows[key].soc_names
        if name and (name.startswith(known) or known.endswith(name))
    )
    return next(exact, "") or next(prefix, "")


def _generation_of_image(resolved: ResolvedRecipe, image: str | None) -> str:
    """From the tag's words; an image of vllm-ascend without one is for the default generation."""
    row = resolved.registry.stacks[resolved.recipe.runtime.kind]
    name, _, tag = (image or "").rpartition(":")
    words = set(re.split(r"[-_]", tag.lower()))
    for generation, named in row.image_words.items():
        if words & set(named):
            return generation
    return row.image_default or "" if row.image and name.endswith(row.image) else ""


def requirements_are_met(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """What the recipe itself asks of a machine."""
    requires = resolved.recipe.requires
    for part in ("cann", "driver", "torch_npu"):
        wanted, found = getattr(requires, part), getattr(installed, part)
        if wanted is not None and in_range(found, wanted) is False:
            yield finding(
                "env.requires", at=f"requires.{part}", part=part, wanted=wanted, found=found
            )
    needed, free = requires.free_disk_gb, installed.free_disk_gb
    if needed is not None and free is not None and free < needed:
        yield finding("env.disk", at="requires.free_disk_gb", needed=needed, free=free)


@holds("vllm_ascend")
def driver_holds_graphs(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """Two kinds of graphs at once need the stream pools of newer drivers."""
    old = older(_hdk(installed), _GRAPHS_HDK) or older(installed.cann, _GRAPHS_CANN)
    if resolved.recipe.graph.kind == "full_and_piecewise" and old:
        yield finding(
            "env.graph_driver",
            at="graph.kind",
            fix="graph.kind=full_decode",
            hdk=_GRAPHS_HDK,
            cann=_GRAPHS_CANN,
            found=[*filter(None, (_hdk(installed), installed.cann))],
        )


@holds("vllm_ascend")
def stack_has_no_known_fault(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """Combinations for which a crash or wrong text is reported and not yet explained."""
    recipe, driver = resolved.recipe, parse_version(_hdk(installed))
    exchanged = recipe.parallel.ep and "moe" in resolved.model.traits
    early = driver is not None and driver.release[:2] == (25, 3)
    cann = parse_version(installed.cann)
    if cann is None or not exchanged or recipe.hardware not in ("a2", "a3"):
        return
    if recipe.graph.kind == "full" and early and cann.release == (8, 5, 1):
        yield finding(
            "env.known",
            at="graph.kind",
            fix="graph.kind=piecewise",
            driver=str(_hdk(installed)),
            cann=str(installed.cann),
        )
    if resolved.checkpoint.format == "w4a8" and cann.release == (9, 0, 0):
        yield finding("env.w4a8_cann", at="installed.cann", cann=str(installed.cann))


def processor_is_served(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """x86 hosts need a newer CANN."""
    npu = resolved.recipe.device.kind == "npu"
    if npu and installed.arch == "x86_64" and older(installed.cann, _X86_CANN):
        yield finding(
            "env.x86_cann", at="installed.cann", cann=str(installed.cann), wanted=_X86_CANN
        )


@holds("vllm_ascend")
def transfers_have_their_parts(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """What moving and keeping caches needs of the host."""
    fabric = options.switched_on(options.variable(resolved, "ASCEND_ENABLE_USE_FABRIC_MEM"))
    old = older(_hdk(installed), _FABRIC_HDK) or older(installed.cann, _FABRIC_CANN)
    if fabric is not None and old:
        yield finding(
            "env.fabric_mem",
            at=fabric.at,
            fix=options.off(fabric),
            hdk=_FABRIC_HDK,
            cann=_FABRIC_CANN,
            found=[*filter(None, (_hdk(installed), installed.cann))],
        )
    names = [
        name
        for role in resolved.recipe.roles
        for name in options.connectors(options.transfer(resolved, role))
    ]
    if any("Mooncake" in name for name in names) and older(installed.glibc, _MOONCAKE_GLIBC):
        yield finding(
            "env.glibc", at="installed.glibc", found=str(installed.glibc), wanted=_MOONCAKE_GLIBC
        )


@holds("vllm_ascend")
def ports_are_free(resolved: ResolvedRecipe, installed: InstalledVersions) -> Iterator[Finding]:
    """Nobody else listens where HCCL will."""
    env, hccl = resolved.recipe.env, resolved.registry.collectives["hccl"]
    several = resolved.recipe.nodes > 1 or resolved.recipe.parallel.world_size > 1
    moved = env.keys() & {"HCCL_IF_BASE_PORT", "HCCL_NPU_SOCKET_PORT_RANGE"}
    taken = set(installed.listening_ports)
    wanted = {*(collective_ports(env) or ()), *(() if moved else (hccl.device_port,))}
    busy, count = sorted(taken & wanted), hccl.host_ports
    if busy and several:
        starts = range(_FREE_FROM, hccl.first_port, count)
        free = next(start for start in starts if taken.isdisjoint(range(start, start + count)))
        yield finding(
            "net.port",
            at="env.HCCL_IF_BASE_PORT",
            fix=f"env.HCCL_IF_BASE_PORT={free}",
            busy=busy,
            count=count,
        )


@holds("vllm_ascend")
def release_has_the_feature(
    resolved: ResolvedRecipe, installed: InstalledVersions
) -> Iterator[Finding]:
    """Single releases that lack, or break, what the recipe uses."""
    version, recipe = installed.vllm_ascend, resolved.recipe
    modelslim = resolved.quantization.method == "ascend"
    stated = options.argument(resolved, "quantization")
    if modelslim and in_range(version, "==0.16.0rc1") and stated is None:
        yield finding(
            "version.flag",
            at="quant.kind",
            fix="extra_args.quantization=ascend",
            version=str(version),
        )
    if "serve" in recipe.roles:
        return
    from ascend_recipes.resolve import role_views

    views = role_views(resolved)
    tp = {name: view.recipe.parallel.tp for name, view in views.items()}
    latent = recipe.attention.kind in ("mla", "sfa", "dsa")
    if latent and tp["prefill"] != tp["decode"] and in_range(version, "==0.22.1rc1"):
        yield finding(
            "version.window",
            at=Role("decode", views["decode"]).at("parallel.tp"),
            fix=_equal_split(views["decode"], tp["prefill"]),
            version=str(version),
            prefill=tp["prefill"],
            decode=tp["decode"],
        )
    moved = any(name in POINT_TO_POINT for name in Role("decode", views["decode"]).connectors)
    if latent and moved and tp["decode"] == 1 and in_range(version, ">=0.13.0rc1,<0.14.0rc1"):
        yield finding(
            "pd.decode_tp",
            at=Role("decode", views["decode"]).at("parallel.tp"),
            fix=_equal_split(views["decode"], 2),
            version=str(version),
        )


def _equal_split(decode: ResolvedRecipe, tp: int) -> str:
    world = decode.recipe.parallel.tp * decode.recipe.parallel.dp
    return f"roles.decode.parallel.tp={tp} roles.decode.parallel.dp={max(1, world // tp)}"


def _hdk(installed: InstalledVersions) -> str | None:
    """Release of driver and firmware; the driver carries its number."""
    return installed.hdk or installed.driver
