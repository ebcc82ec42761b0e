"""The words of one API as a table, and the functions that read the tables of all APIs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

from ferrule.definition.tool import Tool, to_wire_name
from ferrule.errors import DefinitionError
from ferrule.providers import Stop
from ferrule.providers._text_calls import holds_text_call
from ferrule.providers._wire import NAME, get_fields, list_ids, mark_repeats, read_arguments, read_name
from ferrule.values.call import ToolCall

ResponseT = TypeVar("ResponseT")
_COMPLETE: tuple[Stop, ...] = ("end", "calls")


@dataclass(frozen=True, kw_only=True)
class Api:
    """The words of one API."""

    title: str
    """The name in errors."""
    stops: Mapping[str, Stop]
    """The meanings of its words for the end of a turn."""
    end_field: str
    """The field with such a word. It is null before the end."""
    choices: Mapping[str, str]
    """Its words for "auto", "required" and "none". If a word is missing, the API has no such choice."""
    forces: bool = True
    """Whether one tool can be forced."""
    narrows: bool = False
    """Whether a choice can name the tools that may be called."""
    one_at_a_time: bool = False
    """Whether it has a switch against parallel calls."""
    remedies: Mapping[str, str] = field(default_factory=dict)
    """The alternatives, by the missing feature: `none`, `choice` or `parallel`."""
    images: frozenset[str] = frozenset()
    """The media types of images that a result may hold."""
    names: re.Pattern[str] = NAME
    """The names of called tools that it accepts in a history."""


class End(NamedTuple):
    """The end of a response.

    Attributes:
        word: The API's own word; empty if it has none.
        open: Whether the API reports that the response has not ended yet.
        calls: Whether the response has calls.
        refused: Whether the response has a refusal, besides the word of an ordinary end.
        details: The API's explanation besides the word.
    """

    word: str
    open: bool = False
    calls: bool = False
    refused: bool = False
    details: str = ""


def classify_stop(api: Api, end: End) -> Stop:
    """Return why the model stopped."""
    stop: Stop = "other" if end.open else api.stops.get(end.word, "other") if end.word else "end"
    if stop not in _COMPLETE:
        return stop
    if end.calls:
        return "calls"
    if stop == "calls":
        return "malformed"
    return "refused" if end.refused else "end"


def explain_stop(api: Api, end: End) -> str | None:
    """Return why the answer is missing or incomplete, in the API's own words if it has some; `None` if the model ended
    or made calls."""
    stop = classify_stop(api, end)
    if stop in _COMPLETE:
        return None
    if end.details.strip():
        return end.details
    if end.open:
        return _no_end(api, end)
    if end.word.strip() and api.stops.get(end.word) not in _COMPLETE:
        return end.word
    if stop == "refused":
        return "the model refused"
    if stop == "other":
        return f"the turn ended for a reason that is not known here ({end.word!r})"
    return f"it says {end.word!r}, and there is no call"


class ReadStop(Protocol):
    """The function `stop` of a provider module."""

    def __call__(self, response: Any, tools: Iterable[Tool] = ()) -> Stop: ...


class ReadReason(Protocol):
    """The function `reason` of a provider module."""

    def __call__(self, response: Any, tools: Iterable[Tool] = ()) -> str | None: ...


def make_stop_readers(
    api: Api, end: Callable[[ResponseT], End], text: Callable[[ResponseT], str]
) -> tuple[ReadStop, ReadReason]:
    """Make the functions `stop` and `reason` of a provider module from functions that read a response's end and its
    text."""

    def stop(response: Any, tools: Iterable[Tool] = ()) -> Stop:
        """Return why the model stopped. With the offered `tools`, JSON in the text that calls one is `"malformed"`
        too."""
        found = classify_stop(api, end(response))
        return "malformed" if found == "end" and holds_text_call(text(response), tools) else found

    def reason(response: Any, tools: Iterable[Tool] = ()) -> str | None:
        """Return why the answer is missing or incomplete; `None` if the model ended or made calls."""
        found = end(response)
        if classify_stop(api, found) == "end" and holds_text_call(text(response), tools):
            return "it wrote a call as text, and there is no call"
        return explain_stop(api, found)

    return stop, reason


def no_state(response: object) -> dict[str, Any]:
    """Return an empty dict: this API needs only the messages."""
    return {}


_ENDS_EARLY: Mapping[Stop, str] = MappingProxyType(
    {
        "pause": "the turn was paused",
        "cut": "the turn was cut off",
        "malformed": "the turn was malformed",
        "refused": "the turn was stopped by a filter or a refusal",
        "other": "the turn ended in an error",
    }
)


def find_turn_problem(api: Api, end: End) -> str | None:
    """Return the `problem` of all calls of a turn; `None` if the turn came to its end."""
    if end.open:
        return not_run_problem(_no_end(api, end))
    stop = api.stops.get(end.word)
    if stop in _COMPLETE or not end.word:
        return None
    why = "the turn ended for a reason that is not known here" if stop is None else _ENDS_EARLY[stop]
    return not_run_problem(f"{why} ({end.word!r})")


def _no_end(api: Api, end: End) -> str:
    return f"the turn has no end yet (its {api.end_field} is {repr(end.word) if end.word else 'null'})"


def not_run_problem(why: str) -> str:
    """Return the `problem` of a call that must not run."""
    return f"{why}, so this call may be incomplete. Nothing was run; send the whole call again if it is still wanted."


def foreign_problem(what: str) -> str:
    """Return the `problem` of a call that the API leaves to the program and that belongs to no tool here."""
    return (
        f"{what} is to be run by the program that asked the model, and this program does not run it. Nothing was run."
    )


def read_calls(
    api: Api,
    response: Any,
    items: Sequence[Mapping[str, Any]],
    key: str,
    read_one: Callable[[str, Any, str | None], ToolCall],
    end: Callable[[Any], End],
    ids: Callable[[Any, Sequence[Mapping[str, Any]], str], Sequence[str]] = list_ids,
) -> list[ToolCall]:
    """Return the calls in `items` of `response`, each read by `read_one(id, item, problem)`.

    Args:
        key: The key of an item's id.
        end: Reads the end of the response.
        ids: Returns the ids, from the response, the items and the key.
    """
    if not items:
        return []
    problem = find_turn_problem(api, end(response))
    found = [read_one(id, item, problem) for id, item in zip(ids(response, items, key), items, strict=True)]
    return mark_repeats(found, items, key)


def read_function_call(id: str, item: Any, problem: str | None) -> ToolCall:
    """Read a call in the form `{"function": {"name", "arguments"}}`."""
    function = get_fields(item.get("function"))
    return ToolCall(id, read_name(function), read_arguments(function.get("arguments")), problem=problem)


# Options of a request


def resolve_choice(api: Api, choice: str, parallel: bool, only: Iterable[str] | None) -> tuple[str | None, list[str]]:
    """Return the API's word for `choice`, or `None` if that is a tool's name; and the wire names for the request: those
    of `only`, or that name's.

    Raises:
        DefinitionError: The API has no such option. The text has an alternative.
    """
    if not choice:
        raise DefinitionError(f"tool_choice of {api.title} takes 'auto', 'required', 'none' or a tool's name, not ''")
    if not parallel and not api.one_at_a_time:
        remedy = api.remedies.get("parallel", "leave parallel=False out")
        raise DefinitionError(f"{api.title} has no switch for parallel calls: {remedy}")
    if only is not None:
        names = _allowed_names(api, choice, only)
        return api.choices[choice], names
    if choice in api.choices:
        return api.choices[choice], []
    if choice == "none":
        raise DefinitionError(f"{api.title} has no tool_choice('none'): {api.remedies['none']}")
    if not api.forces:
        raise DefinitionError(f"{api.title} cannot force a choice of {choice!r}: {api.remedies['choice']}")
    return None, [to_wire_name(choice)]


def _allowed_names(api: Api, choice: str, only: Iterable[str]) -> list[str]:
    names = [only] if isinstance(only, str) else list(only)
    if not api.narrows:
        raise DefinitionError(f"{api.title} has no list of allowed tools: offer fewer, tools(toolset.only(...))")
    if choice not in {"auto", "required"}:
        raise DefinitionError(
            f"{api.title} takes only=... with 'auto' and 'required', not with {choice!r}: leave it out"
        )
    if not names:
        raise DefinitionError("only=[] leaves no tool to choose: use tool_choice('none')")
    return [to_wire_name(name) for name in names]
