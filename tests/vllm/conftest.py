"""Engines, one process per group of tests, and the oracle they are compared with."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from ascend_recipes.launch.environment import child_environment
from ascend_recipes.plan import PlannedLaunch
from ascend_recipes.receipts import Receipt, load_receipts
from ascend_recipes.tiny import ensure_tiny_checkpoint
from tests.vllm.nursery import Nursery, started_nursery

START_SECONDS = 300
ANSWER_SECONDS = 180

TINY = ("device=emulated", "scale=tiny", "+extra_args.max_logprobs=-1")
RAW = "+extra_args.logprobs_mode=raw_logits"
FLOAT32 = ("device.relaxed=[dtype.float32]", "checkpoint.dtype=float32")


@dataclass
class Engine:
    """Client of one engine host."""

    planned: PlannedLaunch
    run_folder: Path
    connection: Connection

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            self.connection.send((name, args, kwargs))
            return _answer(self.connection, ANSWER_SECONDS)

        return ask

    def receipts(self) -> tuple[Receipt, ...]:
        return load_receipts(self.run_folder)


def _answer(connection: Connection, seconds: float) -> Any:
    if not connection.poll(seconds):
        raise TimeoutError(f"the engine host did not answer within {seconds} s")
    kind, value = connection.recv()
    if kind == "failed":
        raise RuntimeError(value)
    return value


def tiny_checkpoint(planned: PlannedLaunch) -> Path:
    """The plan's checkpoint; written unless a test brought its own."""
    checkpoint = Path(planned.plan.model.checkpoint)
    if (checkpoint / "config.json").is_file():
        return checkpoint
    model = planned.resolved.model
    return ensure_tiny_checkpoint(
        checkpoint.parent,
        family=model.family,
        model=planned.resolved.published_config,
        seed=0,
        dtype=str(planned.plan.engine["dtype"]),
        quantization=planned.resolved.checkpoint.format,
    )


@contextmanager
def running_engine(
    planned: PlannedLaunch, run_folder: Path, nursery: Nursery, *, core_process: bool = False
) -> Iterator[Engine]:
    """Start an engine host for a plan; it ends when the pipe closes."""
    tiny_checkpoint(planned)
    plan_file = run_folder / "plan.json"
    plan_file.write_text(planned.plan.to_json(), encoding="utf-8")
    environment = child_environment(planned.plan, plan_file, os.environ)
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(core_process))
    # Tapes are started in workers by functions of the tests.
    environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    ours, theirs = Pipe()
    pid = nursery.start(environment, run_folder / "log", theirs)
    theirs.close()
    try:
        _answer(ours, START_SECONDS)
        yield Engine(planned, run_folder, ours)
    finally:
        ours.close()
        nursery.end(pid)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with started_nursery() as started:
        yield started


@pytest.fixture(scope="session")
def engine_of(
    plan: Callable[..., PlannedLaunch],
    tmp_path_factory: pytest.TempPathFactory,
    nursery: Nursery,
) -> Callable[..., Any]:
    """Start an engine for overrides of the base recipe."""

    def start(*words: str, core_process: bool = False) -> Any:
        folder = tmp_path_factory.mktemp("run")
        return running_engine(plan(*TINY, *words), folder, nursery, core_process=core_process)

    return start


@pytest.fixture(scope="module")
def chunked(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """float32, chunks of 128 tokens, no prefix caching, a cache that eight prompts overflow."""
    words = (
        *FLOAT32,
        RAW,
        "cache.prefix_caching=false",
        "cache.memory_bytes=67108864",
        "scheduler.max_num_batched_tokens=128",
    )
    with engine_of(*words) as engine:
        yield engine


@pytest.fixture(scope="module")
def caching(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """float32, prefix caching with aligned states."""
    with engine_of(*FLOAT32, RAW) as engine:
        yield engine


@pytest.fixture(scope="module")
def drafting(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """float32, three drafts a step, prefix caching with aligned states."""
    with engine_of(*FLOAT32, RAW, "drafter=mtp3") as engine:
        yield engine


@pytest.fixture(scope="module")
def recipe_dtypes(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """The recipe's own dtypes, nothing relaxed."""
    with engine_of(RAW) as engine:
        yield engine


@pytest.fixture(scope="module")
def two_ranks(engine_of: Callable[..., Any]) -> Iterator[Engine]:
    """float32, tensor parallel over two worker processes below an engine core process."""
    with engine_of(*FLOAT32, RAW, "parallel.tp=2", core_process=True) as engine:
        yield engine
