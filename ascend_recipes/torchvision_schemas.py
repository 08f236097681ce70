"""Lets torchvision import where its compiled extension cannot load.

vLLM's multimodal model modules import torchvision even for text. Its wheels are built beside a
CUDA build of torch; next to another build the extension does not load, and the import fails with
"operator torchvision::nms does not exist", because its Python part registers meta kernels for
operators that only the extension defines. With the schemas defined first, the Python part
(transforms) works. The operators themselves stay without a kernel and raise when called.
"""

import importlib.util
from functools import cache
from pathlib import Path

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[torch.library.Library] = []
"""Keeps the definitions alive: a library that is collected takes its schemas with it."""


@cache
def define_missing_schemas() -> bool:
    """Define torchvision's operator schemas unless its extension provides them.

    Returns:
        Whether anything was defined; false where torchvision is absent or works by itself.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or _extension_loads(Path(spec.origin).parent):
        return False
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _libraries.append(library)
    return True


def _extension_loads(package: Path) -> bool:
    for extension in sorted(package.glob("_C*.so")):
        try:
            torch.ops.load_library(str(extension))
        except OSError:
            return False
        return True
    return False
