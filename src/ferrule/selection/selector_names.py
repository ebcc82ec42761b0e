"""Selectors by their names, for command lines, and all plug-ins by their entry points."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint

from ferrule.errors import DefinitionError
from ferrule.plugins import entry_points
from ferrule.selection._checks import did_you_mean
from ferrule.selection.by_budget import by_budget
from ferrule.selection.keyword import keyword
from ferrule.selection.matching import ToolSelector
from ferrule.selection.pinned import pinned

log = logging.getLogger("ferrule")
_GROUPS = ("ferrule.selectors", "axio.selector")
_WRITTEN_AS = "'keyword:8', 'pinned:read_*,write', 'by_budget:8000', the name of a plug-in, or 'module:attribute'"


def selector_from_name(text: str) -> ToolSelector:
    """Return the selector that a text names. See docs/selection.md#by-name.

        selector = chain(selector_from_name("pinned:read_*"), selector_from_name("keyword:8"))

    Args:
        text: `keyword` or `keyword:LIMIT`, `pinned:NAMES` with commas between them, or `by_budget:TOKENS`; the name of
            an entry point of the groups `ferrule.selectors` and `axio.selector`, on the import path from the time of
            Ferrule's import; or `MODULE:ATTRIBUTE`. An entry point or an attribute is a selector, or makes one when
            called without arguments. Nothing else is imported.

    Raises:
        DefinitionError: The name is unknown (the message has the nearest), a number is invalid, the import fails, or
            the result is no selector.
    """
    if not isinstance(text, str) or not text.strip():  # type: ignore[redundant-expr]
        raise DefinitionError(f"a selector is named by {_WRITTEN_AS}, not {text!r}")
    name, _, rest = text.strip().partition(":")
    if name in _BUILT_IN:
        return _BUILT_IN[name](rest)
    if name in _NEED_CODE:
        raise DefinitionError(
            f"{name!r} takes arguments that a text cannot express: make it in a module of your own, and "
            "name it by 'module:attribute'"
        )
    module = find_module(text)
    return make_selector(text, _find_plug_in(name) if module is None else _from_module(text, module, rest))


def discover_selectors() -> dict[str, ToolSelector]:
    """Return the selectors of all plug-ins by their names, each imported and made. See docs/sources.md#plug-ins.

    They are the entry points that `selector_from_name` finds. The first of a name wins, and `ferrule.selectors` come
    before `axio.selector`. An entry point is left out, with a warning in the log, if it cannot be imported, is no
    selector, or has the name of a built-in selector.
    """
    found: dict[str, ToolSelector] = {}
    seen = {*_BUILT_IN, *_NEED_CODE}
    for point in entry_points(*_GROUPS):
        if point.name in seen:
            log.warning("the selector %r (%s) is left out: its name is taken", point.name, _origins([point]))
            continue
        seen.add(point.name)
        try:
            found[point.name] = make_selector(point.name, _load(point))
        except DefinitionError as error:
            log.warning("a selector is left out: %s", error)
    return found


def find_module(text: str) -> str | None:
    """Return the module that `selector_from_name` would import for a text; `None` for any other kind of name."""
    name, colon, _ = text.strip().partition(":")
    return name if colon and name not in _BUILT_IN and name not in _NEED_CODE else None


def _whole_number(form: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise DefinitionError(f"{form} is written with a whole number, not {text!r}")
    return int(text)


def _keyword(rest: str) -> ToolSelector:
    return keyword(_whole_number("'keyword:8'", rest)) if rest else keyword()


def _pinned_by_name(rest: str) -> ToolSelector:
    return pinned(*(name.strip() for name in rest.split(",") if name.strip()))


def _by_budget_by_name(rest: str) -> ToolSelector:
    return by_budget(_whole_number("'by_budget:8000'", rest))


_BUILT_IN: dict[str, Callable[[str], ToolSelector]] = {
    "keyword": _keyword,
    "pinned": _pinned_by_name,
    "by_budget": _by_budget_by_name,
}
_NEED_CODE = ("chain", "embedding", "hybrid")


def _find_plug_in(name: str) -> object:
    points = entry_points(*_GROUPS)
    found = [point for point in points if point.name == name]
    if not found:
        known = [*_BUILT_IN, *sorted({point.name for point in points})]
        hint = did_you_mean(name, known) or f"; there are {', '.join(map(repr, known))}."
        raise DefinitionError(f"there is no selector {name!r}{hint} A selector is named by {_WRITTEN_AS}")
    if len({point.value for point in found}) > 1:
        raise DefinitionError(
            f"several packages offer a selector {name!r}: {_origins(found)}; name one of them 'module:attribute'"
        )
    return _load(found[0])


def _load(point: EntryPoint) -> object:
    try:
        return point.load()
    except Exception as error:
        raise DefinitionError(
            f"the plug-in {point.name!r} ({point.value}) cannot be imported: {_format_error(error)}"
        ) from error


def _origins(points: Iterable[EntryPoint]) -> str:
    return ", ".join(f"{point.value}{f' of {point.dist.name}' if point.dist else ''}" for point in points)


def _from_module(text: str, module: str, path: str) -> object:
    try:
        found: object = importlib.import_module(module)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            raise DefinitionError(
                f"{text!r}: there is no module {module!r}; a selector is named by {_WRITTEN_AS}"
            ) from None
        raise DefinitionError(f"{text!r} cannot be imported: {_format_error(error)}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise DefinitionError(f"{text!r}: {found!r} has no attribute {part!r}")
        found = getattr(found, part)
    return found


def _format_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def make_selector(text: str, found: object) -> ToolSelector:
    """Return the selector for `text`: the object found there, or the result of its class or function.

    Raises:
        DefinitionError: It is no selector.
    """
    made = found
    if isinstance(found, type) or (callable(found) and not isinstance(found, ToolSelector)):
        try:
            made = found()
        except Exception as error:
            raise DefinitionError(
                f"{text!r}: {found!r} is called without arguments, and raised {_format_error(error)}"
            ) from error
    if isinstance(made, type) or not isinstance(made, ToolSelector):
        raise DefinitionError(f"{text!r} is {made!r}, and no selector: it has no async select(messages, tools)")
    return made
