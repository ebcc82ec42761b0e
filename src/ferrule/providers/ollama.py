"""Ollama's chat API. See docs/providers/ollama.md.

Its Python client drops the parts of a schema that it does not know (nested properties, `anyOf`, `$ref`): send the
definitions unchanged, with an HTTP client.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from ferrule.providers import Strict
from ferrule.providers import _wire as wire
from ferrule.providers._api import Api, End, make_stop_readers, no_state, read_calls, read_function_call, resolve_choice
from ferrule.providers._chat import write_calls_for_history
from ferrule.providers._plain import PLAIN_OLLAMA
from ferrule.providers._stream import Readers, TurnStream, join_chunks
from ferrule.providers._text_calls import move_text_calls
from ferrule.providers._write import Definitions
from ferrule.values.call import ToolCall
from ferrule.values.content import clean_text, to_jsonable
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
_DEFINITIONS = Definitions(name="ollama", plain=PLAIN_OLLAMA, in_function=True)


def tools(
    toolset: Iterable[Tool], *, strict: Strict = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return `[{"type": "function", "function": {"name", "description", "parameters"}}]`, deferred tools last.

    Args:
        strict: Not supported by this API.
        cache: No effect; the server caches an unchanged beginning by itself.
        deferred: The names of tools that came later. This API cannot defer: they come last, in this order, so that the
            part before them stays cached.

    Raises:
        DefinitionError: A tool's schema cannot be sent, a tool is to be strict, or a name belongs to no tool.
    """
    first, later = _DEFINITIONS.write(toolset, strict, deferred)
    return first + later


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """Return an empty dict: this API leaves the choice to the model.

    Raises:
        DefinitionError: The choice is not `"auto"`, or there is `parallel=False` or `only`.
    """
    resolve_choice(_API, choice, parallel, only)
    return {}


def calls(response: Response) -> list[ToolCall]:
    """Return the calls in a message, in order. Their ids are derived if the server sends none."""
    return read_calls(_API, response, _list_calls(response), "id", read_function_call, _read_end, _list_call_ids)


def _list_calls(response: Response) -> list[Mapping[str, Any]]:
    return wire.list_fields(wire.get_fields(wire.read(response, "message")).get("tool_calls"))


def _read_end(response: Response) -> End:
    return End(
        wire.read_text(response, "done_reason"),
        open=wire.read(response, "done") is False or wire.is_null(response, "done"),
        calls=bool(_list_calls(response)),
    )


def _list_call_ids(response: Response, requested: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    found, stamp = [item.get(key) for item in requested], wire.read(response, "created_at")
    if type(stamp) is str and stamp.isprintable() and found.count(None) == len(found):  # as in nearly every turn
        return [f"call_{stamp}_{position}" for position in range(len(found))]
    # Without a time stamp, the ids come from the calls themselves.
    return wire.list_ids({"id": stamp}, [{key: id} for id in found] if stamp else requested, key)


def turn(response: Response) -> list[dict[str, Any]]:
    """Return the message, including its thinking. This API ties results to calls by their order, so no ids are
    added."""
    message = wire.to_plain(wire.read(response, "message"))
    if not isinstance(message, dict):
        return []
    listed = wire.to_plain_list(message.get("tool_calls"))
    write_calls_for_history(listed, name=str, arguments=lambda given: to_jsonable(wire.to_object(given)))
    kept = {key: item for key, item in {**message, "tool_calls": listed}.items() if item not in (None, [])}
    if not any(item for key, item in kept.items() if key != "role"):
        return []
    return [{"role": "assistant", **kept}]


def text(response: Response) -> str:
    """Return the model's text."""
    return wire.read_text(wire.read(response, "message"), "content")


stop, reason = make_stop_readers(_API, _read_end, text)
state = no_state


def with_text_calls(response: Response, tools: Iterable[Tool] = ()) -> Mapping[str, Any]:
    """Return the response with the calls at the end of its text as its calls, as
    `providers.openai_chat.with_text_calls` does."""
    found: dict[str, Any] = wire.to_plain(response)
    move_text_calls(wire.read(found, "message"), tools)
    return found


def results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """Return one `{"role": "tool", "tool_name", "content"}` for each result, in the order of the calls. It has text
    only, because only a user's messages can have images."""
    return [
        {"role": "tool", "tool_name": clean_text(wire.require_call(result).name), "content": wire.format_result(result)}
        for result in results
    ]


class Stream(
    TurnStream["Response", "dict[str, Any]"], readers=Readers(calls, text, turn, stop, reason, state, _read_end)
):
    """A `Stream`: feed it each line. Until one is `done`, every call has a `problem`."""

    __slots__ = ("_end", "_head", "_streamed_calls", "_texts")

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        """The model, and the first line's time stamp, the source of missing ids."""
        self._texts: defaultdict[str, list[str]] = defaultdict(list)
        self._streamed_calls: list[Any] = []
        self._end: dict[str, Any] = {"done": False}

    def _read_event(self, event: Any) -> None:
        if not self._head:
            found = {key: wire.to_plain(wire.read(event, key)) for key in ("model", "created_at")}
            self._head = {key: value for key, value in found.items() if value is not None}
        message = wire.get_fields(wire.read(event, "message"))
        for key in ("content", "thinking"):
            if message.get(key):
                self._texts[key].append(wire.read_text(message, key))
        self._streamed_calls += wire.read_list(message, "tool_calls")
        if wire.read(event, "done") is True:
            end = wire.to_plain(event)
            self._end = {key: value for key, value in end.items() if key not in ("message", *self._head)}

    def _assemble(self) -> dict[str, Any]:
        texts = {key: join_chunks(chunks) for key, chunks in self._texts.items()}
        requested = {"tool_calls": self._streamed_calls} if self._streamed_calls else {}
        message = {"role": "assistant", "content": "", **texts, **requested}
        return {**self._head, "message": message, **self._end}
