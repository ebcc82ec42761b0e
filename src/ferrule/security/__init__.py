"""Analysis of input from outside, without knowledge of any call: secrets, names, characters, schemas, patterns.

These names are for handlers and guards of your own; see docs/guards.md#open-the-url-safely.
"""

TYPE_CHECKING = False  # this file imports nothing: `import_path`, which cleans the path of imports, must come first
if TYPE_CHECKING:
    from ferrule.security.commands import CommandPattern, has_match, is_allowed, read_line
    from ferrule.security.http import NotReachableError, async_client, client
    from ferrule.security.paths import open_inside
    from ferrule.security.patterns import ForeignSchema

__all__ = [
    "CommandPattern",
    "ForeignSchema",
    "NotReachableError",
    "async_client",
    "client",
    "has_match",
    "is_allowed",
    "open_inside",
    "read_line",
]

_MODULES = {
    "CommandPattern": "commands",
    "ForeignSchema": "patterns",
    "NotReachableError": "http",
    "async_client": "http",
    "client": "http",
    "has_match": "commands",
    "is_allowed": "commands",
    "open_inside": "paths",
    "read_line": "commands",
}


def __getattr__(name: str) -> object:
    # The kernel imports this package, and a program pays only for the analysis that it uses.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
