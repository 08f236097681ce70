"""The `quant` and `checkpoint` sections: which weights, in which format."""

from typing import Annotated, Literal

from pydantic import Field

from ascend_recipes.schema.base import Count, Name, Spec


class NoQuantSpec(Spec):
    """Weights in the model's own float dtype."""

    kind: Literal["none"]


class QuantSpec(Spec):
    """Quantized weights."""

    kind: Literal["w8a8", "w4a8", "fp8_block", "w8a8_mxfp8", "w4a4_mxfp4", "w4a8_mxfp4", "fp8_fp4"]
    weight_layout: Literal["nd", "nz"] = "nz"
    """Memory order of weights: plain, or the fractal order that matrix units read fastest."""


AnyQuantSpec = Annotated[NoQuantSpec | QuantSpec, Field(discriminator="kind")]


class CheckpointSpec(Spec):
    """Where weights come from and how they are read."""

    variant: Name
    """Checkpoint of the model row, for example `bf16`."""
    path: str | None = None
    """Folder of the weights; none looks below the site's weight roots."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Dtype of activations and unquantized weights; float32 is for emulation only."""
    trust_remote_code: bool = False
    """Run Python code that a checkpoint carries."""
    load_threads: Count | None = None
    """Threads that read weight files; none reads them one after another."""
    rope_factor: Annotated[float, Field(ge=1.0)] = 1.0
    """YaRN factor by which the context is stretched beyond what the model was trained for."""
    load_strategy: Literal["default", "lazy", "prefetch", "eager"] = "default"
    """How safetensors files are read."""
