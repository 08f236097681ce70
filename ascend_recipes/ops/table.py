"""The table through which model and backend code calls operations."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ascend_recipes.findings import recipe_error
from ascend_recipes.schema.operation import Binding, OperationContract

Function = Callable[..., Any]


class OperationTable:
    """Operations by name, each served by the one binding that the plan chose.

    `operations.rms_norm(x, weight, epsilon=1e-6)` calls the binding and counts the call.
    """

    def __init__(self) -> None:
        self._functions: dict[str, Function] = {}
        self._chosen: dict[str, str] = {}
        self._calls: dict[str, int] = {}

    def bind(self, bindings: Mapping[str, str], contracts: Mapping[str, OperationContract]) -> None:
        """Bind operations, replacing what was bound; counts start at zero.

        Args:
            bindings: Operation name -> `<provider>.<symbol without namespace>`.
            contracts: Contracts that list the bindings, by operation name.

        Raises:
            RecipeError: unknown operation, or a binding that its contract does not list.
        """
        functions = {
            name: _load_binding(name, key, contracts[name]) for name, key in bindings.items()
        }
        self._functions = functions
        self._chosen = dict(bindings)
        self._calls = dict.fromkeys(functions, 0)
        self._publish()

    def __getattr__(self, name: str) -> Function:
        """Reached only for names that are not bound."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise recipe_error(
            "operation.unbound",
            at=f"operations.{name}",
            name=name,
            bound=sorted(self._functions) or "-",
        )

    def bound(self) -> dict[str, str]:
        """Chosen binding of each operation."""
        return dict(self._chosen)

    def calls(self) -> dict[str, int]:
        """How often each bound operation was called in this process."""
        return dict(self._calls)

    @contextmanager
    def override(self, name: str, wrap: Callable[[Function], Function]) -> Iterator[None]:
        """Replace a bound operation by `wrap(binding)` for a while; for experiments and tests."""
        binding = self._functions[name]
        self._functions[name] = wrap(binding)
        self._publish()
        try:
            yield
        finally:
            self._functions[name] = binding
            self._publish()

    def _publish(self) -> None:
        """Make bound operations plain attributes: a call costs one closure and no lookup here."""
        for name in [key for key in vars(self) if not key.startswith("_")]:
            del self.__dict__[name]
        for name, function in self._functions.items():
            self.__dict__[name] = self._counted(name, function)

    def _counted(self, name: str, function: Function) -> Function:
        calls = self._calls

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return call


def binding_key(binding: Binding) -> str:
    """Name under which a plan chooses the binding."""
    return f"{binding.provider}.{binding.symbol.rsplit('::', 1)[-1]}"


def _load_binding(name: str, key: str, contract: OperationContract) -> Function:
    rows = {binding_key(row): row for row in contract.bindings}
    if key not in rows:
        raise recipe_error(
            "operation.unknown_binding",
            at=f"operations.{name}",
            name=name,
            key=key,
            options=sorted(rows),
        )
    return load_function(rows[key].implementation)


def load_function(path: str) -> Function:
    """Import `module:function`."""
    module, _, attribute = path.partition(":")
    function: Function = vars(import_module(module))[attribute]
    return function
