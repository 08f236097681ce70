"""Probes of the operating system: limits, shared memory, large pages and disk space."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ascend_recipes.doctor.host import Space
from ascend_recipes.doctor.probe import Case
from ascend_recipes.errors import Finding
from ascend_recipes.findings import finding
from ascend_recipes.launch.preflight import checkpoint_findings
from ascend_recipes.paths import cache_root
from ascend_recipes.planning.engine import checkpoint_source
from ascend_recipes.rules.options import pooled_cache

_OPEN_FILES = 65535
"""Open files that vLLM raises its own limit to (vllm/utils/system_utils.py:241 of 0.32.0)."""
_SHARED_MEMORY = 10**9
"""Least size of /dev/shm in bytes: the documented containers have 1 GB.

Source: vllm-ascend docs/source/installation.md:78 at 182b75ea.
"""
_POOL_PAGES = 200_000
"""Large pages of 2 MiB that pools of caches in host memory are documented with.

Source: vllm-ascend docs/source/user_guide/feature_guide/kv_pool.md:181 at 182b75ea.
"""
_OVER_ETHERNET = "HCCL_INTRA_ROCE_ENABLE"
_DEVICE_LOGS = "ASCEND_PROCESS_LOG_PATH"
_SCRATCH = 5 * 10**9
"""Free bytes below which a start may fail on its logs and compiled graphs; our own estimate."""
_GB = 10**9


# --- limits -------------------------------------------------------------------------------------
def read_limits(case: Case) -> Mapping[str, int | None]:
    """Hard limits, which a process may raise its own to; none where there is no bound."""
    return {name: case.host.limit(name) for name in ("nofile", "memlock", "nproc")}


def show_limits(limits: Mapping[str, int | None]) -> str:
    """Each limit as `ulimit` says it."""
    return ", ".join(
        f"{name} {'unlimited' if limit is None else limit}" for name, limit in limits.items()
    )


def judge_limits(limits: Mapping[str, int | None], case: Case) -> Iterator[Finding]:
    """Open files for every process and shard; locked memory where caches are transferred."""
    files, locked = limits["nofile"], limits["memlock"]
    if files is not None and files < _OPEN_FILES:
        yield finding("doctor.open_files", limit=files, wanted=_OPEN_FILES)
    if locked is not None and case.planned is not None and len(case.planned.plan.roles) > 1:
        yield finding("doctor.locked_memory", limit=locked)


# --- memory -------------------------------------------------------------------------------------
def read_shared_memory(case: Case) -> Space | None:
    """The file system through which the processes of an engine talk."""
    path = case.host.at("/dev/shm")
    return case.host.space(path) if path.is_dir() else None


def show_space(space: Space) -> str:
    """Free and total."""
    return f"{space.free / _GB:.1f} GB free of {space.total / _GB:.1f}"


def judge_shared_memory(space: Space, _: Case) -> Iterator[Finding]:
    """Containers get 64 MB unless told otherwise."""
    if space.free < _SHARED_MEMORY:
        yield finding("doctor.shared_memory", free=space.free // 10**6, total=space.total // 10**6)


@dataclass(frozen=True)
class Pages:
    """Large pages of the host."""

    transparent: str
    """`always`, `madvise` or `never`."""
    reserved: int


def read_pages(case: Case) -> Pages | None:
    """What the kernel says."""
    mode = case.host.read("/sys/kernel/mm/transparent_hugepage/enabled")
    reserved = case.host.read("/proc/sys/vm/nr_hugepages")
    if mode is None and reserved is None:
        return None
    chosen = (mode or "").partition("[")[2].partition("]")[0]
    text = (reserved or "0").strip()
    return Pages(chosen or "?", int(text) if text.isdigit() else 0)


def show_pages(pages: Pages) -> str:
    """Both kinds."""
    return f"transparent: {pages.transparent}, reserved: {pages.reserved}"


def judge_pages(pages: Pages, case: Case) -> Iterator[Finding]:
    """Pools in host memory are documented with reserved pages, where they go over Ethernet."""
    if case.planned is None or pages.reserved >= _POOL_PAGES:
        return
    recipe = case.planned.resolved.recipe
    if recipe.hardware != "a2" and recipe.env.get(_OVER_ETHERNET) != "1":
        return
    if connector := pooled_cache(case.planned.resolved):
        yield finding(
            "doctor.large_pages",
            fix=f"sysctl -w vm.nr_hugepages={_POOL_PAGES}",
            connector=connector,
            reserved=pages.reserved,
            wanted=_POOL_PAGES,
        )


# --- disk ---------------------------------------------------------------------------------------
def read_disk(case: Case) -> Mapping[str, Space]:
    """Where runs, caches and the logs of CANN are written."""
    found = {}
    for use, path in _folders(case).items():
        space = case.host.space(case.host.at(str(path)))
        if space is not None:
            found[f"{use} {path}"] = space
    return found


def _folders(case: Case) -> Mapping[str, Path]:
    site = case.site
    home = Path(case.host.environ.get("HOME", "/root"))
    own = Path(site.cache_folder) if site and site.cache_folder else cache_root()
    return {
        "runs": own,
        "caches": Path(case.host.environ.get("VLLM_CACHE_ROOT", home / ".cache" / "vllm")),
        "device logs": Path(case.host.environ.get(_DEVICE_LOGS, home / "ascend" / "log")),
    }


def show_disk(spaces: Mapping[str, Space]) -> str:
    """Free space of each."""
    return ", ".join(f"{use}: {space.free / _GB:.1f} GB" for use, space in spaces.items())


def judge_disk(spaces: Mapping[str, Space], case: Case) -> Iterator[Finding]:
    """A start writes logs and compiled graphs; weights need what the recipe says."""
    for use, space in spaces.items():
        if space.free < _SCRATCH:
            yield finding("doctor.disk", use=use, free=f"{space.free / _GB:.1f}")
    yield from (item for item in case.misfits if item.at == "requires.free_disk_gb")


# --- weights ------------------------------------------------------------------------------------
def read_checkpoint(case: Case) -> str | None:
    """Where the recipe's weights are, or what they are downloaded by."""
    if case.planned is None or case.planned.plan.model.tiny_seed is not None:
        return None
    source = checkpoint_source(case.planned.resolved)
    if source is not None and source.identifier is not None:
        return source.identifier
    return case.planned.plan.model.checkpoint


def judge_checkpoint(place: str, case: Case) -> Iterator[Finding]:
    """Files, index, shapes and formats, read from headers."""
    assert case.planned is not None
    if place == case.planned.plan.model.checkpoint:
        yield from checkpoint_findings(case.planned.plan)
