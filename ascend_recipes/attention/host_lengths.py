"""Lengths of the sequences of a step as host lists, which the fused attention operator takes."""

import itertools
from dataclasses import dataclass

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata


@dataclass(frozen=True)
class HostLengths:
    """Lengths per request, padding requests included, so that queries cover every token."""

    query_cumulative: tuple[int, ...]
    """End of each request's tokens; the last one is the number of tokens of the step."""
    kv: tuple[int, ...]
    """Context tokens of each request, this step's included; not cumulative."""

    def operator_arguments(self) -> dict[str, list[int]]:
        """The lengths under the names of the fused infer attention operator."""
        return {
            "actual_seq_lengths": list(self.query_cumulative),
            "actual_seq_lengths_kv": list(self.kv),
        }


def host_lengths(common: CommonAttentionMetadata, *, exact_on_host: bool) -> HostLengths:
    """Lengths of a step, with padding tokens dealt to the padding requests.

    The operator wants the queries to cover all tokens. Under a full graph vLLM pads the tokens
    but leaves the padding requests without any; each gets an equal share here, and a context of
    the same length in the null block, whose result nobody reads.

    Args:
        common: vLLM's metadata of the step.
        exact_on_host: whether the host's sequence lengths are exact. They are for every step
            outside asynchronous scheduling with drafts; between draft steps only the device
            knows them, and reading them waits for it.
    """
    starts = common.query_start_loc_cpu.tolist()
    queries = [end - start for start, end in itertools.pairwise(starts)]
    contexts = _context_lengths(common, exact_on_host=exact_on_host)
    missing = common.num_actual_tokens - starts[-1]
    padding = [row for row, length in enumerate(queries) if length == 0]
    share, rest = divmod(missing, len(padding)) if padding else (0, missing)
    assert rest == 0, f"{missing} padding tokens cannot be dealt to {len(padding)} requests"
    for row in padding:
        queries[row] = contexts[row] = share
    total = 0
    cumulative = []
    for length in queries:
        total += length
        cumulative.append(total)
    return HostLengths(tuple(cumulative), tuple(contexts))


def _context_lengths(common: CommonAttentionMetadata, *, exact_on_host: bool) -> list[int]:
    lengths: torch.Tensor = common.seq_lens
    if exact_on_host and common.seq_lens_cpu_upper_bound is not None:
        lengths = common.seq_lens_cpu_upper_bound
    contexts: list[int] = lengths[: common.num_reqs].tolist()
    return contexts
