"""A process that holds one vLLM engine and answers requests over a pipe.

vLLM keeps state per process, and a process applies one plan: every group of tests gets a host of
its own. Run as a script with the number of an inherited file descriptor.
"""

import os
import re
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class Host:
    """What tests ask of an engine; arguments and results are plain data."""

    def __init__(self) -> None:
        from vllm import LLM

        from ascend_recipes.schema.plan import load_plan

        self.plan = load_plan(Path(os.environ["ASCEND_RECIPES_PLAN"]))
        self.llm = LLM(**self.plan.engine, disable_log_stats=False)
        self.steps: list[dict[str, tuple[int, bool]]] = []
        self.proposed: list[list[list[int]]] = []
        self.draft_logits: list[list[list[float]]] = []
        self.products: dict[str, list[Any]] = {}
        if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
            self._record_steps()
            self._record_drafts()

    def generate(
        self,
        prompts: list[list[int]],
        *,
        max_tokens: int,
        logits: bool = True,
        **sampling: Any,
    ) -> list[dict[str, Any]]:
        """Run all prompts at once; logits of every position come as `{token: value}`."""
        from vllm import SamplingParams

        parameters = SamplingParams(
            max_tokens=max_tokens,
            ignore_eos=True,
            logprobs=-1 if logits else None,
            **{"temperature": 0.0, **sampling},
        )
        self.steps.clear()
        self.proposed.clear()
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [_answer(item) for item in self.llm.generate(requests, parameters, use_tqdm=False)]

    def generate_taped(
        self, prompt: list[int], operations: tuple[str, ...] = (), **options: Any
    ) -> tuple[dict[str, Any], Any]:
        """Generate, and what operations that round were given, by layer and call, on each rank."""
        (answer,), tapes = self.generate_taped_together([prompt], operations, **options)
        return answer, tapes

    def generate_taped_together(
        self, prompts: list[list[int]], operations: tuple[str, ...] = (), **options: Any
    ) -> tuple[list[dict[str, Any]], Any]:
        """As `generate_taped`, for requests that share steps and the tape."""
        from taping import FLOAT8, start_taping, stop_taping

        bound = set(operations or FLOAT8) & set(self.plan.operations)
        self.llm.collective_rpc(start_taping, args=(bound,))
        try:
            answers = self.generate(prompts, **options)
        finally:
            tapes = self.llm.collective_rpc(stop_taping)
        return answers, tapes

    def generate_drafts_taped(self, prompt: list[int], **options: Any) -> tuple[Any, Any, Any]:
        """As `generate_taped`, and what each pass of the drafter's only layer was given."""
        from taping import FLOAT8, taped_passes

        ((number, stage),) = self._runner().drafter.model.model.layers.items()
        bound = set(FLOAT8) & set(self.plan.operations)
        with taped_passes(stage, int(number), bound) as passes:
            answer, tapes = self.generate_taped(prompt, **options)
        return answer, tapes, passes

    def generate_blocks_taped(self, prompt: list[int], **options: Any) -> tuple[Any, Any, Any]:
        """As `generate_taped`, and the keys that a block drafter writes each time it proposes.

        Those of the step's tokens, a stage after the other, then those of the block.
        """
        from taping import taped_rounds

        with taped_rounds(self._runner().drafter, "propose", "write_latent_rows") as rounds:
            answer, tapes = self.generate_taped(prompt, **options)
        return answer, tapes, rounds

    def step_trace(self) -> list[dict[str, tuple[int, bool]]]:
        """Of the last `generate`: per step, request -> (tokens scheduled, still prefilling)."""
        return list(self.steps)

    def drafts(self) -> list[list[list[int]]]:
        """Of the last `generate`: tokens `[requests, drafts]` each time that some were proposed."""
        return list(self.proposed)

    def counter(self, name: str) -> float:
        """Sum of one of vLLM's counters."""
        return sum(metric.value for metric in self.llm.get_metrics() if metric.name == name)

    def reset_prefix_cache(self) -> bool:
        return self.llm.reset_prefix_cache()

    def record_calls(self) -> list[dict[str, int]]:
        return self.llm.collective_rpc("record_calls")

    def expert_shares(self) -> list[list[list[int]]]:
        """By rank: first expert, number of experts and intermediate size of its layers."""
        from expert_shares import expert_shares

        return self.llm.collective_rpc(expert_shares)

    def generate_without(self, operation: str, prompts: list[list[int]], **options: Any) -> Any:
        """Generate while an operation gives zeros; none if an emulated operator refuses them."""
        from ascend_recipes.emulation.refusal import OperatorRefusedError
        from ascend_recipes.ops import operations

        with operations.override(operation, _WITHOUT.get(operation, _zeroed)):
            try:
                return self.generate(prompts, **options)
            except OperatorRefusedError:
                self._abandon()
                return None

    def _abandon(self) -> None:
        """Drop the requests of a step that failed half way."""
        engine = self.llm.llm_engine
        engine.abort_request(list(engine.output_processor.request_states), internal=True)
        self._runner().execute_model_state = None

    def record_draft_logits(self) -> None:
        """Keep what the drafter's output layer gives from now on."""
        drafter = self._runner().drafter.model
        compute = drafter.compute_logits

        def recording(*args: Any, **kwargs: Any) -> Any:
            logits = compute(*args, **kwargs)
            self.draft_logits.append(logits.float().tolist())
            return logits

        drafter.compute_logits = recording

    def take_draft_logits(self) -> list[list[list[float]]]:
        """One table `[requests, vocabulary]` a draft since the last call."""
        taken, self.draft_logits = self.draft_logits, []
        return taken

    def record_products(self) -> None:
        """Keep inputs and outputs of every quantized layer from now on."""
        from ascend_recipes.moe.experts import Int4Experts, Int8Experts
        from ascend_recipes.quantization.modelslim import Int8DynamicLinear

        runner = self._runner()
        draft_layer = re.compile(r"layers\.\d+\.(block\.)?")
        models = [(runner.get_model(), lambda name: name)]
        if drafter := getattr(runner, "drafter", None):
            models.append((drafter.model, lambda name: draft_layer.sub("mtp.0.", name)))
        for model, rename in models:
            for name, module in model.named_modules():
                method = getattr(module, "quant_method", None)
                quantized = isinstance(module, Int8Experts | Int4Experts)
                if quantized or isinstance(method, Int8DynamicLinear):
                    calls = self.products.setdefault(rename(name.removeprefix("model.")), [])
                    module.register_forward_hook(_product_recorder(calls))

    def take_products(self) -> dict[str, list[Any]]:
        """Calls by layer so far: inputs and output as arrays."""
        return self.products

    def replay_counts(self) -> dict[int, int]:
        return self._runner().model.replay_counts()

    def live_modules(self) -> dict[str, tuple[str, ...]]:
        """Kind -> classes in the loaded model, for what computes attention, caches and norms."""
        from torch import nn
        from vllm.model_executor.custom_op import CustomOp
        from vllm.model_executor.layers.attention import Attention
        from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

        found: dict[str, set[str]] = {}

        def add(kind: str, instance: object) -> None:
            cls = instance if isinstance(instance, type) else type(instance)
            found.setdefault(kind, set()).add(f"{cls.__module__}:{cls.__qualname__}")

        for module in self._runner().get_model().modules():
            if isinstance(module, CustomOp):
                add("custom operator", module)
            if "norm" in type(module).__name__.lower() or isinstance(module, nn.LayerNorm):
                add("norm", module)
            if isinstance(module, AttentionLayerBase):
                add("attention layer", module)
                add("attention backend", module.get_attn_backend())
                add("metadata builder", module.get_attn_backend().get_builder_cls())
                if isinstance(module, Attention):
                    add("attention implementation", module.impl)
        return {kind: tuple(sorted(names)) for kind, names in found.items()}

    def live_classes(self, *modules: str) -> list[str]:
        """Classes of all live objects that are defined below these modules."""
        import gc

        # vLLM freezes the heap after start; frozen objects are not listed.
        gc.unfreeze()
        kinds = {type(item) for item in gc.get_objects()}
        names = [f"{kind.__module__}:{kind.__qualname__}" for kind in kinds]
        return sorted(name for name in names if name.startswith(modules))

    def fused_delta_nets(self) -> list[str]:
        """Delta nets that would call vLLM's own fused kernels to verify bfloat16 drafts."""
        modules = self._runner().get_model().named_modules()
        flag = "enable_fused_gdn_spec_decode"
        return [name for name, module in modules if getattr(module, flag, False)]

    def _runner(self) -> Any:
        return self._core().model_executor.driver_worker.worker.model_runner

    def _core(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core

    def _record_steps(self) -> None:
        scheduler = self._core().scheduler
        schedule = scheduler.schedule

        def recording(*args: Any, **kwargs: Any) -> Any:
            before = {
                name: request.num_computed_tokens < request.num_prompt_tokens
                for name, request in scheduler.requests.items()
            }
            output = schedule(*args, **kwargs)
            self.steps.append(
                {
                    name: (tokens, before.get(name, True))
                    for name, tokens in output.num_scheduled_tokens.items()
                }
            )
            return output

        scheduler.schedule = recording

    def _record_drafts(self) -> None:
        drafter = getattr(self._runner(), "drafter", None)
        if drafter is None:
            return
        propose = drafter.propose

        def recording(*args: Any, **kwargs: Any) -> Any:
            tokens = propose(*args, **kwargs)
            self.proposed.append(tokens.tolist())
            return tokens

        drafter.propose = recording


def _answer(item: Any) -> dict[str, Any]:
    completion = item.outputs[0]
    rows = completion.logprobs or []
    return {
        "tokens": list(completion.token_ids),
        "logits": [{token: entry.logprob for token, entry in row.items()} for row in rows],
        "cached": item.num_cached_tokens,
    }


def _product_recorder(calls: list[Any]) -> Any:
    def record(_: Any, inputs: tuple[Any, ...], output: Any) -> None:
        result = output[0] if isinstance(output, tuple) else output
        arrays = tuple(item.clone().numpy() for item in inputs)
        calls.append((arrays, result.clone().numpy()))

    return record


def _zeroed(function: Any) -> Any:
    """Call the binding, for what it writes in place, and give zeros instead of its results."""
    from torch.utils._pytree import tree_map

    def zero(value: Any) -> Any:
        return value.new_zeros(value.shape) if hasattr(value, "new_zeros") else value

    return lambda *args, **kwargs: tree_map(zero, function(*args, **kwargs))


def _blank(contents: int) -> Any:
    """Write zeros into a cache instead of the leading arguments."""

    def wrap(function: Any) -> Any:
        return lambda *args: function(*(item * 0 for item in args[:contents]), *args[contents:])

    return wrap


def _erased(function: Any) -> Any:
    """Call, then zero the argument that the operation works on in place."""

    def call(target: Any, *args: Any, **kwargs: Any) -> None:
        function(target, *args, **kwargs)
        target.zero_()

    return call


_WITHOUT = {
    "write_kv_cache": _blank(2),
    "write_latent_rows": _blank(1),
    "write_indexer_keys": _blank(1),
    "partial_rotary": _erased,
}
"""How operations that give nothing back are zeroed."""


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    try:
        host = Host()
    except BaseException as error:
        connection.send(("failed", repr(error)))
        raise
    connection.send(("ready", None))
    while True:
        try:
            name, args, kwargs = connection.recv()
        except EOFError:
            break
        try:
            connection.send(("result", getattr(host, name)(*args, **kwargs)))
        except Exception as error:  # noqa: BLE001  the test decides what an error means
            connection.send(("failed", repr(error)))


if __name__ == "__main__":
    main()
