"""Tools of Python files and modules.

    runner = Runner(python("tools/"))

See docs/sources.md#files-and-modules.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from ferrule import DefinitionError, Tool, Toolset
from ferrule.plugins import fault_of
from ferrule.sources._objects import to_toolset
from ferrule.sources._report import Imported, ImportedTool, LeftOut, Report, make_entry
from ferrule.values.content import safe_str

__all__ = ["load_module_file", "python"]


def python(*places: str | os.PathLike[str] | ModuleType) -> Imported:
    """Return the tools of folders, files and modules. See docs/sources.md#files-and-modules.

    For a module these are its list `TOOLS`, else its tools, else its own public functions. A named file or module must
    be usable; an unusable file found in a folder is left out, with the reason in the report.

    Args:
        places: A module, or its name (`"shop.tools"`); a file, or a folder of files. The path of a file or folder has a
            `/` or ends in `.py` if it is text (`"tools/"`). In a folder all files count, except names that begin with
            `_` or `.`. Files are loaded by themselves: nothing is put on the path of imports, so they can only import
            installed packages.

    Raises:
        DefinitionError: A place does not exist or cannot be imported, has an invalid tool, or two tools have one name.
    """
    if not places:
        raise DefinitionError("python(…) takes folders, files and modules: python('tools/')")
    tools: list[Tool] = []
    entries: list[ImportedTool] = []
    left_out: list[LeftOut] = []
    for place in places:
        for where, found in _load_tools(place, left_out):
            tools += found
            entries += [make_entry(tool, where) for tool in found]
    return Imported(tools, Report(tuple(entries), tuple(left_out)))


def _load_tools(place: str | os.PathLike[str] | ModuleType, left_out: list[LeftOut]) -> Iterator[tuple[str, Toolset]]:
    if isinstance(place, ModuleType):
        yield place.__name__, to_toolset(place)
    elif isinstance(place, str) and not (place.endswith(".py") or "/" in place or os.sep in place):
        yield place, to_toolset(_import_module(place))
    elif isinstance(place, str | os.PathLike):
        path = Path(place)
        if not path.is_dir():
            if not path.is_file():
                raise DefinitionError(f"{os.fspath(place)!r} is no Python file and no folder")
            yield os.fspath(place), to_toolset(_load_file(path))
            return
        for file in sorted(file for file in path.glob("*.py") if file.name[0] not in "._" and not file.is_dir()):
            try:
                yield str(file), to_toolset(_load_file(file))
            except Exception as error:  # the file may have anything in the place of tools
                left_out.append(LeftOut(str(file), fault_of(error)))
    else:
        raise DefinitionError(f"python(…) takes folders, files and modules, not {place!r}")


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        hint = (
            ""
            if not isinstance(error, ModuleNotFoundError)
            else f"; a folder or a file is written '{name}/', './{name}.py'"
        )
        raise DefinitionError(f"the module {name!r} {_describe_import_error(error)}{hint}") from error


def _load_file(file: Path) -> ModuleType:
    """Return the module in a file.

    Raises:
        DefinitionError: It cannot be imported.
    """
    if file.suffix != ".py":
        raise DefinitionError(f"{str(file)!r} is no Python file: its name has to end in .py")
    try:
        return load_module_file(file)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # anything that ends an import, such as a SystemExit, must not end the program here
        raise DefinitionError(f"{str(file)!r} {_describe_import_error(error)}") from error


def load_module_file(file: Path) -> ModuleType:
    """Return the module in a Python file, loaded anew, under a name that no import statement can have. See
    docs/sources.md#files-and-modules.

    Raises:
        BaseException: The module's code raised it.
    """
    name = f"file:{file.absolute()}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # type hints are looked up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _describe_import_error(error: BaseException) -> str:
    """Return the error, with the line of the code that raised it; the text of a `SyntaxError` already has that."""
    frames = traceback.extract_tb(error.__traceback__)
    module_frames = [frame for frame in frames if frame.filename != __file__ and "importlib" not in frame.filename]
    has_line = module_frames and not isinstance(error, SyntaxError)
    where = f" ({module_frames[-1].filename}, line {module_frames[-1].lineno})" if has_line else ""
    return f"cannot be imported: {type(error).__name__}: {safe_str(error)}{where}"
