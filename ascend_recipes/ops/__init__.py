"""Operations: what model and backend code calls instead of vendor symbols."""

from ascend_recipes.ops.table import OperationTable, binding_key, load_function

operations = OperationTable()
"""The table of this process; `apply` binds it as the plan says."""

__all__ = ["OperationTable", "binding_key", "load_function", "operations"]
