"""What `quant_model_description.json` says: how ModelSlim stored each tensor of a checkpoint.

Schemes by their names in vllm-ascend vllm_ascend/quantization/methods (`register_scheme`) at
182b75ea; element types by their names in safetensors headers.
"""

DESCRIPTION_FILE = "quant_model_description.json"
"""Stands beside the weights."""

FLOAT = "FLOAT"
INT8_DYNAMIC = "W8A8_DYNAMIC"
"""int8 weights with a scale a channel, int8 activations with a scale a token."""

INT4_DYNAMIC = "W4A8_DYNAMIC"
"""Of routed experts: int4 weights, two in a byte, with a scale a channel; activations as above."""

NATIVE_SCHEMES = (FLOAT, INT8_DYNAMIC, INT4_DYNAMIC)
"""Those that the native runtime reads."""

FLOAT_TYPES = frozenset({"BF16", "F16", "F32", "F64"})

_INT8 = frozenset({"I8"})
_PACKED = frozenset({"I8", "U8", "I32"})
_FLOAT8 = frozenset({"F8_E4M3", "I8", "U8"})

STORED_TYPES: dict[str, frozenset[str]] = {
    FLOAT: FLOAT_TYPES,
    "W8A8": _INT8,
    INT8_DYNAMIC: _INT8,
    "W8A8_MIX": _INT8,
    "W8A16": _INT8,
    INT4_DYNAMIC: _PACKED,
    "W4A16": _PACKED,
    "W4A4_DYNAMIC": _PACKED,
    "W4A4_FLATQUANT_DYNAMIC": _PACKED,
    "W8A8_MXFP8": _FLOAT8,
    "W8A8FP8_DYNAMIC": _FLOAT8,
    "W4A8_MXFP": _PACKED | _FLOAT8,
    "W4A16_MXFP4": _PACKED | _FLOAT8,
    "W4A4_MXFP4": _PACKED | _FLOAT8,
    "W4A4_MXFP4_FLATQUANT": _PACKED | _FLOAT8,
}
"""Scheme of a weight -> element types that may hold it."""

UNPACKED = frozenset({FLOAT, "W8A8", INT8_DYNAMIC, "W8A8_MIX", "W8A16"})
"""Schemes that leave a weight its shape."""
