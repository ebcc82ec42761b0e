"""Where this program imports from when it imports Ferrule: what is put on the path later is for the user's own code."""

import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    # Python looks for a module to run, and has put the working directory first. Where it is Ferrule that is run, and
    # no program that imports it, all that is imported from here on comes from where Ferrule was installed.
    _module = sys.orig_argv[-len(sys.argv)]
    if _module.startswith("-"):  # options in one word, such as `-Bmferrule`: `m` and the module end it
        _module = _module[_module.find("mferrule") + 1 :]
    if _module.partition(".")[0] == "ferrule":
        del sys.path[0]

_entries: list[object] = [*sys.path]  # which may hold anything: what is no text leads nowhere
IMPORT_PATH = tuple(entry for entry in _entries if isinstance(entry, str))
"""The path of imports by which Ferrule was found, and with it what it needs."""


def load_what_looks_further() -> None:
    """Load, before a folder of somebody else's is on the path, what searches it for more than it needs.

    Pydantic loads its plugins once, by entry points of whatever stands on the path then. Python's `copy` and `pickle`
    try a module `org`, which only Jython has.
    """
    import copy  # noqa: F401
    import pickle  # noqa: F401

    from pydantic import TypeAdapter

    TypeAdapter(int)
