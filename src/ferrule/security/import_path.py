"""The import path that found Ferrule. Folders put on the path later are for the user's own code."""

import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    # Python has put the working directory first. If Python runs Ferrule itself, and no program that imports Ferrule,
    # all further imports come from the place of the installed Ferrule.
    _module = sys.orig_argv[-len(sys.argv)]
    if _module.startswith("-"):  # options in one word, such as `-Bmferrule`
        _module = _module[_module.find("mferrule") + 1 :]
    if _module.partition(".")[0] == "ferrule":
        del sys.path[0]

_entries: list[object] = [*sys.path]  # it may hold anything; only texts lead somewhere
IMPORT_PATH = tuple(entry for entry in _entries if isinstance(entry, str))
"""The import path that found Ferrule and its dependencies."""


def load_searching_modules() -> None:
    """Load the modules that search the whole import path, before a foreign folder is on it.

    Pydantic loads its plugins once, by the entry points of the path of that moment. Python's `copy` and `pickle` try a
    module `org`, which only Jython has.
    """
    import copy  # noqa: F401
    import pickle  # noqa: F401

    from pydantic import TypeAdapter

    TypeAdapter(int)
