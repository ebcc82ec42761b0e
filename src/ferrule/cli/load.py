"""Modules of the user, found by their file. The files beside them come last on the import path.

A folder in which a model writes may hold a `json.py`, or a package's metadata that has Pydantic import something. The
last place on the path replaces nothing that is installed, and Pydantic has its plugins by then.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from ferrule.cli.usage import UsageError
from ferrule.security.import_path import load_searching_modules
from ferrule.sources.python import load_module_file


def load_file(name: str) -> ModuleType:
    """Return the module in a Python file. It may import the modules beside it.

    Raises:
        UsageError: There is no such file, or it cannot be imported.
    """
    file = Path(name)
    if not file.is_file():
        raise UsageError(f"there is no file {name!r} (looked in {str(file.absolute().parent)!r})")
    if file.suffix != ".py":
        raise UsageError(f"{name!r} is no Python file: its name has to end in .py")
    _append(str(file.absolute().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for the command's own output
            return load_module_file(file)
    except (Exception, SystemExit) as error:
        raise broken(name, error) from error


def load_module(name: str) -> ModuleType:
    """Return the module of this name, from the working directory or installed.

    Raises:
        UsageError: There is none or one in both places, or it cannot be imported.
    """
    find_here(name)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {name!r}: give a module that can be imported from here, or a file such as tools.py"
            ) from None
        raise broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise broken(name, error) from error


def find_here(name: str) -> None:
    """Allow the import of a module in the working directory, unless another module has its name.

    Raises:
        UsageError: Another module has the name.
    """
    root = name.partition(".")[0]
    here = None if root == "ferrule" else PathFinder.find_spec(root, [os.getcwd()])
    if here is None:
        return
    other = _spec_elsewhere(root)
    if other is None or other.origin is None:  # a namespace package, which has parts in several folders
        _append(os.getcwd())
    elif here.origin is not None and os.path.realpath(here.origin) != os.path.realpath(other.origin):
        raise UsageError(
            f"{name!r} is in the working directory, {here.origin!r}, and elsewhere, {other.origin!r}: give the file "
            "that you mean, or install the package of this directory in editable mode (pip install -e .)"
        )


def _spec_elsewhere(root: str) -> ModuleSpec | None:
    with contextlib.suppress(ValueError):  # a module without one, such as `__main__`
        return importlib.util.find_spec(root)
    return None


def _append(folder: str) -> None:
    load_searching_modules()
    if folder not in sys.path:
        sys.path.append(folder)


def broken(name: str, error: BaseException) -> UsageError:
    """Return the error for an import that failed."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        where = ""  # its own text says where
    return UsageError(f"{name!r} could not be imported: {type(error).__name__}: {error}{where}")
