"""Ollama's chat API.

Its Python client drops what it does not know of a schema (nested properties, `anyOf`, `$ref`): send the definitions
as they are, with an HTTP client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ferrule.core.content import clean, jsonable
from ferrule.core.errors import DefinitionError
from ferrule.core.values import ToolCall, ToolResult
from ferrule.providers._read import (
    Names,
    Stop,
    arguments,
    block_text,
    call_of,
    ids_of,
    in_order,
    left_open,
    marked_error_text,
    name_of,
    not_run,
    object_value,
    plain,
    plain_list,
    read,
    read_list,
    read_text,
    strict_wanted,
    view,
    views,
)
from ferrule.providers._stream import joined

if TYPE_CHECKING:
    from ferrule.core.tool import Tool

_STOPS: dict[str, Stop] = {"stop": "end", "length": "cut"}


def tools(
    toolset: Iterable[Tool], *, strict: Names = False, cache: bool = False, deferred: Collection[str] = ()
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
    first, later = in_order(toolset, deferred)
    wanted = strict_wanted(first + later, strict)
    for tool in first + later if strict else ():
        if wanted(tool):
            raise DefinitionError(
                f"tool {tool.name!r} cannot be strict: Ollama has no strict mode. Leave strict=... out"
            )
    return [{"type": "function", "function": _function(tool)} for tool in first + later]


def _function(tool: Tool) -> dict[str, Any]:
    if not tool.description:
        return {"name": tool.wire_name, "parameters": tool.input_schema}
    return {"name": tool.wire_name, "description": tool.description, "parameters": tool.input_schema}


def tool_choice(choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None) -> dict[str, Any]:
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


def calls(response: Any) -> list[ToolCall]:
    """The calls in a message, in order. Their ids are derived where the server sends none."""
    asked = views(view(view(response).get("message")).get("tool_calls"))
    if not asked:
        return []
    problem = _problem(response)
    return [
        _call(id, view(item.get("function")), problem) for id, item in zip(_ids(response, asked), asked, strict=True)
    ]


def _call(id: str, function: Mapping[str, Any], problem: str | None) -> ToolCall:
    return ToolCall(id, name_of(function), arguments(function.get("arguments")), problem=problem)


def _ids(response: Any, asked: Sequence[Mapping[str, Any]]) -> list[str]:
    found = [item.get("id") for item in asked]
    stamp = view(response).get("created_at")
    if stamp and not any(found):  # at nearly every turn: one hash for all
        stem = hashlib.blake2s(clean(str(stamp)).encode(), digest_size=8).hexdigest()
        return [f"call_{stem}_{place}" for place in range(len(found))]
    # Without a time stamp, what the calls say has to do.
    return ids_of({"id": stamp}, [{"id": id} for id in found] if stamp else asked, "id")


def _problem(response: Any) -> str | None:
    seen = view(response)
    if seen.get("done") is True and seen.get("done_reason") == "stop":
        return None
    reason = read_text(response, "done_reason")
    found = _STOPS.get(reason)
    if read(response, "done") is False or left_open(response, "done"):
        return not_run("the turn has no end yet (it is not done)")
    if found == "cut":
        return not_run(f"the turn was cut off ({reason!r})")
    if reason and found is None:
        return not_run(f"the turn ended for a reason that is not known here ({reason!r})")
    return None


def turn(response: Any) -> list[dict[str, Any]]:
    """The message, thinking and all; this API ties results to calls by their order, so no ids are added."""
    message = plain(read(response, "message"))
    if not isinstance(message, dict):
        return []
    listed = plain_list(message.get("tool_calls"))
    for item in listed:
        if isinstance(item.get("function"), dict):
            item["function"]["arguments"] = jsonable(object_value(item["function"].get("arguments")))
    kept = {key: item for key, item in {**message, "tool_calls": listed}.items() if item not in (None, [])}
    if not any(item for key, item in kept.items() if key != "role"):
        return []
    return [{"role": "assistant", **kept}]


def stop(response: Any) -> Stop:
    """Why the model stopped."""
    found = _STOPS.get(read_text(response, "done_reason"), "other")
    if read(response, "done") is False or left_open(response, "done"):
        return "other"
    if found != "end" and read(response, "done_reason"):
        return found
    return "calls" if views(view(read(response, "message")).get("tool_calls")) else "end"


def results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """One `{"role": "tool", "tool_name", "content"}` for each result, in the order of the calls; text only, as images
    stand on a user's messages alone."""
    return [
        {"role": "tool", "tool_name": clean(call_of(result).name), "content": _content(result)} for result in results
    ]


def _content(result: ToolResult) -> str:
    if result.status != "ok":
        return marked_error_text(result)
    return "\n".join(block_text(block) for block in result.content)


class Stream:
    """The same from a stream: feed it each line. Until one is `done`, every call has a `problem`."""

    __slots__ = ("_calls", "_end", "_head", "_more", "_text", "_thinking")

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        """The model, and the first line's time stamp, which missing ids are derived from."""
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[Any] = []
        self._more: dict[str, Any] = {}
        self._end: dict[str, Any] = {"done": False}

    def feed(self, line: Any) -> None:
        """Take the next line, an SDK object or a dict; what is not known is passed over."""
        try:  # a fragment of text, as nearly all lines are
            if type(line) is dict:
                message, done = line["message"], line["done"]
                text, more = message["content"], message.get("tool_calls") or message.get("thinking")
            else:
                message, done = line.message, line.done
                text, more = message.content, message.tool_calls or message.thinking
            if done is False and not more and self._head and type(text) is str:
                self._text.append(text)
                return
        except (LookupError, AttributeError, TypeError):
            pass
        self._take(line)

    def _take(self, line: Any) -> None:
        if not self._head:
            found = {key: plain(read(line, key)) for key in ("model", "created_at")}
            self._head = {key: value for key, value in found.items() if value is not None}
        message = read(line, "message")
        for pieces, key in ((self._text, "content"), (self._thinking, "thinking")):
            text = read(message, key)
            if isinstance(text, str) and text:
                pieces.append(text)
        self._calls += read_list(message, "tool_calls")
        if read(line, "done") is True:
            end = plain(line)
            self._end = {key: value for key, value in end.items() if key not in ("message", *self._head)}

    def _so_far(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": joined(self._text)}
        if self._thinking:
            message["thinking"] = joined(self._thinking)
        if self._calls:
            message["tool_calls"] = self._calls
        return {**self._head, "message": message, **self._end}

    def calls(self) -> list[ToolCall]:
        """The calls so far."""
        return calls(self._so_far())

    def partial(self) -> dict[str, Any]:
        """The response so far, as it comes without a stream."""
        return plain(self._so_far())  # type: ignore[no-any-return]

    def turn(self) -> list[dict[str, Any]]:
        """The assistant's message so far, thinking and all."""
        return turn(self._so_far())

    @property
    def stop(self) -> Stop:
        """Why the model stopped; `"other"` before it has."""
        return stop(self._so_far())
