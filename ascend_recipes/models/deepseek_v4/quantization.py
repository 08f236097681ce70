"""The published format: float8 linear layers in blocks, 4-bit float experts."""

from typing import Any

from ascend_recipes.findings import recipe_error
from ascend_recipes.models.deepseek_v4.native_format import METHOD, QUANTIZATION
from ascend_recipes.quantization.microscaled import BlockFloatConfig


class PublishedFormat(BlockFloatConfig):
    """What vLLM makes of the `quantization_config` of a published checkpoint."""

    @classmethod
    def get_name(cls) -> str:  # type: ignore[override]
        """Name that vLLM gave the format of this family."""
        return METHOD

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "PublishedFormat":
        """Take the section of config.json.

        Raises:
            RecipeError: a field with another value than every published checkpoint has.
        """
        # vLLM has renamed the method by now.
        expected = QUANTIZATION | {"quant_method": METHOD}
        found = {field: config.get(field) for field in expected}
        for field, value in found.items():
            if value not in (expected[field], QUANTIZATION[field]):
                raise recipe_error(
                    "checkpoint.scheme_not_implemented",
                    at="checkpoint.variant",
                    name=f"quantization_config.{field}",
                    scheme=str(value),
                    known=[str(expected[field])],
                )
        return cls()

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: Any, user_quant: str | None, hf_config: Any = None
    ) -> str | None:  # type: ignore[override]
        """The checkpoint calls its format `fp8`, as other models do; the plan says which it is."""
        named = isinstance(hf_quant_cfg, dict) and hf_quant_cfg.get("quant_method")
        return METHOD if user_quant == METHOD and named in ("fp8", METHOD) else None
