"""Google's Gemini API, by generateContent or by Interactions.

`tools` and `tool_choice` are told which; the other functions see it. Dicts have the names of the JSON (`functionCall`),
which the SDK takes as well; what goes in may have the SDK's own (`function_call`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ferrule.core.content import Block, Media, clean, jsonable, to_text
from ferrule.core.errors import DefinitionError
from ferrule.core.values import ToolCall, ToolResult
from ferrule.providers._read import (
    Names,
    Stop,
    allowed_names,
    arguments,
    base64_text,
    block_text,
    call_of,
    chosen_name,
    error_text,
    ids_of,
    in_order,
    known_id,
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
    web_address,
    with_ids,
)
from ferrule.providers._stream import as_object, joined, place

if TYPE_CHECKING:
    from ferrule.core.tool import Tool

Api: TypeAlias = Literal["generate", "interactions"]

_STOPS: dict[str, Stop] = {
    "STOP": "end",
    "MAX_TOKENS": "cut",
    "CONTINUATION": "cut",
    "MALFORMED_FUNCTION_CALL": "malformed",
    "UNEXPECTED_TOOL_CALL": "malformed",
    "TOO_MANY_TOOL_CALLS": "malformed",
    "MISSING_THOUGHT_SIGNATURE": "malformed",
    "MALFORMED_RESPONSE": "malformed",
    "SAFETY": "refused",
    "RECITATION": "refused",
    "BLOCKLIST": "refused",
    "PROHIBITED_CONTENT": "refused",
    "SPII": "refused",
    "ESCALATION": "refused",
    "MODEL_ARMOR": "refused",
    "PUP_LIMITED_DISABLED": "refused",
    "IMAGE_SAFETY": "refused",
    "IMAGE_PROHIBITED_CONTENT": "refused",
    "IMAGE_RECITATION": "refused",
    # Interactions
    "completed": "end",
    "requires_action": "calls",
    "incomplete": "cut",
    "budget_exceeded": "cut",
    "requires_continuation": "cut",
}
_WHOLE = ("end", "calls")
_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
_LONGEST_NAME = 64
# google-genai's FunctionResponsePart, and Gemini's guide to function calling.
_SHOWN = {"image/png", "image/jpeg", "image/webp", "application/pdf"}
_IMAGES = {"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "image/gif", "image/bmp", "image/tiff"}


def tools(
    toolset: Iterable[Tool],
    *,
    strict: Names = False,
    cache: bool = False,
    deferred: Collection[str] = (),
    api: Api = "generate",
) -> list[dict[str, Any]]:
    """`[{"functionDeclarations": [{"name", "description", "parametersJsonSchema"}]}]`; for Interactions
    `[{"type": "function", "name", "description", "parameters"}]`. Deferred tools stand behind the others.

    Args:
        strict: Nothing that this API has for single tools.
        cache: Nothing to mark here; the API caches an unchanged beginning by itself.
        deferred: Names of tools that came later. Interactions finds them by a tool search; generateContent cannot
            defer: they are placed last, in this order.
        api: Which of the two.

    Raises:
        DefinitionError: where a tool is to be strict, a parameter has a name that this API does not take, or a name
            is no tool's.
    """
    first, later = in_order(toolset, deferred)
    _check_strict(first + later, strict)
    if _which(api) == "interactions":
        return [_function(tool) for tool in first] + [_function(tool) | {"defer_loading": True} for tool in later]
    declarations = [_declaration(tool) for tool in first + later]
    return [{"functionDeclarations": declarations}] if declarations else []


def _which(api: str) -> str:
    if api not in {"generate", "interactions"}:
        raise DefinitionError(f"api is 'generate' or 'interactions', not {api!r}")
    return api


def _check_strict(offered: list[Tool], strict: Names) -> None:
    wanted = strict_wanted(offered, strict)
    for tool in offered if strict else ():
        if wanted(tool):
            raise DefinitionError(
                f"tool {tool.name!r} cannot be strict: Gemini has no strict mode for single tools. Leave strict=... "
                f"out; tool_choice('required'), or 'auto' with only=[...], holds the model to the schemas"
            )


def _declaration(tool: Tool) -> dict[str, Any]:
    schema = _schema(tool)
    if not tool.description:
        return {"name": tool.wire_name, "parametersJsonSchema": schema}
    return {"name": tool.wire_name, "description": tool.description, "parametersJsonSchema": schema}


def _function(tool: Tool) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    return {"type": "function", "name": tool.wire_name, **described, "parameters": _schema(tool)}


def _schema(tool: Tool) -> Mapping[str, Any]:
    """The tool's schema, whose parameters have names that this API takes, `[A-Za-z_][A-Za-z0-9_]{0,63}`."""
    for name in tool.input_schema.get("properties", ()):
        if not (name.isidentifier() and name.isascii() and len(name) <= _LONGEST_NAME):
            raise DefinitionError(
                f"tool {tool.name!r} has a parameter {name!r}, at $.properties, whose name Gemini does not take: it "
                f"wants a letter or an underscore, then letters, digits and underscores, 64 at most. Rename it"
            )
    return tool.input_schema


def tool_choice(
    choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None, api: Api = "generate"
) -> dict[str, Any]:
    """`{"toolConfig": {"functionCallingConfig": {"mode", "allowedFunctionNames"}}}`, for the SDK in its `config`; for
    Interactions `{"generation_config": {"tool_choice": ...}}`.

    Raises:
        DefinitionError: for `parallel=False`, which this API cannot say, and for `only` beside `"none"` or a name.
    """
    if not parallel:
        raise DefinitionError("Gemini has no switch for parallel calls: leave parallel=False out")
    names = None
    if only is not None:
        names = allowed_names(choice, only, "Gemini")
    elif choice not in _MODES:
        choice, names = "required", [chosen_name(choice)]
    if _which(api) == "interactions":
        mode = _MODES[choice].lower()
        return {
            "generation_config": {
                "tool_choice": mode if names is None else {"allowed_tools": {"mode": mode, "tools": names}}
            }
        }
    if names is None:
        return {"toolConfig": {"functionCallingConfig": {"mode": _MODES[choice]}}}
    # Names may stand beside ANY and VALIDATED alone; VALIDATED is AUTO, held to the schemas.
    mode = "VALIDATED" if choice == "auto" else "ANY"
    return {"toolConfig": {"functionCallingConfig": {"mode": mode, "allowedFunctionNames": names}}}


# Reading


def _either(value: Any, name: str, camel: str) -> Any:
    """What stands under the JSON's name or under the SDK's."""
    seen = view(value)
    found = seen.get(camel)
    return seen.get(name) if found is None else found


def _is_interaction(response: Any) -> bool:
    return "steps" in view(response)


def _candidate(response: Any) -> Mapping[str, Any]:
    candidates = view(response).get("candidates")
    return view(candidates[0]) if isinstance(candidates, list) and candidates else {}


def _asked(candidate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The function calls of a candidate."""
    parts = view(candidate.get("content")).get("parts")
    found = []
    for part in parts if isinstance(parts, list) else ():
        seen = view(part)
        call = seen.get("functionCall", seen.get("function_call"))
        if call is not None:
            found.append(call)
    return views(found)


def _steps(response: Any) -> list[Mapping[str, Any]]:
    return [step for step in views(view(response).get("steps")) if step.get("type") == "function_call"]


def _ids(response: Any, asked: Sequence[Mapping[str, Any]]) -> list[str]:
    seen = view(response)
    source = seen.get("responseId") or seen.get("response_id")
    if source is None:  # what the calls say has to do
        return ids_of({}, [{key: call.get(key) for key in ("id", "name", "args")} for call in asked], "id")
    return ids_of({"id": source}, [{"id": call.get("id")} for call in asked], "id")


def calls(response: Any) -> list[ToolCall]:
    """The calls in the first candidate, or in an interaction, in order. `data` says of the latter that they are."""
    seen = view(response)
    if "steps" in seen:
        return _interaction_calls(seen)
    candidate = _candidate(seen)
    asked = _asked(candidate)
    if not asked:
        return []
    problem = None if candidate.get("finishReason") == "STOP" else _problem(candidate)
    return [
        ToolCall(id, name_of(call), arguments(call.get("args")), problem=problem or _unfinished(call))
        for id, call in zip(_ids(seen, asked), asked, strict=True)
    ]


def _unfinished(call: Mapping[str, Any]) -> str | None:
    seen = call.get
    if len(call) > 2 and (seen("willContinue") or seen("will_continue") or seen("partialArgs") or seen("partial_args")):
        return not_run("not all of the arguments came")
    return None


def _interaction_calls(response: Any) -> list[ToolCall]:
    asked = _steps(response)
    if not asked:
        return []
    problem = _status_problem(response)
    return [
        ToolCall(id, name_of(step), arguments(step.get("arguments")), problem=problem, data={"type": "function_call"})
        for id, step in zip(ids_of(response, asked, "id"), asked, strict=True)
    ]


def _reason(candidate: Mapping[str, Any]) -> str:
    found = candidate.get("finishReason", candidate.get("finish_reason"))
    if type(found) is str:
        return found
    value = getattr(found, "value", found)
    return value if type(value) is str else read_text({"reason": value}, "reason")


def _problem(candidate: Mapping[str, Any]) -> str | None:
    reason = _reason(candidate)
    found = _STOPS.get(reason)
    if found in _WHOLE:
        return None
    if found == "cut":
        return not_run(f"the turn was cut off ({reason!r})")
    if found == "malformed":
        return not_run(f"the turn was malformed ({reason!r})")
    if found == "refused":
        return not_run(f"the turn was stopped by a filter ({reason!r})")
    if reason:
        return not_run(f"the turn ended for a reason that is not known here ({reason!r})")
    # "If empty, the model has not stopped generating the tokens", says the API of a candidate.
    return not_run("the turn has no end yet (it has no finishReason)")


def _status_problem(response: Any) -> str | None:
    status = read_text(response, "status")
    found = _STOPS.get(status)
    if found in _WHOLE:
        return None
    if found == "cut":
        return not_run(f"the turn was cut off ({status!r})")
    return not_run(f"the turn was not completed ({status or 'no status yet'!r})")


def turn(response: Any) -> list[dict[str, Any]]:
    """`[{"role": "model", "parts": [...]}]`, each thought signature on its own part; of an interaction the steps that
    the model made."""
    if _is_interaction(response):
        return _interaction_turn(response)
    content = _candidate(response).get("content")
    parts = [_part(part) for part in read_list(content, "parts")]
    asked = [part["functionCall"] for part in parts if isinstance(part.get("functionCall"), dict)]
    for id, call in zip(_ids(response, asked), asked, strict=True):
        call["id"] = id
        # What a stream says of its fragments is not taken back.
        call.pop("willContinue", None)
        call.pop("partialArgs", None)
        if "args" in call:
            call["args"] = jsonable(object_value(call["args"]))
    kept = [part for part in parts if part and part != {"text": ""}]
    return [{"role": "model", "parts": kept}] if kept else []


def _part(part: Any) -> dict[str, Any]:
    found = plain(part)
    if not isinstance(found, dict):
        return {}
    found = {_camel(key): item for key, item in found.items() if item is not None}
    if not isinstance(part, Mapping):
        _as_sent(found)
    for key in ("functionCall", "functionResponse", "inlineData", "fileData"):
        if isinstance(found.get(key), dict):
            found[key] = {_camel(name): item for name, item in found[key].items()}
    return found


def _as_sent(part: dict[str, Any]) -> None:
    """The SDK's bytes in the base64 that the API wrote; `plain` writes that for URLs."""
    for inside, key in ((part, "thoughtSignature"), (part.get("inlineData"), "data")):
        if isinstance(inside, dict) and isinstance(inside.get(key), str):
            inside[key] = inside[key].replace("-", "+").replace("_", "/")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest) if rest and first else name


def _interaction_turn(response: Any) -> list[dict[str, Any]]:
    # What the caller sent is in the history already.
    steps = [step for step in plain_list(read(response, "steps")) if step.get("type") not in _CALLERS]
    asked = [step for step in steps if step.get("type") == "function_call"]
    with_ids(response, asked, "id")
    for step in asked:
        step["arguments"] = jsonable(object_value(step.get("arguments")))
    return steps


_CALLERS = ("user_input", "function_result")


def stop(response: Any) -> Stop:
    """Why the model stopped."""
    if _is_interaction(response):
        found = _STOPS.get(read_text(response, "status"), "other")
        asked = _steps(response)
    else:
        candidate = _candidate(response)
        if not candidate:
            blocked = _either(_either(response, "prompt_feedback", "promptFeedback"), "block_reason", "blockReason")
            return "refused" if blocked else "other"
        found = _STOPS.get(_reason(candidate), "other")
        asked = _asked(candidate)
    if found not in _WHOLE:
        return found
    return "calls" if asked else "malformed" if found == "calls" else "end"


# Results


def results(results: Iterable[ToolResult]) -> list[dict[str, Any]]:
    """`[{"role": "user", "parts": [{"functionResponse": ...}, ...]}]`: one content for all, as this API wants it; for
    the calls of an interaction one `function_result` step for each."""
    parts: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    for result in results:
        data = call_of(result).data
        if isinstance(data, dict) and data.get("type") == "function_call":
            steps.append(_step(result))
        else:
            parts.append({"functionResponse": _response(result)})
    return ([{"role": "user", "parts": parts}] if parts else []) + steps


def _response(result: ToolResult) -> dict[str, Any]:
    call = call_of(result)
    found: dict[str, Any] = {"id": call.id, "name": clean(call.name)}
    if result.status != "ok":
        return found | {"response": {"error": error_text(result)}}
    media = [(block, _media(block)) for block in result.content]
    texts = [block_text(block) for block, part in media if part is None]
    parts = [part for _, part in media if part is not None]
    if not parts:
        return found | {"response": {"output": _structured("\n".join(texts))}}
    said = "\n".join(texts) if texts else "see the parts of this response"
    return found | {"response": {"output": said}, "parts": parts}


def _media(block: Block) -> dict[str, Any] | None:
    if not isinstance(block, Media) or block.mime_type not in _SHOWN:
        return None
    if block.data:
        return {"inlineData": {"mimeType": block.mime_type, "data": base64_text(block)}}
    address = block.uri if block.uri and block.uri.startswith("gs://") else web_address(block)
    return {"fileData": {"mimeType": block.mime_type, "fileUri": address}} if address else None


_LONG_NUMBER = re.compile(r"\d{16}")


def _structured(text: str) -> Any:
    """What `text` is the JSON of, where that is an object or a list and nothing is lost; else the text.

    All numbers of this API are doubles.
    """
    if text[:1] not in ("{", "[") or _LONG_NUMBER.search(text):
        return text
    try:
        value = json.loads(text)
        return value if to_text(value) == text else text
    except (ValueError, RecursionError):
        return text


def _step(result: ToolResult) -> dict[str, Any]:
    call = call_of(result)
    step: dict[str, Any] = {"type": "function_result", "call_id": call.id, "name": clean(call.name)}
    if result.status != "ok":
        return step | {"result": error_text(result), "is_error": True}
    content = [_shown(block) for block in result.content]
    if all(item["type"] == "text" for item in content):
        return step | {"result": "\n".join(item["text"] for item in content)}
    return step | {"result": [item for item in content if item != {"type": "text", "text": ""}]}


def _shown(block: Block) -> dict[str, Any]:
    if isinstance(block, Media):
        kind = "image" if block.mime_type in _IMAGES else "document" if block.mime_type == "application/pdf" else None
        where = {"data": base64_text(block)} if block.data else {"uri": web_address(block)}
        if kind and (block.data or web_address(block)):
            return {"type": kind, "mime_type": block.mime_type, **where}
    return {"type": "text", "text": block_text(block)}


# Streams


class Stream:
    """The same from a stream: feed it each chunk of generateContent, or each event of an interaction. Until one has a
    `finishReason`, or is `interaction.completed`, every call has a `problem`."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: _Generated | _Interaction | None = None

    def feed(self, event: Any) -> None:
        """Take the next chunk or event, an SDK object or a dict; what is not known is passed over."""
        of = self._of
        if of is None:
            inner = read(event, "data", event)
            interaction = read(inner, "event_type") is not None
            of = self._of = _Interaction() if interaction else _Generated()
        of.feed(event)

    def calls(self) -> list[ToolCall]:
        """The calls so far."""
        return calls(self._so_far())

    def partial(self) -> dict[str, Any]:
        """The response so far, as it comes without a stream."""
        return {} if self._of is None else self._of.partial()

    def turn(self) -> list[dict[str, Any]]:
        """The model's turn so far, signatures and all."""
        return turn(self._so_far())

    @property
    def stop(self) -> Stop:
        """Why the model stopped; `"other"` before it has."""
        return stop(self._so_far())

    def _so_far(self) -> dict[str, Any]:
        return {} if self._of is None else self._of.so_far()


class _Text:
    """A text, or a thought, in fragments."""

    __slots__ = ("pieces", "thought")

    def __init__(self, thought: bool) -> None:
        self.thought = thought
        self.pieces: list[str] = []

    def whole(self) -> dict[str, Any]:
        text = {"text": joined(self.pieces)}
        return text | {"thought": True} if self.thought else text


_PURE = ({"text"}, {"text", "thought"})
_HEAD = (
    ("response_id", "responseId"),
    ("model_version", "modelVersion"),
    ("create_time", "createTime"),
    ("prompt_feedback", "promptFeedback"),
    ("usage_metadata", "usageMetadata"),
)


class _Generated:
    """The chunks of `streamGenerateContent`."""

    __slots__ = ("_by_id", "_finish", "_head", "_open", "_parts", "_said", "_usage")

    def __init__(self) -> None:
        self._head: Any = None
        self._usage: Any = None
        """The last chunk that has any."""
        self._parts: list[Any] = []
        """Texts, calls in fragments, and all other parts as they came."""
        self._said: _Text | None = None
        """The text at the end of the parts."""
        self._open: _Call | None = None
        self._by_id: dict[str, _Call] = {}
        self._finish: Any = None

    def feed(self, chunk: Any) -> None:
        try:  # a fragment of text or of an argument, as nearly all chunks are
            if type(chunk) is dict:
                taken = self._more_of_dict(chunk["candidates"][0])
                usage = chunk.get("usageMetadata")
            else:
                taken = self._more_of_sdk(chunk.candidates[0])
                usage = chunk.usage_metadata
            if taken:
                if usage is not None:
                    self._usage = chunk
                return
        except (LookupError, AttributeError, TypeError, ValueError):
            pass
        self._take(chunk)

    def _more_of_dict(self, candidate: Any) -> bool:
        parts = candidate["content"]["parts"]
        part = parts[0]
        if len(parts) > 1 or "finishReason" in candidate:
            return False
        text, said = part.get("text"), self._said
        if text is not None:
            thought = part.get("thought") is True
            if said is None or said.thought is not thought or len(part) != 1 + thought or type(text) is not str:
                return False
            said.pieces.append(text)
            return True
        call = part["functionCall"]
        if self._open is None or len(call) != 2 or len(part) > 1 or call["willContinue"] is not True:
            return False
        (piece,) = call["partialArgs"]
        return self._open.goes_on(piece["jsonPath"], piece["stringValue"], piece["willContinue"])

    def _more_of_sdk(self, candidate: Any) -> bool:
        parts = candidate.content.parts
        part = parts[0]
        if len(parts) > 1 or candidate.finish_reason is not None:
            return False
        text, said, fields = part.text, self._said, len(part.__pydantic_fields_set__)
        if text is not None:
            thought = part.thought is True
            if said is None or said.thought is not thought or fields != 1 + thought:
                return False
            said.pieces.append(text)
            return True
        call = part.function_call
        if self._open is None or fields > 1 or call.name or call.id or call.will_continue is not True:
            return False
        (piece,) = call.partial_args
        return self._open.goes_on(piece.json_path, piece.string_value, piece.will_continue)

    def _take(self, chunk: Any) -> None:
        if self._head is None:
            self._head = chunk
        if _either(chunk, "usage_metadata", "usageMetadata") is not None:
            self._usage = chunk
        candidate = _candidate(chunk)
        reason = _either(candidate, "finish_reason", "finishReason")
        if reason is not None:
            self._finish = reason
        for part in read_list(candidate.get("content"), "parts"):
            self._add(part)

    def _add(self, part: Any) -> None:
        seen = view(part)
        fields = seen.keys() if type(part) is dict else getattr(part, "model_fields_set", ())
        text = seen.get("text")
        if fields in _PURE and isinstance(text, str):
            self._say(text, bool(seen.get("thought")))
            return
        call = _either(part, "function_call", "functionCall")
        if call is None or not self._continue(part, call):
            self._parts.append(part)
        self._said = None

    def _say(self, text: str, thought: bool) -> None:
        if self._said is None or self._said.thought is not thought:
            self._said = _Text(thought)
            self._parts.append(self._said)
        self._said.pieces.append(text)

    def _continue(self, part: Any, call: Any) -> bool:
        """Takes a fragment of a call; a call that is whole is none."""
        partial, more = _either(call, "partial_args", "partialArgs"), _either(call, "will_continue", "willContinue")
        id, name = known_id(read(call, "id")), read(call, "name")
        known = self._by_id.get(id) if id else self._open
        if known is not None and not id and name and name != known.name:
            known = None
        if known is None:
            if not more and not partial:
                return False
            known = _Call(part, id, name if isinstance(name, str) else "")
            self._parts.append(known)
            if id:
                self._by_id[id] = known
        known.take(part, partial, more is True)
        self._open = known if more is True else None
        return True

    def so_far(self) -> dict[str, Any]:
        """The response, with parts as they came where they came whole."""
        parts = [part.whole() if isinstance(part, _Text | _Call) else part for part in self._parts]
        parts = [part for part in parts if part != {"text": ""}]
        found = {camel: _either(self._head, name, camel) for name, camel in _HEAD}
        found["usageMetadata"] = _either(self._usage, "usage_metadata", "usageMetadata")
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": self._finish, "index": 0}
        head = {key: item for key, item in found.items() if item is not None}
        # A prompt that was blocked has no candidate.
        return (
            head
            if "promptFeedback" in head and not parts and self._finish is None
            else {**head, "candidates": [candidate]}
        )

    def partial(self) -> dict[str, Any]:
        found = self.so_far()
        for candidate in found.get("candidates", ()):
            candidate["content"]["parts"] = [_part(part) for part in candidate["content"]["parts"]]
            candidate["finishReason"] = _reason(candidate) or None
        return plain(found)  # type: ignore[no-any-return]


_STEP_OF_PATH = re.compile(
    r"""\.(?P<name>[^.\[\]]+)|\[(?P<index>\d{1,9})\]|\['(?P<single>(?:[^'\\]|\\.)*)'\]|\["(?P<double>(?:[^"\\]|\\.)*)"\]"""
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_DEEPEST = 100


class _Call:
    """A call whose arguments come in fragments, each with a path to where it belongs (Vertex AI alone)."""

    __slots__ = ("first", "id", "more", "name", "open", "signature", "values")

    def __init__(self, first: Any, id: str | None, name: str) -> None:
        self.first = first
        self.id = id
        self.name = name
        self.more = True
        self.open: set[str] = set()
        """The paths whose text goes on."""
        self.values: dict[str, list[Any]] = {}
        self.signature: Any = None

    def take(self, part: Any, partial: Any, more: bool) -> None:
        self.more = more
        signature = _either(part, "thought_signature", "thoughtSignature")
        if signature:
            self.signature = part
        for piece in partial if isinstance(partial, list) else ():
            path = _either(piece, "json_path", "jsonPath")
            path = path if isinstance(path, str) else ""
            self.values.setdefault(path, []).extend(_piece(piece))
            if _either(piece, "will_continue", "willContinue"):
                self.open.add(path)
            else:
                self.open.discard(path)

    def goes_on(self, path: Any, text: Any, more: Any) -> bool:
        """Takes one more fragment of a text that is being written; whether it was one."""
        if more is not True or type(text) is not str or path not in self.open:
            return False
        self.values[path].append(text)
        return True

    def whole(self) -> dict[str, Any]:
        call: dict[str, Any] = {"id": self.id} if self.id else {}
        call["name"] = self.name
        found = self._arguments()
        call["args"] = {} if found is None else found
        if self.more or self.open or found is None:
            call["willContinue"] = True
        part = {**_part(self.first), **(_part(self.signature) if self.signature is not None else {})}
        return {**part, "functionCall": call}

    def _arguments(self) -> dict[str, Any] | None:
        """The arguments so far; nothing where a path cannot be followed."""
        found: dict[str, Any] = {}
        for path, pieces in self.values.items():
            steps = _path(path)
            texts = all(isinstance(piece, str) for piece in pieces)
            if steps is None or not pieces or not (texts or len(pieces) == 1):
                return None
            if not _put(found, steps, joined(pieces) if texts else pieces[0]):
                return None
        return found


def _piece(piece: Any) -> tuple[Any, ...]:
    """The value that a fragment carries, if any; a whole number is an integer."""
    text = _either(piece, "string_value", "stringValue")
    if isinstance(text, str):
        return (text,)
    flag = _either(piece, "bool_value", "boolValue")
    if isinstance(flag, bool):
        return (flag,)
    number = _either(piece, "number_value", "numberValue")
    if isinstance(number, float) and number.is_integer() and abs(number) < 2**53:
        return (int(number),)
    if isinstance(number, int | float):
        return (number,)
    return (None,) if _either(piece, "null_value", "nullValue") is not None else ()


def _path(path: str) -> list[str | int] | None:
    """The steps of a path such as `$.foo[0]['bar']`, RFC 9535; nothing for any other."""
    steps: list[str | int] = []
    at = 1
    while path[:1] == "$" and at < len(path) and len(steps) < _DEEPEST:
        found = _STEP_OF_PATH.match(path, at)
        if found is None:
            return None
        name, index, single, double = found.group("name", "index", "single", "double")
        quoted = single if single is not None else double
        steps.append(int(index) if index else name if name is not None else _ESCAPE.sub(_unescaped, quoted))
        at = found.end()
    return steps if steps and at == len(path) and isinstance(steps[0], str) else None


def _unescaped(found: re.Match[str]) -> str:
    said = found.group(1)
    return chr(int(said[1:], 16)) if len(said) == 5 else _ESCAPED.get(said, said)


def _put(found: Any, steps: list[str | int], value: Any) -> bool:
    """Sets what is at the end of `steps`; whether that could be done."""
    for at, step in enumerate(steps):
        last = at == len(steps) - 1
        empty: Any = value if last else [] if isinstance(steps[at + 1], int) else {}
        if isinstance(found, dict) and isinstance(step, str):
            known = step in found
            inner = found.setdefault(step, empty)
        elif isinstance(found, list) and isinstance(step, int) and step <= len(found):
            known = step < len(found)
            if not known:
                found.append(empty)
            inner = found[step]
        else:
            return False
        if last:
            return not known
        found = inner
    return False


class _Interaction:
    """The events of an interaction."""

    __slots__ = ("_by_id", "_completed", "_head", "_open", "_steps")

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._steps: list[_Step] = []
        self._by_id: dict[str, _Step] = {}
        self._open: dict[int | None, _Step] = {}
        """The newest step under each index, and the newest of all under `None`."""
        self._completed = False

    def feed(self, event: Any) -> None:
        try:  # a fragment of text or of arguments, as nearly all events are
            if type(event) is dict:
                delta = event["delta"]
                kind = delta["type"]
                if kind == "text":
                    text, pieces = delta["text"], self._open[event["index"]].text
                else:
                    text, pieces = delta["arguments"], self._open[event["index"]].arguments
            else:
                delta = event.delta
                kind = delta.type
                if kind == "text":
                    text, pieces = delta.text, self._open[event.index].text
                else:
                    text, pieces = delta.arguments, self._open[event.index].arguments
            if type(text) is str and pieces is not None and kind in ("text", "arguments_delta"):
                pieces.append(text)
                return
        except (LookupError, AttributeError, TypeError, ValueError):
            pass
        self._take(read(event, "data", event))

    def _take(self, event: Any) -> None:
        kind = read_text(event, "event_type")
        if kind == "step.start":
            self._begin(place(read(event, "index")), plain(read(event, "step")))
        elif kind == "step.delta":
            index = place(read(event, "index"))
            if index not in self._open:
                self._begin(index, {})
            self._open[index].take(plain(read(event, "delta")))
        elif kind in {"interaction.created", "interaction.completed"}:
            found = plain(read(event, "interaction"))
            self._head |= found if isinstance(found, dict) else {}
            self._completed = self._completed or kind == "interaction.completed"

    def _begin(self, index: int | None, start: Any) -> None:
        start = start if isinstance(start, dict) else {}
        id = known_id(start.get("id"))
        step = self._by_id.get(id) if id else None
        if step is None:
            step = _Step(start)
            self._steps.append(step)
            if id:
                self._by_id[id] = step
        self._open[index] = self._open[None] = step

    def so_far(self) -> dict[str, Any]:
        steps = [step.whole() for step in self._steps] or plain_list(self._head.get("steps"))
        found = {"status": "in_progress", **self._head, "steps": steps}
        return found if self._completed else found | {"status": "in_progress"}

    def partial(self) -> dict[str, Any]:
        found = self.so_far()
        for step in found["steps"]:
            if step.get("type") == "function_call":
                step["arguments"] = as_object(step.get("arguments"))
        return plain(found)  # type: ignore[no-any-return]


class _Step:
    """One step, as it came at its start, and the deltas since then."""

    __slots__ = ("arguments", "content", "more", "signature", "start", "summary", "text")

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = start
        self.arguments: list[str] = []
        self.content: list[dict[str, Any]] = plain_list(start.get("content"))
        self.summary: list[dict[str, Any]] = plain_list(start.get("summary"))
        self.signature: list[str] = []
        self.text: list[str] | None = None
        """The fragments of the text that is being written, at the end of `content`."""
        self.more: dict[str, Any] = {}

    def take(self, delta: Any) -> None:
        kind = delta.get("type") if isinstance(delta, dict) else None
        if kind == "text":
            self._write(read_text(delta, "text"))
        elif kind == "arguments_delta":
            self.arguments.append(read_text(delta, "arguments"))
        elif kind == "thought_signature":
            self.signature.append(read_text(delta, "signature"))
        elif kind == "thought_summary":
            self._think(delta.get("content"))
        elif kind == "text_annotation_delta" and self.content:
            self.content[-1].setdefault("annotations", []).extend(plain_list(delta.get("annotations")))
        elif kind in ("image", "audio", "video", "document"):
            self.text = None
            self.content.append(delta)
        elif isinstance(delta, dict):
            self.more |= {key: item for key, item in delta.items() if key != "type"}

    def _write(self, text: str) -> None:
        if not self.content or self.content[-1].get("type") != "text":
            self.content.append({"type": "text", "text": ""})
        self.text = _pieces(self.content[-1])
        self.text.append(text)

    def _think(self, content: Any) -> None:
        """What follows each other in words is one summary."""
        last = self.summary[-1] if self.summary else {}
        if not isinstance(content, dict):
            return
        if last.get("type") == content.get("type") == "text":
            _pieces(last).append(read_text(content, "text"))
        else:
            self.summary.append(content)

    def whole(self) -> dict[str, Any]:
        found = {**self.start, **self.more}
        if joined(self.arguments).strip():
            found["arguments"] = joined(self.arguments)
        for key, items in (("content", self.content), ("summary", self.summary)):
            if items:
                found[key] = [_settled(item) for item in items]
        if self.signature:
            found["signature"] = joined(self.signature)
        return found


def _pieces(item: dict[str, Any]) -> list[str]:
    """The fragments of an item's text, to be continued."""
    if not isinstance(item.get("text"), list):
        item["text"] = [read_text(item, "text")]
    return item["text"]  # type: ignore[no-any-return]


def _settled(item: dict[str, Any]) -> dict[str, Any]:
    text = item.get("text")
    return {**item, "text": joined(text)} if isinstance(text, list) else item
