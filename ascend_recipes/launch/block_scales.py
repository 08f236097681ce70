"""Shapes of float8 weights in blocks, of 4-bit pairs, and of the scales beside them."""

from collections.abc import Mapping

BLOCK_FORMAT = "fp8_fp4"
"""Row of `registry/quantization` that is stored so."""

_WEIGHT, _SCALE = ".weight", ".scale"
_BLOCK, _SHARED, _IN_BYTE = 128, 32, 2
_FLOAT8, _PAIRS = "F8_E4M3", "I8"

Shape = tuple[int, ...]


def stored_shapes(shapes: Mapping[str, Shape], types: Mapping[str, str]) -> dict[str, Shape]:
    """What files hold for tensors of a float checkpoint.

    Args:
        shapes: of the float tensors, by name.
        types: element types of the stored tensors, by name.

    Returns:
        Shapes of weights as they are stored, and of the scales that they need.
    """
    stored = dict(shapes)
    for name, shape in shapes.items():
        kind = types.get(name)
        if not name.endswith(_WEIGHT) or kind not in (_FLOAT8, _PAIRS):
            continue
        rows, columns = shape
        scale = f"{name.removesuffix(_WEIGHT)}{_SCALE}"
        if kind == _FLOAT8:
            stored[scale] = (-(-rows // _BLOCK), -(-columns // _BLOCK))
        else:
            stored[name] = (rows, columns // _IN_BYTE)
            stored[scale] = (rows, columns // _SHARED)
    return stored
