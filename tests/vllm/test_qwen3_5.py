"""Qwen3.5 in real vLLM on the emulated device, against transformers."""

from pathlib import Path

import pytest
import torch

from tests.vllm.conftest import Engine
from tests.vllm.oracle import dense, oracle_logits, prompt_of
from tests.vllm.zeroing import effects_of_zeros

pytestmark = pytest.mark.vllm

TOLERANCE = 1e-3
"""Largest difference of a float32 logit; logits have a deviation of 4."""

LENGTHS = (1, 7, 129, 700)
MIXED = (5, 300, 17, 129, 1, 400, 64, 230)


def checkpoint(engine: Engine) -> Path:
    return Path(engine.planned.plan.model.checkpoint)


def assert_matches_oracle(engine: Engine, prompt: list[int], answer: dict) -> None:
    """Greedy tokens equal, logits of every step and token close."""
    expected = oracle_logits(checkpoint(engine), torch.float32, prompt, answer["tokens"])
    assert answer["tokens"] == expected.argmax(-1).tolist()
    actual = dense(answer["logits"], expected.shape[-1])
    assert (actual - expected).abs().max().item() < TOLERANCE


@pytest.mark.parametrize("length", LENGTHS)
def test_single_prompt_in_chunks(chunked: Engine, length: int):
    prompt = prompt_of(length, seed=length)
    (answer,) = chunked.generate([prompt], max_tokens=12)
    assert_matches_oracle(chunked, prompt, answer)
    prefill_steps = [step for step in chunked.step_trace() if any(p for _, p in step.values())]
    assert len(prefill_steps) == -(-length // 128)


@pytest.mark.parametrize("length", LENGTHS)
def test_single_prompt_with_aligned_states(caching: Engine, length: int):
    prompt = prompt_of(length, seed=100 + length)
    (answer,) = caching.generate([prompt], max_tokens=12)
    assert_matches_oracle(caching, prompt, answer)


def test_eight_requests_share_steps(chunked: Engine):
    prompts = [prompt_of(length, seed=200 + length) for length in MIXED]
    answers = chunked.generate(prompts, max_tokens=12)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_matches_oracle(chunked, prompt, answer)
    trace = chunked.step_trace()
    chunks: dict[str, int] = {}
    for step in trace:
        for name, (_, prefilling) in step.items():
            chunks[name] = chunks.get(name, 0) + prefilling
    assert max(chunks.values()) >= 3
    assert any(len({prefilling for _, prefilling in step.values()}) == 2 for step in trace)


def test_warm_prompt_starts_from_cached_states(caching: Engine):
    block = caching.planned.plan.cache.block_size
    shared = prompt_of(2 * block + 40, seed=300)
    cold_prompt, warm_prompt = [*shared, 1, 2, 3], [*shared, 4, 5]
    (cold,) = caching.generate([cold_prompt], max_tokens=8)
    (warm,) = caching.generate([warm_prompt], max_tokens=8)
    (again,) = caching.generate([cold_prompt], max_tokens=8)
    assert cold["cached"] == 0
    assert warm["cached"] == again["cached"] == 2 * block
    assert again["tokens"] == cold["tokens"]
    assert_matches_oracle(caching, cold_prompt, cold)
    assert_matches_oracle(caching, warm_prompt, warm)
    assert_matches_oracle(caching, cold_prompt, again)


def test_warm_prompts_share_a_step(caching: Engine):
    block = caching.planned.plan.cache.block_size
    shared = prompt_of(block, seed=301)
    prompts = [shared + prompt_of(length, seed=310 + length) for length in (3, 60, 140)]
    caching.generate(prompts[:1], max_tokens=2)
    answers = caching.generate(prompts, max_tokens=8)
    assert [answer["cached"] for answer in answers] == [block] * 3
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_matches_oracle(caching, prompt, answer)


def test_preempted_requests_recover(chunked: Engine):
    block = chunked.planned.plan.cache.block_size
    before = chunked.counter("vllm:num_preemptions")
    # Every request needs another block a few tokens after its prompt, and there are too few.
    prompts = [prompt_of(block - 6, seed=400 + row) for row in range(8)]
    answers = chunked.generate(prompts, max_tokens=16)
    assert chunked.counter("vllm:num_preemptions") > before
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_matches_oracle(chunked, prompt, answer)


def test_a_seed_draws_the_same_whatever_the_chunks(chunked: Engine, caching: Engine):
    """Rows in the middle of a prompt sample too, and must not use up the request's generator."""
    prompt = prompt_of(300, seed=450)
    options = {"max_tokens": 10, "logits": False, "temperature": 1.0, "seed": 11}
    drawn = [engine.generate([prompt], **options)[0]["tokens"] for engine in (chunked, caching)]
    assert drawn[0] == drawn[1]
    (other,) = chunked.generate([prompt], **options | {"seed": 12})
    assert other["tokens"] != drawn[0]


def test_decodes_replay_captured_graphs(chunked: Engine):
    before = chunked.replay_counts()
    assert sorted(before) == sorted(chunked.planned.plan.graph.capture_sizes)
    prompts = [prompt_of(4, seed=500 + row) for row in range(3)]
    chunked.generate(prompts, max_tokens=6, logits=False)
    after = chunked.replay_counts()
    # Three decodes run in the graph of four; its padding row must not disturb them.
    assert after[4] >= before[4] + 4


def test_drafts_change_no_token(drafting: Engine):
    """Verified drafts give the tokens and logits of a run without drafts, several at a time."""
    prompts = [prompt_of(length, seed=650 + length) for length in (1, 129, 250, 530)]
    answers = drafting.generate(prompts, max_tokens=16)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_matches_oracle(drafting, prompt, answer)
    accepted = drafting.counter("vllm:spec_decode_num_accepted_tokens")
    proposed = drafting.counter("vllm:spec_decode_num_draft_tokens")
    assert 0 < accepted < proposed
    (sampled,) = drafting.generate([prompts[1]], max_tokens=8, temperature=1.0, seed=3, top_p=0.9)
    assert len(sampled["tokens"]) == 8
    # float32 never takes that path, so its absence is asserted rather than run into.
    assert drafting.fused_delta_nets() == []


def test_two_ranks_agree_with_one(two_ranks: Engine):
    prompts = [prompt_of(length, seed=600 + length) for length in LENGTHS]
    answers = two_ranks.generate(prompts, max_tokens=12)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_matches_oracle(two_ranks, prompt, answer)
    two_ranks.record_calls()
    receipts = two_ranks.receipts()
    workers = {receipt.rank: receipt for receipt in receipts if receipt.effective is not None}
    assert sorted(workers) == [0, 1]
    assert {receipt.phase for receipt in workers.values()} == {"worker"}
    assert any(receipt.phase == "core" for receipt in receipts)
    for receipt in workers.values():
        assert receipt.effective.communicator_class == (
            "ascend_recipes.distributed.communicator:AscendCommunicator"
        )


def test_recipe_dtypes_are_as_close_as_transformers(recipe_dtypes: Engine):
    """bfloat16 with nothing relaxed, against transformers in bfloat16.

    Both round every activation to 8 bits, in different places. The checkpoints hold the same
    numbers in both dtypes, so float32 gives the truth: our root-mean-square error over all steps
    and tokens must be at most 1.25 times that of transformers in bfloat16. Independent errors of
    equal size add up to 1.4 times either; the difference between the two may be twice as large.
    """
    assert recipe_dtypes.planned.plan.relaxed == ()
    ours, theirs, between = [], [], []
    for length in LENGTHS:
        prompt = prompt_of(length, seed=700 + length)
        (answer,) = recipe_dtypes.generate([prompt], max_tokens=12)
        folder, tokens = checkpoint(recipe_dtypes), answer["tokens"]
        truth = oracle_logits(folder, torch.float32, prompt, tokens)
        rounded = oracle_logits(folder, torch.bfloat16, prompt, tokens)
        actual = dense(answer["logits"], truth.shape[-1])
        ours.append((actual - truth).flatten())
        theirs.append((rounded - truth).flatten())
        between.append((actual - rounded).flatten())
        assert_tokens_are_nearly_best(actual, truth)
    our_error, their_error = rms(ours), rms(theirs)
    print(f"rms error {our_error:.4f} (transformers {their_error:.4f}, between {rms(between):.4f})")
    assert our_error < 1.25 * their_error
    assert rms(between) < 2 * their_error


def assert_tokens_are_nearly_best(actual: torch.Tensor, truth: torch.Tensor) -> None:
    """The token that we pick may lose to the true best only by what rounding can explain."""
    picked = truth.gather(1, actual.argmax(-1, keepdim=True)).squeeze(1)
    spread = (actual - truth).abs().max()
    assert (truth.max(-1).values - picked <= 2 * spread).all()


def rms(parts: list[torch.Tensor]) -> float:
    return torch.cat(parts).square().mean().sqrt().item()


def test_every_planned_binding_is_called(chunked: Engine):
    prompt = prompt_of(200, seed=800)
    chunked.generate([prompt], max_tokens=4, logits=False, temperature=1.0, top_k=3, seed=1)
    chunked.record_calls()
    (receipt,) = [item for item in chunked.receipts() if item.effective is not None]
    assert receipt.bindings == chunked.planned.plan.operations
    assert [name for name, calls in receipt.calls.items() if calls == 0] == []
    assert set(receipt.calls) == set(chunked.planned.plan.operations)


def test_zeroing_any_binding_changes_the_tokens(chunked: Engine):
    effects = effects_of_zeros(chunked, prompt_of(40, seed=900))
    assert effects.tokens == set(chunked.planned.plan.operations)


def test_our_classes_are_everywhere(chunked: Engine):
    modules = chunked.live_modules()
    # vLLM's attention layer is a container: what computes is its implementation.
    container = "vllm.model_executor.layers.attention.attention:Attention"
    foreign = {
        kind: [name for name in names if not name.startswith("ascend_recipes.")]
        for kind, names in modules.items()
    }
    assert foreign.pop("attention layer") == [container]
    # Logits are a matrix product and a gather; there is nothing of ours to put in its place.
    assert not any(foreign.values()), foreign
    assert modules["attention implementation"] == (
        "ascend_recipes.attention.fused_infer:FusedInferImpl",
    )


def test_receipt_tells_what_is_in_effect(chunked: Engine):
    (receipt,) = [item for item in chunked.receipts() if item.effective is not None]
    plan, effective = chunked.planned.plan, receipt.effective
    assert receipt.digest == plan.digest
    assert receipt.platform == "ascend_recipes.platform.ascend:AscendPlatform"
    assert set(plan.hooks) == set(receipt.hooks)
    assert receipt.emulated
    assert receipt.relaxed == plan.relaxed
    assert "torch.cuda.Event" in receipt.shims
    assert effective.block_size == plan.cache.block_size
    assert effective.kv_dtype == plan.cache.kv_dtype
    assert effective.state_dtypes[-1] == plan.cache.state_dtype
    assert effective.graph_mode == plan.graph.mode
    assert effective.capture_sizes == plan.graph.capture_sizes
    assert effective.runner_class == "ascend_recipes.worker.model_runner:AscendModelRunner"
