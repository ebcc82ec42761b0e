"""Ollama's chat API.

Its Python client drops what it does not know of a schema (nested properties, `anyOf`, `$ref`): send the definitions
as they are, with an HTTP client.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from ferrule.errors import DefinitionError
from ferrule.providers import Stop, Strict
from ferrule.providers._read import (
    answered_call,
    arguments,
    block_text,
    fields_of,
    fields_of_each,
    ids_of,
    is_null,
    mark_repeats,
    marked_error_text,
    name_of,
    not_run_problem,
    object_value,
    plain,
    plain_list,
    read,
    read_list,
    read_text,
    split_deferred,
)
from ferrule.providers._stream import TurnStream, join_chunks
from ferrule.providers._strict import refuse_strict
from ferrule.providers._write import definition
from ferrule.values.call import ToolCall
from ferrule.values.content import clean, jsonable
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ollama import ChatResponse

    from ferrule.definition.tool import Tool

    Response: TypeAlias = ChatResponse | Mapping[str, Any]

    class Choice(TypedDict):
        """Keyword arguments of a request: none."""


_STOPS: dict[str, Stop] = {"stop": "end", "length": "cut"}


def tools(
    toolset: Iterable[Tool], *, strict: Strict = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[dict[str, Any]]:
    """`[{"type": "function", "function": {"name", "description", "parameters"}}]`, deferred tools last.

    Args:
        strict: Nothing that this API has.
        cache: Nothing to mark here; the server keeps an unchanged beginning by itself.
        deferred: Names of tools that came later. This API cannot defer: they are placed last, in this order, so that
            what stands before them stays cached.

    Raises:
        DefinitionError: where a tool is to be strict, or a name is no tool's.
    """
    first, later = split_deferred(toolset, deferred)
    refuse_strict(first + later, strict, "Ollama")
    return [{"type": "function", "function": definition(tool, "parameters")} for tool in first + later]


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """Nothing: this API leaves the choice to the model.

    Raises:
        DefinitionError: for anything but `"auto"`, for `parallel=False` and for `only`.
    """
    if choice == "none":
        raise DefinitionError("Ollama has no tool_choice('none'): leave the tools out of the request")
    if choice != "auto" or only is not None:
        raise DefinitionError("Ollama has no tool_choice: offer the tools that may be called, tools(toolset.only(...))")
    if not parallel:
        raise DefinitionError("Ollama has no switch for parallel calls: leave parallel=False out")
    return {}


def calls(response: Response) -> list[ToolCall]:
    """The calls in a message, in order. Their ids are derived where the server sends none."""
    fields = response if type(response) is dict else fields_of(response)
    message = fields.get("message")
    requested = fields_of_each((message if type(message) is dict else fields_of(message)).get("tool_calls"))
    if not requested:
        return []
    problem = None if fields.get("done") is True and fields.get("done_reason") == "stop" else _problem(response)
    found = []
    for id, item in zip(_call_ids(fields, requested), requested, strict=True):
        function = item.get("function")
        function = function if type(function) is dict else fields_of(function)
        found.append(ToolCall(id, name_of(function), arguments(function.get("arguments")), problem=problem))
    return mark_repeats(found, requested, "id")


def _call_ids(response: Mapping[str, Any], requested: Sequence[Mapping[str, Any]]) -> list[str]:
    found, stamp = [item.get("id") for item in requested], response.get("created_at")
    if type(stamp) is str and stamp.isprintable() and found.count(None) == len(found):  # as at nearly every turn
        return [f"call_{stamp}_{position}" for position in range(len(found))]
    # Without a time stamp, what the calls say has to do.
    return ids_of({"id": stamp}, [{"id": id} for id in found] if stamp else requested, "id")


def _problem(response: Any) -> str | None:
    reason = read_text(response, "done_reason")
    found = _STOPS.get(reason)
    if read(response, "done") is False or is_null(response, "done"):
        return not_run_problem("the turn has no end yet (it is not done)")
    if found == "cut":
        return not_run_problem(f"the turn was cut off ({reason!r})")
    if reason and found is None:
        return not_run_problem(f"the turn ended for a reason that is not known here ({reason!r})")
    return None


def turn(response: Response) -> list[dict[str, Any]]:
    """The message, thinking and all; this API ties results to calls by their order, so no ids are added."""
    message = plain(read(response, "message"))
    if not isinstance(message, dict):
        return []
    listed = plain_list(message.get("tool_calls"))
    for item in listed:
        function = item.get("function")
        if isinstance(function, dict):
            function["name"] = name_of(function)
            function["arguments"] = jsonable(object_value(function.get("arguments")))
    kept = {key: item for key, item in {**message, "tool_calls": listed}.items() if item not in (None, [])}
    if not any(item for key, item in kept.items() if key != "role"):
        return []
    return [{"role": "assistant", **kept}]


def stop(response: Response) -> Stop:
    """Why the model stopped."""
    found = _STOPS.get(read_text(response, "done_reason"), "other")
    if read(response, "done") is False or is_null(response, "done"):
        return "other"
    if found != "end" and read(response, "done_reason"):
        return found
    return "calls" if fields_of_each(fields_of(read(response, "message")).get("tool_calls")) else "end"


def results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """One `{"role": "tool", "tool_name", "content"}` for each result, in the order of the calls; text only, as images
    stand on a user's messages alone."""
    return [
        {"role": "tool", "tool_name": clean(answered_call(result).name), "content": _content(result)}
        for result in results
    ]


def _content(result: ToolResult) -> str:
    if result.status != "ok":
        return marked_error_text(result)
    return "\n".join(block_text(block) for block in result.content)


class Stream(TurnStream["Response", "dict[str, Any]"], readers=(calls, turn, stop)):
    """The same from a stream: feed it each line. Until one is `done`, every call has a `problem`."""

    __slots__ = ("_end", "_head", "_more", "_streamed_calls", "_text", "_thinking")

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        """The model, and the first line's time stamp, which missing ids are derived from."""
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._streamed_calls: list[Any] = []
        self._more: dict[str, Any] = {}
        self._end: dict[str, Any] = {"done": False}

    def _append_chunk(self, event: Any) -> bool:
        if type(event) is dict:
            message, done = event["message"], event["done"]
            text, more = message["content"], message.get("tool_calls") or message.get("thinking")
        else:
            message, done = event.message, event.done
            text, more = message.content, message.tool_calls or message.thinking
        if done is False and not more and self._head and type(text) is str:
            self._text.append(text)
            return True
        return False

    def _apply(self, event: Any) -> None:
        if not self._head:
            found = {key: plain(read(event, key)) for key in ("model", "created_at")}
            self._head = {key: value for key, value in found.items() if value is not None}
        message = read(event, "message")
        for chunks, key in ((self._text, "content"), (self._thinking, "thinking")):
            text = read(message, key)
            if isinstance(text, str) and text:
                chunks.append(text)
        self._streamed_calls += read_list(message, "tool_calls")
        if read(event, "done") is True:
            end = plain(event)
            self._end = {key: value for key, value in end.items() if key not in ("message", *self._head)}

    def _assembled(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": join_chunks(self._text)}
        if self._thinking:
            message["thinking"] = join_chunks(self._thinking)
        if self._streamed_calls:
            message["tool_calls"] = self._streamed_calls
        return {**self._head, "message": message, **self._end}
