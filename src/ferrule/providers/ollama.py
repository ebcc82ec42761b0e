"""Ollama's chat API.

Its Python client drops what it does not know of a schema (nested properties, `anyOf`, `$ref`): send the definitions
as they are, with an HTTP client.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from ferrule.providers import Strict
from ferrule.providers._api import Api, End, chosen, ending, no_state, problem_of, read_calls, read_function_call
from ferrule.providers._plain import PLAIN_OLLAMA
from ferrule.providers._read import (
    answered_call,
    fields_of,
    fields_of_each,
    ids_of,
    is_null,
    name_of,
    object_value,
    plain,
    plain_list,
    read,
    read_list,
    read_text,
    result_text,
    split_deferred,
)
from ferrule.providers._stream import Readers, TurnStream, join_chunks
from ferrule.providers._strict import refuse_strict
from ferrule.providers._text_calls import is_text_call, text_calls
from ferrule.providers._write import definition, definitions
from ferrule.values.call import ToolCall
from ferrule.values.content import clean, jsonable
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ollama import ChatResponse

    from ferrule.definition.tool import Tool

    Response: TypeAlias = ChatResponse | Mapping[str, Any]

    class Choice(TypedDict):
        """Keyword arguments of a request: none."""


_API = Api(
    title="Ollama",
    end_field="done_reason",
    stops={"stop": "end", "length": "cut"},
    choices={"auto": ""},
    forces=False,
    remedies={
        "none": "leave the tools out of the request",
        "choice": "offer the tools that may be called, tools(toolset.only(...))",
    },
)


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
        DefinitionError: where a tool's schema cannot be sent, one is to be strict, or a name is no tool's.
    """
    first, later = split_deferred(toolset, deferred)
    refuse_strict(first + later, strict, "Ollama")
    return [{"type": "function", "function": function} for function in definitions(first + later, False, _function)]


def _function(tool: Tool, strict: bool) -> dict[str, Any]:
    return definition(tool, "parameters", PLAIN_OLLAMA)


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """Nothing: this API leaves the choice to the model.

    Raises:
        DefinitionError: for anything but `"auto"`, for `parallel=False` and for `only`.
    """
    chosen(_API, choice, parallel, only)
    return {}


def calls(response: Response) -> list[ToolCall]:
    """The calls in a message, in order. Their ids are derived where the server sends none."""
    fields = response if type(response) is dict else fields_of(response)
    message = fields.get("message")
    requested = fields_of_each((message if type(message) is dict else fields_of(message)).get("tool_calls"))
    if not requested:
        return []
    ended = fields.get("done") is True and fields.get("done_reason") == "stop"
    problem = None if ended else problem_of(_API, _end(response))
    return read_calls(response, requested, "id", read_function_call, problem, _call_ids(fields, requested))


def _end(response: Response) -> End:
    message = fields_of(read(response, "message"))
    return End(
        read_text(response, "done_reason"),
        open=read(response, "done") is False or is_null(response, "done"),
        calls=bool(fields_of_each(message.get("tool_calls"))),
        text_call=is_text_call(text(response)),
    )


def _call_ids(response: Mapping[str, Any], requested: Sequence[Mapping[str, Any]]) -> list[str]:
    found, stamp = [item.get("id") for item in requested], response.get("created_at")
    if type(stamp) is str and stamp.isprintable() and found.count(None) == len(found):  # as at nearly every turn
        return [f"call_{stamp}_{position}" for position in range(len(found))]
    # Without a time stamp, what the calls say has to do.
    return ids_of({"id": stamp}, [{"id": id} for id in found] if stamp else requested, "id")


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


def text(response: Response) -> str:
    """What the model says."""
    return read_text(read(response, "message"), "content")


stop, reason = ending(_API, _end)
state = no_state


def with_text_calls(response: Response) -> Mapping[str, Any]:
    """The response with the calls that its text holds as its calls, as `providers.openai_chat.with_text_calls` does."""
    found: dict[str, Any] = plain(response)
    message = read(found, "message")
    parsed = None if read(message, "tool_calls") else text_calls(read_text(message, "content"))
    if parsed is None:
        return found
    message |= {"content": parsed.text, "tool_calls": [{"function": call} for call in parsed.calls]}
    return found


def results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """One `{"role": "tool", "tool_name", "content"}` for each result, in the order of the calls; text only, as images
    stand on a user's messages alone."""
    return [
        {"role": "tool", "tool_name": clean(answered_call(result).name), "content": result_text(result)}
        for result in results
    ]


class Stream(TurnStream["Response", "dict[str, Any]"], readers=Readers(calls, text, turn, stop, reason, state)):
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
        fields = event if type(event) is dict else event.__dict__
        if "error" in fields:
            return False
        message = fields["message"]
        message = message if type(message) is dict else message.__dict__
        text = message["content"]
        more = message.get("tool_calls") or message.get("thinking")
        if fields["done"] is False and not more and self._head and type(text) is str:
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
