"""Capture sizes of static decode graphs, in tokens."""

from collections.abc import Iterable

CAPTURE_CAP = 512
"""Largest default capture size (vllm-ascend platform.py:1275-1311; vLLM config/vllm.py:2328)."""

_FIRST = (1, 2, 4)


def default_capture_sizes(max_num_seqs: int, query_length: int) -> tuple[int, ...]:
    """Ladder of decode batches times tokens per request, up to the largest batch or the cap.

    The largest batch is always on the ladder where the cap admits it: a batch that is off the
    ladder runs without a graph, and nobody is told.

    Args:
        max_num_seqs: Largest decode batch in requests.
        query_length: Tokens per request in a decode step: 1 plus the draft tokens.
    """
    largest = min(max_num_seqs, CAPTURE_CAP // query_length)
    batches = {size for size in _FIRST if size <= largest}
    batches.update(range(8, min(largest, 256) + 1, 8))
    batches.update(range(256, largest + 1, 16))
    batches.update({largest} - {0})
    return tuple(size * query_length for size in sorted(batches))


def stock_capture_sizes(max_num_seqs: int, query_length: int, max_tokens: int) -> tuple[int, ...]:
    """The ladder that vLLM on vllm-ascend takes where nobody lists sizes.

    It ends at the last rung below the largest batch, which may have none (vllm/config/vllm.py,
    _set_cudagraph_sizes, at 0.27.1; vllm-ascend platform.py:1275-1309 at 182b75ea). With drafts
    sizes are rounded up to whole requests (vllm/config/compilation.py:1530).

    Args:
        max_num_seqs: Largest decode batch in requests.
        query_length: Tokens per request in a decode step: 1 plus the draft tokens.
        max_tokens: Tokens of one step, which cap the ladder too.
    """
    largest = min(max_num_seqs * query_length, CAPTURE_CAP, max_tokens)
    rungs = [*_FIRST, *range(8, 256, 8), *range(256, largest + 1, 16), max_tokens]
    return rounded_sizes([size for size in rungs if size <= largest], query_length, largest)


def rounded_sizes(sizes: Iterable[int], multiple: int, largest: int) -> tuple[int, ...]:
    """What vLLM makes of capture sizes where decode steps hold several tokens a request.

    Rounded up, without those that then exceed the largest; one multiple if none is left. Empty
    where even that exceeds it: vLLM stops there (vllm/config/compilation.py,
    adjust_cudagraph_sizes_for_spec_decode, the same at 0.23.0, 0.26.0, 0.27.1 and 0.32.0).

    Args:
        sizes: tokens, as listed.
        multiple: tokens of a request in a decode step.
        largest: `max_cudagraph_capture_size`, or the largest of the sizes.
    """
    rounded = {-(-size // multiple) * multiple for size in sizes}
    kept = tuple(sorted(size for size in rounded if size <= largest))
    return kept or ((multiple,) if multiple <= largest else ())
