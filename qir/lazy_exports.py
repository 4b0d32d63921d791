"""Public names of a package whose modules are imported when a name is first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec


def lazy_exports(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Returns what finds a name of a package; `homes` has the module that defines each name.

    A module of the package itself may not have the name of something that it exports.
    """

    def find(name: str) -> object:
        if name not in homes:
            # `import qir` alone imports no other module, and users write `qir.inspect.sensitive`.
            if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
                return import_module(f"{package}.{name}")
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return find


__all__ = ["lazy_exports"]
