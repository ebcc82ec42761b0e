"""The selector that an option names: `--select` of `ferrule run`, and `--by` of `ferrule select`."""

from __future__ import annotations

from ferrule import DefinitionError
from ferrule.cli import find
from ferrule.cli.load import find_here
from ferrule.cli.usage import UsageError
from ferrule.selection import ToolSelector, selector_from_name
from ferrule.selection.selector_names import find_module, make_selector


def selector_at(option: str, text: str) -> ToolSelector:
    """Return the selector of a text by `ferrule.selection.selector_from_name`, or the one in a file: `choice.py:best`.

    Raises:
        UsageError: It does not exist, or is no selector.
    """
    try:
        if text.partition(":")[0].endswith(".py"):
            return make_selector(text, find.object_at(text))
        if (module := find_module(text)) is not None:
            find_here(module)
        return selector_from_name(text)
    except DefinitionError as error:
        raise UsageError(f"{option}: {error}") from None
