"""Loads the user's modules and the objects in them. The folder of a file comes last on the import path.

A folder in which a model writes may hold a `json.py`, or the metadata of a package that makes Pydantic import
something. The last place on the path replaces no installed module, and Pydantic has loaded its plug-ins by then.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ferrule import Runner, Tool, Toolset
from ferrule.cli.usage import UsageError, suggest
from ferrule.security.import_path import load_searching_modules
from ferrule.sources.python import load_module_file

_PLACE = re.compile(
    r"(?:(?P<file>.+?\.py)|(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*))(?::(?P<attribute>[\w.]+))?", re.DOTALL
)
_T = TypeVar("_T")


def load_object(place: str) -> Any:
    """Return the attribute that a place names. Without an attribute, return the only runner or toolset of the module,
    else the module.

    Raises:
        UsageError: It does not exist, or cannot be imported.
    """
    found = _PLACE.fullmatch(place)
    if found is None:
        raise UsageError(f"{place!r} names no tools: write a file such as tools.py, a module, or either with :NAME")
    module = load_file(found["file"]) if found["file"] else load_module(found["module"])
    if found["attribute"] is None:
        return _choose_object(module, place)
    try:
        return functools.reduce(getattr, found["attribute"].split("."), module)
    except AttributeError:
        names = [name for kind in (Runner, Toolset, Tool) for name in _find_objects(module, kind)]
        hint = f"; {suggest(found['attribute'], names)}" if names else ""
        raise UsageError(f"there is no {found['attribute']!r} in {place.rpartition(':')[0]!r}{hint}") from None
    except Exception as error:  # a property, or a module's own __getattr__
        raise _import_error(place, error) from error


def _choose_object(module: ModuleType, place: str) -> Any:
    for kind in (Runner, Toolset):
        found = _find_objects(module, kind)
        if len(found) > 1:
            names = ", ".join(f"{place}:{name}" for name in found)
            raise UsageError(f"{place!r} has several {kind.__name__}s: choose one of {names}")
        if found:
            return next(iter(found.values()))
    return module


def _find_objects(module: ModuleType, kind: type[_T]) -> dict[str, _T]:
    """Return the objects of this kind by name, each object once."""
    found: dict[str, _T] = {}
    for name, value in vars(module).items():
        if isinstance(value, kind) and not any(value is other for other in found.values()):
            found[name] = value
    return found


def list_objects(places: Iterable[str], kind: type[_T]) -> list[_T]:
    """Return the objects of this kind in the modules of some places, in their order. The modules are loaded already."""
    found: list[_T] = []
    for place in places:
        if (match := _PLACE.fullmatch(place)) is not None:
            name = f"file:{Path(match['file']).absolute()}" if match["file"] else match["module"]
            module = sys.modules.get(name)
            found += [] if module is None else _find_objects(module, kind).values()
    return found


def load_file(name: str) -> ModuleType:
    """Return the module in a Python file. It may import the modules in the same folder.

    Raises:
        UsageError: There is no such file, or it cannot be imported.
    """
    file = Path(name)
    if not file.is_file():
        raise UsageError(f"there is no file {name!r} in {str(file.absolute().parent)!r}")
    if file.suffix != ".py":
        raise UsageError(f"{name!r} is not a Python file: its name must end in .py")
    _append_to_path(str(file.absolute().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for the command's own output
            return load_module_file(file)
    except (Exception, SystemExit) as error:
        raise _import_error(name, error) from error


def load_module(name: str) -> ModuleType:
    """Return the module with this name, from the working directory or installed.

    Raises:
        UsageError: There is none or one in both places, or it cannot be imported.
    """
    allow_import_from_here(name)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise UsageError(
                f"there is no module {name!r}: write a module that can be imported here, or a file such as tools.py"
            ) from None
        raise _import_error(name, error) from error


def allow_import_from_here(name: str) -> None:
    """Allow the import of a module in the working directory.

    Raises:
        UsageError: An installed module has the same name.
    """
    root = name.partition(".")[0]
    here = None if root == "ferrule" else PathFinder.find_spec(root, [os.getcwd()])
    if here is None:
        return
    other = _find_spec(root)
    if other is None or other.origin is None:  # a namespace package, which has parts in several folders
        _append_to_path(os.getcwd())
    elif here.origin is not None and os.path.realpath(here.origin) != os.path.realpath(other.origin):
        raise UsageError(
            f"there are two modules {name!r}: {here.origin!r} in the working directory, and {other.origin!r}. Write "
            "the path of the file, or install the package of this directory in editable mode (pip install -e .)"
        )


def _find_spec(root: str) -> ModuleSpec | None:
    with contextlib.suppress(ValueError):  # a module without one, such as `__main__`
        return importlib.util.find_spec(root)
    return None


def _append_to_path(folder: str) -> None:
    load_searching_modules()
    if folder not in sys.path:
        sys.path.append(folder)


def _import_error(name: str, error: BaseException) -> UsageError:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        where = ""  # its own text has the line
    return UsageError(f"cannot import {name!r}: {type(error).__name__}: {error}{where}")
