"""CPU kernels for NPU operators, under the vendor's schemas, so that bindings run unchanged.

An independent second implementation: it consumes the vendor's layouts, refuses what the vendor's
documentation refuses, and never imports the references of `ascend_recipes.ops`. It is for
correctness and continuous integration; it says nothing about speed on hardware.
"""

from ascend_recipes.emulation.refusal import OperatorRefusedError
from ascend_recipes.emulation.register import install, operator_names

__all__ = ["OperatorRefusedError", "install", "operator_names"]
