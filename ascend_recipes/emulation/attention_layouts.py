"""Turns the layouts of fused infer attention into the two that it is computed in.

Packed requests stay TND; padded ones (BSH, BSND, BNSD, BNSD_BSND) become BSND.
"""

# Shapes: B requests, S queries, L keys, N query heads, K kv heads, D head dim, E value dim,
#         H elements of a token

from torch import Tensor

from ascend_recipes.emulation.attention_lengths import NAME
from ascend_recipes.emulation.refusal import check, check_shape

PACKED = "TND"
LAYOUTS = (PACKED, "BSND", "BSH", "BNSD", "BNSD_BSND")
_BY_HEAD = ("BNSD", "BNSD_BSND")


def whole_tokens(layout: str) -> bool:
    """Whether all heads of a padded token stand side by side."""
    return layout in ("BSND", "BSH")


def as_rows(query: Tensor, heads: int, layout: str) -> Tensor:
    """Queries as [T, N, D] or [B, S, N, D].

    Raises:
        OperatorRefusedError: the query has not the shape of the layout.
    """
    if layout == PACKED:
        check_shape(NAME, "query", query, (None, heads, None), "[tokens, num_heads, head dim]")
        return query
    if layout == "BSH":
        check_shape(NAME, "query", query, (None, None, None), "[batch, queries, heads * head dim]")
        size = query.shape[-1]
        allowed = f"a multiple of num_heads, {heads}"
        check(size % heads == 0, NAME, "query", f"has tokens of {size}", allowed)
        return query.unflatten(-1, (heads, -1))
    if layout == "BSND":
        wanted = "[batch, queries, num_heads, head dim]"
        check_shape(NAME, "query", query, (None, None, heads, None), wanted)
        return query
    wanted = "[batch, num_heads, queries, head dim]"
    check_shape(NAME, "query", query, (None, heads, None, None), wanted)
    check(
        layout == "BNSD" or query.shape[2] > 1,
        NAME,
        "input_layout",
        f"is {layout} with one query",
        "BNSD, or more than one query",
    )
    return query.transpose(1, 2)


def as_keys(key: Tensor, query_BSND: Tensor, kv_heads: int, layout: str) -> Tensor:
    """Dense padded keys or values as [B, L, K, D].

    Raises:
        OperatorRefusedError: they have not the shape of the layout.
    """
    batch, width = query_BSND.shape[0], query_BSND.shape[-1]
    if layout == "BSH":
        shape = (batch, None, kv_heads * width)
        check_shape(NAME, "key", key, shape, "[batch, keys, kv heads * head dim]")
        return key.unflatten(-1, (kv_heads, width))
    if layout == "BSND":
        wanted = "[batch, keys, kv heads, head dim]"
        check_shape(NAME, "key", key, (batch, None, kv_heads, width), wanted)
        return key
    wanted = "[batch, kv heads, keys, head dim]"
    check_shape(NAME, "key", key, (batch, kv_heads, None, width), wanted)
    return key.transpose(1, 2)


def as_output(rows: Tensor, layout: str) -> Tensor:
    """Attention [T, N, E] or [B, S, N, E] in the layout of the result."""
    if layout == "BSH":
        return rows.flatten(2)
    return rows.transpose(1, 2).contiguous() if layout == "BNSD" else rows


def as_log_sum_exp(lse: Tensor, layout: str) -> Tensor:
    """Log-sum-exp [T, N, 1] or [B, S, N, 1] as the operator returns it, [B, N, S, 1]."""
    return lse if layout == PACKED else lse.transpose(1, 2).contiguous()
