"""What this machine must offer before vLLM is started; seconds here save minutes there."""

import json
import os
import socket
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ascend_recipes.errors import ExitCode, Finding, RecipeError
from ascend_recipes.findings import finding, phrase
from ascend_recipes.launch.audit import world_size
from ascend_recipes.launch.environment import NATIVE
from ascend_recipes.launch.weight_files import WeightsWanted, family_shapes, weight_findings
from ascend_recipes.launch.weight_types import family_storage
from ascend_recipes.operations_table import abi_findings
from ascend_recipes.registry.load import load_registry
from ascend_recipes.schema.base import Json
from ascend_recipes.schema.plan import LaunchPlan
from ascend_recipes.tiny import UNQUANTIZED

_PORTS_TO_TRY = 20
_WRONG = ("checkpoint.", "quant.")
_ABSENT = "checkpoint.missing"
"""What is there is not what the recipe serves, unlike what is not there at all."""

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model", "tekken.json")
"""Files of which a tokenizer has one: of `tokenizers`, SentencePiece, byte pairs as transformers
writes them, and the forms that two publishers have for themselves."""

_ABSENT_PACKAGES = {
    "vllm": "environment.no_vllm",
    "torch_npu": "environment.no_torch_npu",
}


def check_machine(plan: LaunchPlan, *, serving: bool) -> None:
    """Refuse a launch that cannot work here, with everything that is missing at once.

    Args:
        plan: What is to be started.
        serving: Whether a port will be bound.

    Raises:
        RecipeError: findings about packages, devices, the checkpoint or the port. Exit code 4,
            or 3 where the checkpoint is the wrong one.
    """
    missing = tuple(_packages(plan))
    findings = [*missing, *_devices(plan)]
    if not missing:
        findings.extend(abi_findings(plan, load_registry()))
    if plan.model.tiny_seed is None:
        findings.extend(checkpoint_findings(plan))
    if serving:
        findings.extend(_port(plan))
    if findings:
        wrong = all(item.id.startswith(_WRONG) and item.id != _ABSENT for item in findings)
        code = ExitCode.FINDINGS if wrong else ExitCode.ENVIRONMENT
        raise RecipeError(tuple(findings), code)


def server_address(plan: LaunchPlan) -> tuple[str, int]:
    """Host and port that the server binds."""
    host, port = plan.server.get("host") or "127.0.0.1", plan.server.get("port") or 8000
    return str(host), int(str(port))


def _packages(plan: LaunchPlan) -> Iterator[Finding]:
    needed = ["vllm", *(["torch_npu"] if plan.device == "npu" else [])]
    if plan.runtime.name != NATIVE:
        needed.append(plan.runtime.name)
    for name in needed:
        try:
            found = version(name)
        except PackageNotFoundError:
            yield finding(_ABSENT_PACKAGES.get(name, "environment.no_package"), name=name)
            continue
        if name == "vllm" and found.partition("+")[0] != plan.runtime.vllm:
            wanted = plan.runtime.vllm
            fix = f"pip install vllm=={wanted}"
            yield finding("environment.vllm_version", fix=fix, wanted=wanted, found=found)


def _devices(plan: LaunchPlan) -> Iterator[Finding]:
    if plan.device != "npu":
        return
    available, needed = num_npus(), world_size(plan)
    if available >= needed:
        return
    if available == 0:
        yield finding("environment.no_npu", at="device")
    else:
        yield finding("environment.too_few_npus", at="device", needed=needed, available=available)


def num_npus(devices: Path = Path("/dev")) -> int:
    """Dies that the driver shows to this process."""
    present = {path.name for path in devices.glob("davinci[0-9]*")}
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if visible is None:
        return len(present)
    return len(present & {f"davinci{number.strip()}" for number in visible.split(",")})


def checkpoint_findings(plan: LaunchPlan) -> Iterator[Finding]:
    """Errors about the folder of the weights: absent, unreadable, or of another model."""
    folder = Path(plan.model.checkpoint)
    config = folder / "config.json"
    if not config.is_file():
        lacks = phrase("checkpoint.no_config" if folder.is_dir() else "checkpoint.no_folder")
        yield finding("checkpoint.missing", at="checkpoint", folder=folder, lacks=lacks)
        return
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
        architectures = content.get("architectures") or []
    except (ValueError, AttributeError):
        yield finding("checkpoint.unreadable", at="checkpoint", file=config)
        return
    if plan.model.architecture not in architectures:
        yield finding(
            "checkpoint.architecture",
            at="checkpoint",
            folder=folder,
            found=[str(item) for item in architectures] or "-",
            wanted=plan.model.architecture,
        )
        return
    brought = plan.engine.keys() & {"tokenizer", "skip_tokenizer_init"}
    if not brought and not any((folder / name).is_file() for name in _TOKENIZERS):
        wanted = ", ".join(_TOKENIZERS)
        yield finding("checkpoint.no_tokenizer", at="checkpoint", folder=folder, wanted=wanted)
    yield from weight_findings(folder, content, _weights_wanted(plan, content))


def _weights_wanted(plan: LaunchPlan, config: dict[str, Json]) -> WeightsWanted:
    registry = load_registry()
    model = registry.models[plan.model.key]
    row = plan.quantization or UNQUANTIZED
    text = config.get(model.text_config_key) if model.text_config_key else config
    return WeightsWanted(
        format=row,
        method=registry.quantization[row].method,
        runtime=plan.runtime.name,
        shapes=family_shapes(
            model.family,
            text if isinstance(text, dict) else {},
            drafter=plan.drafter.kind if plan.drafter else None,
        ),
        storage=family_storage(model.family),
    )


def _port(plan: LaunchPlan) -> Iterator[Finding]:
    host, port = server_address(plan)
    if is_free(host, port):
        return
    others = range(port + 1, min(port + _PORTS_TO_TRY, 65536))
    free = next((other for other in others if is_free(host, other)), None)
    fix = f"serving.port={free}" if free is not None else "serving.port=PORT"
    yield finding("environment.port_in_use", at="serving.port", fix=fix, host=host, port=port)


def is_free(host: str, port: int) -> bool:
    """Whether a port can be bound now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the server does, so that a port in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
