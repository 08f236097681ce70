"""Runs inside the vendor environment, with the real torch_npu: schemas, binding, Meta kernels.

`python child.py request.json response.json`. The request holds schema definitions to add, operator
names and calls; see `environment.ask`. Imports only torch and torch_npu.
"""

import json
import sys
from pathlib import Path

import torch
import torch_npu
from torch.utils._python_dispatch import TorchDispatchMode


class Bound(Exception):  # noqa: N818 - a signal, not an error
    """The dispatcher has accepted the arguments and was about to call a kernel."""


class StopAtKernel(TorchDispatchMode):
    """Interrupts every operator after its arguments were bound to the schema."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise Bound


def value_of(item):
    """Argument from its JSON form; tensors stand on the meta device."""
    if isinstance(item, list):
        return [value_of(part) for part in item]
    if not isinstance(item, dict):
        return item
    if "dtype" in item and "shape" not in item:
        return getattr(torch, item["dtype"])
    dtype = getattr(torch, item["dtype"])
    return torch.empty_strided(item["shape"], item["stride"], dtype=dtype, device="meta")


def description_of(value):
    """Shapes and dtypes of a result, tensors in a flat list."""
    if value is None:
        return []
    if isinstance(value, torch.Tensor):
        return [{"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}]
    return [part for item in value for part in description_of(item)]


def has_meta(name):
    keys = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


def function_of(call):
    namespace, _, operator = call["operator"].partition("::")
    packet = getattr(getattr(torch.ops, namespace), operator)
    return getattr(packet, call["overload"]) if call["overload"] else packet


def why_unbound(call, args, kwargs):
    """What the dispatcher says about the arguments; empty if it takes them."""
    try:
        with StopAtKernel():
            function_of(call)(*args, **kwargs)
    except Bound:
        return ""
    except Exception as error:  # noqa: BLE001 - whatever the dispatcher says is the result
        return f"{type(error).__name__}: {error}"
    return "no tensor among the arguments"


def answer(call):
    args = [value_of(item) for item in call["args"]]
    kwargs = {key: value_of(item) for key, item in call["kwargs"].items()}
    if error := why_unbound(call, args, kwargs):
        return {"bound": False, "error": error, "outputs": None}
    if not has_meta(call["operator"]):
        return {"bound": True, "error": "", "outputs": None}
    try:
        outputs = description_of(function_of(call)(*args, **kwargs))
    except Exception as error:  # noqa: BLE001
        return {"bound": True, "error": f"{type(error).__name__}: {error}", "outputs": None}
    return {"bound": True, "error": "", "outputs": outputs}


def define(schemas):
    libraries = []
    for schema in schemas:
        namespace, _, definition = schema.partition("::")
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(definition)
        libraries.append(library)
    return libraries


def main(request_path, response_path):
    request = json.loads(Path(request_path).read_text())
    libraries = define(request["definitions"])
    schemas = {
        name: [str(item) for item in torch._C._jit_get_schemas_for_operator(name)]
        for name in request["operators"]
    }
    registered = torch._C._dispatch_get_all_op_names()
    response = {
        "schemas": schemas,
        "meta": {name: has_meta(name) for name, found in schemas.items() if found},
        "calls": [answer(call) for call in request["calls"]],
        "registered": sorted(name for name in registered if name.startswith("npu::")),
        "torch_npu": torch_npu.__version__,
        "num_defined": len(libraries),
    }
    Path(response_path).write_text(json.dumps(response))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
