"""Where the time of an emulated step goes, beside transformers on the same tiny checkpoint.

    .venv/bin/python benchmarks/emulation.py [--recipe NAME] [override …]

Prints, for one prefill and for a batch of decode steps, the wall time, the share of each operation,
and the ratio to `transformers`' own `generate` in the same run. One thread each. The numbers say
how fast tests are, never how fast an NPU is.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

PREFILL_TOKENS = 384
DECODE_REQUESTS = 8
DECODE_TOKENS = 33
REPEATS = 3


def main() -> None:
    """Measure the recipe of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="qwen3_5_27b_a2")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    report(arguments.recipe, arguments.overrides)


def report(recipe: str, overrides: list[str]) -> None:
    """Measure a recipe whose tiny checkpoint transformers reads too, and print the tables."""
    plan, environment = _prepare(recipe, overrides)
    ours = _measure("engine", environment)
    peer = _measure("transformers", environment)
    _print(plan, ours, peer)


def _prepare(recipe: str, overrides: list[str]) -> tuple[Any, dict[str, str]]:
    from ascend_recipes.cli.pipeline import planned_launch
    from ascend_recipes.launch.environment import child_environment
    from ascend_recipes.tiny import ensure_tiny_checkpoint

    words = [f"recipe={recipe}", "device=emulated", "scale=tiny", *overrides]
    planned = planned_launch(words, [])
    plan, model = planned.plan, planned.resolved.model
    checkpoint = Path(plan.model.checkpoint)
    ensure_tiny_checkpoint(
        checkpoint.parent,
        family=model.family,
        model=dict(model.config),
        seed=plan.model.tiny_seed or 0,
        dtype=str(plan.engine["dtype"]),
    )
    path = Path(tempfile.mkdtemp(prefix="emulation-")) / "plan.json"
    path.write_text(plan.to_json(), encoding="utf-8")
    environment = child_environment(plan, path, os.environ)
    return plan, environment | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}


def _measure(peer: str, environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", peer],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _prompts(count: int, tokens: int) -> list[list[int]]:
    """Token ids in the printable range, different for every request."""
    return [[33 + (7 * row + 3 * at) % 90 for at in range(tokens)] for row in range(count)]


# --- children -----------------------------------------------------------------------------------
def engine_child() -> dict[str, Any]:
    """Time our engine, and each operation inside it."""
    from vllm import LLM, SamplingParams

    from ascend_recipes.ops import operations
    from ascend_recipes.schema.plan import load_plan

    plan = load_plan(Path(os.environ["ASCEND_RECIPES_PLAN"]))
    llm = LLM(**plan.engine | {"enable_prefix_caching": False, "mamba_cache_mode": "none"})

    def run(prompts: list[list[int]], tokens: int) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        llm.generate([{"prompt_token_ids": p} for p in prompts], sampling, use_tqdm=False)

    spent: dict[str, float] = {}
    with ExitStack() as stack:
        for name in operations.bound():
            stack.enter_context(operations.override(name, _timing(name, spent)))
        return {
            "prefill": _timed(lambda: run(_prompts(1, PREFILL_TOKENS), 1), spent),
            "decode": _timed(lambda: run(_prompts(DECODE_REQUESTS, 4), DECODE_TOKENS), spent),
        }


def transformers_child() -> dict[str, Any]:
    """Time transformers' `generate` on the same weights."""
    import torch

    from ascend_recipes.schema.plan import load_plan
    from ascend_recipes.torchvision_schemas import define_missing_schemas

    define_missing_schemas()
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    plan = load_plan(Path(os.environ["ASCEND_RECIPES_PLAN"]))
    model = AutoModelForCausalLM.from_pretrained(plan.model.checkpoint, dtype="auto").eval()

    def run(prompts: list[list[int]], tokens: int) -> None:
        with torch.inference_mode():
            model.generate(
                torch.tensor(prompts),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                attention_mask=torch.ones(len(prompts), len(prompts[0]), dtype=torch.long),
            )

    return {
        "prefill": _timed(lambda: run(_prompts(1, PREFILL_TOKENS), 1), {}),
        "decode": _timed(lambda: run(_prompts(DECODE_REQUESTS, 4), DECODE_TOKENS), {}),
    }


def _timing(name: str, spent: dict[str, float]) -> Callable[[Any], Any]:
    def wrap(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - started

        return call

    return wrap


def _timed(run: Callable[[], None], spent: dict[str, float]) -> dict[str, Any]:
    """Fastest of several runs after one to warm up, with what each operation took in it."""
    run()
    best: dict[str, Any] = {"seconds": float("inf")}
    for _ in range(REPEATS):
        with _fresh(spent):
            started = time.perf_counter()
            run()
            seconds = time.perf_counter() - started
            if seconds < best["seconds"]:
                best = {"seconds": seconds, "operations": dict(spent)}
    return best


@contextmanager
def _fresh(spent: dict[str, float]) -> Iterator[None]:
    spent.clear()
    yield


# --- report -------------------------------------------------------------------------------------
def _print(plan: Any, ours: dict[str, Any], peer: dict[str, Any]) -> None:
    print(f"{plan.recipe}, emulated, tiny, {plan.engine['dtype']}, one thread")
    counts = {"prefill": PREFILL_TOKENS, "decode": DECODE_REQUESTS * DECODE_TOKENS}
    for phase, tokens in counts.items():
        mine, theirs = ours[phase]["seconds"], peer[phase]["seconds"]
        print(
            f"\n{phase}: {tokens} tokens in {mine:.3f} s = {tokens / mine:.0f} tokens/s; "
            f"transformers {tokens / theirs:.0f} tokens/s; ratio {theirs / mine:.2f}"
        )
        shares = sorted(ours[phase]["operations"].items(), key=lambda item: -item[1])
        rest = mine - sum(seconds for _, seconds in shares)
        for name, seconds in [*shares, ("everything else", rest)]:
            print(f"  {name:<28} {seconds * 1e3:9.1f} ms  {seconds / mine:6.1%}")


if __name__ == "__main__":
    if "--child" in sys.argv:
        children = {"engine": engine_child, "transformers": transformers_child}
        print(json.dumps(children[sys.argv[-1]]()))
    else:
        main()
