"""The selector that an option names: `--select` of `ferrule run`, and `--by` of `ferrule select`."""

from __future__ import annotations

from ferrule import DefinitionError
from ferrule.cli.load import allow_import_from_here, load_object
from ferrule.cli.usage import UsageError
from ferrule.selection import ToolSelector, selector_from_name
from ferrule.selection.selector_names import find_module, make_selector


def load_selector(option: str, text: str) -> ToolSelector:
    """Return the selector that `ferrule.selection.selector_from_name` finds, or the one in a file: `choice.py:best`.

    Raises:
        UsageError: It does not exist, or is no selector.
    """
    try:
        if text.partition(":")[0].endswith(".py"):
            return make_selector(text, load_object(text))
        if (module := find_module(text)) is not None:
            allow_import_from_here(module)
        return selector_from_name(text)
    except DefinitionError as error:
        raise UsageError(f"{option}: {error}") from None
