"""Cohere's chat API, version 2. See docs/providers/cohere.md.

Definitions and messages are dicts for its Python client. Its types have no name for them, hence `Any`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from ferrule.errors import DefinitionError
from ferrule.providers import Strict
from ferrule.providers import _stream as streams
from ferrule.providers import _wire as wire
from ferrule.providers._api import Api, End, make_stop_readers, no_state, read_calls, read_function_call, resolve_choice
from ferrule.providers._chat import write_calls_for_history
from ferrule.providers._plain import PLAIN_COHERE
from ferrule.providers._stream import Readers, StreamedCalls, TurnStream
from ferrule.providers._strict import COHERE, make_strict_test
from ferrule.providers._write import Definitions
from ferrule.values.call import ToolCall
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from cohere import V2ChatResponse, V2ChatStreamResponse

    from ferrule.definition.tool import Tool

    Response: TypeAlias = V2ChatResponse | Mapping[str, Any]
    Event: TypeAlias = V2ChatStreamResponse | Mapping[str, Any]

    class Choice(TypedDict, total=False):
        """Keyword arguments of a request."""

        tool_choice: Literal["REQUIRED", "NONE"]


_API = Api(
    title="Cohere",
    end_field="finish_reason",
    stops={
        "COMPLETE": "end",
        "STOP_SEQUENCE": "end",
        "TOOL_CALL": "calls",
        "MAX_TOKENS": "cut",
        "ERROR": "other",
        "TIMEOUT": "other",
    },
    choices={"auto": "", "required": "REQUIRED", "none": "NONE"},
    forces=False,
    remedies={"choice": "offer the tool alone, tools(toolset.only(name)), with 'required'"},
)
_DEFINITIONS = Definitions(name="cohere", plain=PLAIN_COHERE, strict=COHERE, strict_mark={}, in_function=True)


def tools(
    toolset: Iterable[Tool], *, strict: Strict = False, cache: bool = False, deferred: Collection[str] = ()
) -> list[Any]:
    """Return `[{"type": "function", "function": {"name", "description", "parameters"}}]`, deferred tools last.

    Args:
        strict: Whether the API is to hold the model to the schemas. It does so for all tools of a request or for none:
            with `True` the schemas are rewritten, and the request needs `strict_tools=True` besides. With
            `"where possible"` it needs `strict_tools=cohere.strict_tools(toolset, "where possible")`.
        cache: No effect.
        deferred: The names of tools that came later. This API cannot defer: they come last, in this order, so that the
            part before them stays the same.

    Raises:
        DefinitionError: A tool's schema cannot be sent or strict, strict ones are too large together, `strict` names
            only some of the tools, or a name belongs to no tool.
    """
    offered = wire.list_tools(toolset)
    some = sum(map(make_strict_test(offered, strict, COHERE), offered))
    if 0 < some < len(offered):
        raise DefinitionError(
            f"Cohere is strict for all tools of a request or for none, and strict=... names {some} of {len(offered)}: "
            f"pass strict=True, and strict_tools=True in the request"
        )
    first, later = _DEFINITIONS.write(offered, strict, deferred)
    return first + later


def strict_tools(toolset: Iterable[Tool], strict: Strict) -> bool:
    """Return the value of `strict_tools` in the request, to go with `tools(toolset, strict=strict)`.

    Raises:
        DefinitionError: A name belongs to no tool.
    """
    offered = wire.list_tools(toolset)
    return any(map(make_strict_test(offered, strict, COHERE), offered))


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> Choice:
    """Return `{"tool_choice": "REQUIRED"}` or `"NONE"`; an empty dict for `"auto"`.

    Raises:
        DefinitionError: The choice is a tool's name, or there is `parallel=False` or `only`: this API has no such
            options.
    """
    word: Any = resolve_choice(_API, choice, parallel, only)[0]
    return {"tool_choice": word} if word else {}


def calls(response: Response) -> list[ToolCall]:
    """Return the calls in a response, in order."""
    return read_calls(_API, response, _list_calls(response), "id", read_function_call, _read_end)


def _list_calls(response: Response) -> list[Mapping[str, Any]]:
    return wire.list_fields(wire.get_fields(wire.read(response, "message")).get("tool_calls"))


def _read_end(response: Response) -> End:
    return End(
        wire.read_text(response, "finish_reason"),
        open=wire.is_null(response, "finish_reason"),
        calls=bool(_list_calls(response)),
        details=streams.describe_api_error(error) if (error := wire.read(response, "error")) else "",
    )


def turn(response: Response) -> list[Any]:
    """Return the message, with the plan that came before its calls."""
    message = wire.to_plain(wire.read(response, "message"))
    if not isinstance(message, dict):
        return []
    message["tool_calls"] = wire.to_plain_list(message.get("tool_calls"))
    wire.fill_ids(response, message["tool_calls"], "id")
    write_calls_for_history(message["tool_calls"])
    # The API refuses null and empty fields in a history.
    kept = {key: item for key, item in message.items() if key != "role" and item not in (None, "", [])}
    return [{"role": "assistant", **kept}] if kept else []


def text(response: Response) -> str:
    """Return the model's text."""
    return wire.read_content_text(wire.get_fields(wire.read(response, "message")).get("content"))


stop, reason = make_stop_readers(_API, _read_end, text)
state = no_state


def results(results: Iterable[ToolResult]) -> list[Any]:
    """Return one `{"role": "tool", "tool_call_id", "content": [...]}` for each result: a document for each block, with
    the text as `output`, or one document with the `error`. The API's citations name these documents. They hold no
    images."""
    return [
        {"role": "tool", "tool_call_id": wire.require_call(result).id, "content": _content(result)}
        for result in results
    ]


def _content(result: ToolResult) -> list[dict[str, Any]]:
    if result.status != "ok":
        return [_document({"error": wire.format_error(result)})]
    texts = [wire.format_block(block) for block in result.content] or [""]
    return [_document({"output": wire.to_non_blank(text)}) for text in texts]


def _document(data: dict[str, str]) -> dict[str, Any]:
    return {"type": "document", "document": {"data": data}}


class Stream(TurnStream["Event", "Any"], readers=Readers(calls, text, turn, stop, reason, state, _read_end)):
    """A `Stream`: feed it each event. Until `message-end`, every call has a `problem`."""

    __slots__ = ("_citations", "_content", "_end_fields", "_finish_reason", "_id", "_plan", "_streamed_calls")

    def __init__(self) -> None:
        super().__init__()
        self._id: Any = None
        self._plan: list[str] = []
        self._content: dict[int | None, dict[str, Any]] = {}
        self._citations: list[Any] = []
        self._streamed_calls = StreamedCalls()
        self._finish_reason: str | None = None
        self._end_fields: dict[str, Any] = {}

    def _read_event(self, event: Any) -> None:
        kind, index = wire.read_text(event, "type"), streams.as_index(wire.read(event, "index"))
        delta = wire.read(event, "delta")
        message = wire.read(delta, "message")
        if kind == "message-start":
            self._begin_response({"id": self._id} if self._id else None, event)
            self._id = wire.to_plain(wire.read(event, "id"))
        elif kind == "tool-plan-delta":
            self._plan.append(wire.read_text(message, "tool_plan"))
        elif kind in {"content-start", "content-delta"}:
            given = wire.get_fields(wire.read(message, "content"))
            said = {key: given[key] for key in ("thinking", "text") if isinstance(given.get(key), str)}
            streams.merge_delta(self._content.setdefault(index, {}), said)
        elif kind in {"tool-call-start", "tool-call-delta"}:
            requested = wire.read(message, "tool_calls")
            for item in requested if isinstance(requested, list) else [requested]:
                self._add_call_delta(kind, wire.parse_id(wire.read(item, "id")), index, wire.read(item, "function"))
        elif kind == "citation-start":
            found = wire.to_plain(wire.read(message, "citations"))
            self._citations += found if isinstance(found, list) else [found] if found else []
        elif kind == "message-end":
            self._finish_reason = wire.read_text(delta, "finish_reason")
            if wire.read(delta, "error"):
                self._error = streams.describe_api_error(wire.read(delta, "error"))
            elif _API.stops.get(self._finish_reason) == "other":
                self._error = repr(self._finish_reason)
            self._end_fields = {
                key: wire.to_plain(wire.read(delta, key))
                for key in ("usage", "error")
                if wire.read(delta, key) is not None
            }

    def _add_call_delta(self, kind: str, id: str | None, index: int | None, function: Any) -> None:
        if kind == "tool-call-start" and id is None:
            self._streamed_calls.begin_call(None, index)
        self._streamed_calls.add(id, index, wire.read(function, "name"), wire.read(function, "arguments"), set())

    def _assemble(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant"}
        if self._streamed_calls:
            message["tool_calls"] = self._streamed_calls.assemble()
        if self._plan:
            message["tool_plan"] = streams.join_chunks(self._plan)
        said = [item for part in self._content.values() for item in streams.merged_value(part).items()]
        content = [{"type": key, key: text} for key, text in said if text]
        if content:
            message["content"] = content
        if self._citations:
            message["citations"] = self._citations
        head = {} if self._id is None else {"id": self._id}
        return {**head, "finish_reason": self._finish_reason, "message": message, **self._end_fields}
