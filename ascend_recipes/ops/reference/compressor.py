"""Plain compressor of compressed attention, request by request and block by block."""

# Shapes: T tokens, H hidden, D head dim, E = coff * D, R requests, C compressed rows, r ratio,
#         V columns of a block table, B blocks, P rows of a block, W = 2 * E, X positions,
#         K rotated part, L source rows of a compressed row

import torch
from torch import Tensor

OVERLAPPED_RATIO = 4


def compressor_metadata(
    cosine_XK: Tensor,
    sine_XK: Tensor,
    query_start_R1: Tensor,
    start_R: Tensor,
    block_table_RV: Tensor,
    *,
    block_size: int,
    ratio: int,
    num_rows: int,
    flat: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rope rows (at the first position of a block) and slots of the rows of `compressor`."""
    cosine_CK = cosine_XK.new_ones(num_rows, cosine_XK.shape[1])
    sine_CK = sine_XK.new_zeros(num_rows, sine_XK.shape[1])
    slots_C2 = torch.tensor([[-1, block_size - 1]] * num_rows, dtype=torch.int32)
    for row, (request, block) in enumerate(_completed(query_start_R1, start_R, ratio)):
        cosine_CK[row], sine_CK[row] = cosine_XK[block * ratio], sine_XK[block * ratio]
        slots_C2[row, 0] = block_table_RV[request, block // block_size]
        slots_C2[row, 1] = block % block_size
    if not flat:
        return cosine_CK, sine_CK, slots_C2
    flat_C = slots_C2[:, 0] * block_size + slots_C2[:, 1]
    return cosine_CK, sine_CK, torch.where(slots_C2[:, 0] < 0, -1, flat_C).to(torch.int32)


def compressor(
    x_TH: Tensor,
    wkv_EH: Tensor,
    wgate_EH: Tensor,
    ape_rE: Tensor,
    norm_weight_D: Tensor,
    state_BPW: Tensor,
    cosine_CK: Tensor,
    sine_CK: Tensor,
    *,
    block_table_RV: Tensor,
    query_start_R1: Tensor,
    start_R: Tensor,
    ratio: int,
    epsilon: float,
) -> Tensor:
    """Softmax-weighted sum of the keys of a block, normalized and rotated; float32 inside.

    Rows after the last completed block are zero.
    """
    bounds, starts = query_start_R1.tolist(), start_R.tolist()
    current = {}
    for request, start in enumerate(starts):
        for token in range(bounds[request], bounds[request + 1]):
            position = start + token - bounds[request]
            key_E = wkv_EH.float() @ x_TH[token].float()
            score_E = wgate_EH.float() @ x_TH[token].float() + ape_rE[position % ratio]
            current[request, position] = torch.cat((key_E, score_E))

    def row_of(request: int, position: int) -> Tensor:
        if (request, position) in current:
            return current[request, position]
        page = block_table_RV[request, position // state_BPW.shape[1]]
        return state_BPW[page, position % state_BPW.shape[1]]

    rows_CD = x_TH.new_zeros(cosine_CK.shape[0], norm_weight_D.shape[0])
    for row, (request, block) in enumerate(_completed(query_start_R1, start_R, ratio)):
        positions = range(block * ratio, (block + 1) * ratio)
        now_LW = torch.stack([row_of(request, position) for position in positions])
        before_LW = None
        if ratio == OVERLAPPED_RATIO and block > 0:
            positions = range((block - 1) * ratio, block * ratio)
            before_LW = torch.stack([row_of(request, position) for position in positions])
        key_LD, score_LD = _sources(now_LW, before_LW, ratio)
        pooled_D = (score_LD.softmax(dim=0) * key_LD).sum(dim=0)
        pooled_D = pooled_D / (pooled_D.square().mean() + epsilon).sqrt() * norm_weight_D.float()
        rows_CD[row] = _rotate(pooled_D, cosine_CK[row].float(), sine_CK[row].float())
    for (request, position), row_W in current.items():
        page = int(block_table_RV[request, position // state_BPW.shape[1]])
        if page:
            state_BPW[page, position % state_BPW.shape[1]] = row_W
    return rows_CD


def _completed(query_start_R1: Tensor, start_R: Tensor, ratio: int) -> list[tuple[int, int]]:
    """(Request, block) of every block whose last token is among the tokens."""
    bounds, starts = query_start_R1.tolist(), start_R.tolist()
    return [
        (request, block)
        for request, start in enumerate(starts)
        for block in range(start // ratio, (start + bounds[request + 1] - bounds[request]) // ratio)
    ]


def _sources(now_LW: Tensor, before_LW: Tensor | None, ratio: int) -> tuple[Tensor, Tensor]:
    """Keys and scores that make a row; with overlap those of the block before come first.

    With overlap a token has two keys and two scores: the first of the block before, the second of
    the block itself.
    """
    key_LE, score_LE = now_LW.chunk(2, dim=-1)
    if ratio != OVERLAPPED_RATIO:
        return key_LE, score_LE
    key_LD, score_LD = key_LE.chunk(2, dim=-1)[1], score_LE.chunk(2, dim=-1)[1]
    if before_LW is None:
        return key_LD, score_LD
    key_before_LE, score_before_LE = before_LW.chunk(2, dim=-1)
    return (
        torch.cat((key_before_LE.chunk(2, dim=-1)[0], key_LD)),
        torch.cat((score_before_LE.chunk(2, dim=-1)[0], score_LD)),
    )


def _rotate(x_D: Tensor, cosine_K: Tensor, sine_K: Tensor) -> Tensor:
    tail = x_D[-cosine_K.shape[0] :]
    even, odd = tail[::2], tail[1::2]
    cosine, sine = cosine_K[::2], sine_K[::2]
    turned = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1)
    return torch.cat((x_D[: -cosine_K.shape[0]], turned.flatten()))
