"""What is public: the names in `__all__` of modules without an underscore."""

import functools
import importlib
import inspect
import pkgutil

import attnpy

# Their functions have the signatures of others' libraries, which have to be there.
FOREIGN = ("attnpy.integrations",)


@functools.cache
def modules():
    """The public modules, without the adapters to other libraries."""
    names = (
        module.name for module in pkgutil.walk_packages(attnpy.__path__, "attnpy.")
    )
    own = [name for name in names if "._" not in name and not name.startswith(FOREIGN)]
    return [attnpy, *map(importlib.import_module, own)]


@functools.cache
def objects():
    """The public functions and classes, each by one name such as blocks.Encoder."""
    found = {}
    for module in modules():
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if callable(thing) and thing not in found.values():
                found[f"{module.__name__}.{name}".removeprefix("attnpy.")] = thing
    return found


@functools.cache
def classes():
    return {name: thing for name, thing in objects().items() if inspect.isclass(thing)}


@functools.cache
def callables():
    """The public functions and the methods of public classes."""
    found = dict(objects())
    for name, kind in classes().items():
        for method, thing in inspect.getmembers(kind, callable):
            if not method.startswith("_") or method == "__call__":
                found[f"{name}.{method}"] = thing
    return found


def parameters(thing):
    """The names of the parameters of a function, a method or a class."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):  # some of Python's own
        return []
    return [name for name in signature.parameters if name not in ("self", "cls")]
