"""Google's Gemini API, by generateContent or by Interactions. See docs/providers/gemini.md.

`tools` and `tool_choice` have a parameter for the choice between them; the other functions detect it. Returned dicts
have the names of the JSON (`functionCall`), and the SDK accepts those as well. Dicts that you pass may have the SDK's
names (`function_call`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from ferrule.errors import DefinitionError
from ferrule.providers import Stop, Strict
from ferrule.providers import _gemini_generate as generate
from ferrule.providers import _gemini_interactions as interactions
from ferrule.providers import _wire as wire
from ferrule.providers._api import End, resolve_choice
from ferrule.providers._plain import PLAIN_GEMINI
from ferrule.providers._stream import Readers, TurnStream
from ferrule.providers._write import Definitions
from ferrule.values.call import ToolCall
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from google.genai.interactions import (
        Interaction,
        InteractionSSEEvent,
    )
    from google.genai.types import ContentDict, GenerateContentConfigDict, GenerateContentResponse

    from ferrule.definition.tool import Tool

    Response: TypeAlias = GenerateContentResponse | Interaction | Mapping[str, Any]
    Event: TypeAlias = GenerateContentResponse | InteractionSSEEvent | Mapping[str, Any]


Api: TypeAlias = Literal["generate", "interactions"]
"""The API for which `tools` and `tool_choice` write."""

_TABLES = {"generate": generate.API, "interactions": interactions.API}
_STRICT_HINT = "; tool_choice('required'), or 'auto' with only=[...], holds the model to the schemas"
_DEFINITIONS = {
    "generate": Definitions(name="gemini", plain=PLAIN_GEMINI, no_strict_hint=_STRICT_HINT, key="parametersJsonSchema"),
    "interactions": Definitions(
        name="gemini", plain=PLAIN_GEMINI, no_strict_hint=_STRICT_HINT, head={"type": "function"}, defers=True
    ),
}


def tools(
    toolset: Iterable[Tool],
    *,
    strict: Strict = False,
    cache: bool = False,
    deferred: Collection[str] = (),
    api: Api = "generate",
) -> list[Any]:
    """Return `[{"functionDeclarations": [{"name", "description", "parametersJsonSchema"}]}]`; for Interactions
    `[{"type": "function", "name", "description", "parameters"}]`. Deferred tools come after the others.

    Args:
        strict: Not supported by this API for single tools.
        cache: No effect; the API caches an unchanged beginning by itself.
        deferred: The names of tools that came later. Interactions finds them by a tool search. generateContent cannot
            defer: they come last, in this order.
        api: The API to write for.

    Raises:
        DefinitionError: A tool is to be strict, a parameter has a name that this API refuses, or a name belongs to no
            tool.
    """
    _check_api(api)
    first, later = _DEFINITIONS[api].write(toolset, strict, deferred)
    if api == "interactions" or not first + later:
        return first + later
    return [{"functionDeclarations": first + later}]


def _check_api(api: str) -> None:
    if api not in _TABLES:
        raise DefinitionError(f"api is 'generate' or 'interactions', not {api!r}")


@overload
def tool_choice(
    choice: str = "auto",
    *,
    parallel: bool = True,
    only: Iterable[str] | None = None,
    api: Literal["generate"] = "generate",
) -> GenerateContentConfigDict: ...


@overload
def tool_choice(
    choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None, api: Literal["interactions"]
) -> dict[str, Any]: ...


def tool_choice(
    choice: str = "auto", *, parallel: bool = True, only: Iterable[str] | None = None, api: Api = "generate"
) -> Any:
    """Return `{"toolConfig": {"functionCallingConfig": {"mode", "allowedFunctionNames"}}}`, for the SDK in its
    `config`; for Interactions `{"generation_config": {"tool_choice": ...}}`.

    Raises:
        DefinitionError: There is `parallel=False`, but this API has no such option; or `only` beside `"none"` or a
            name.
    """
    _check_api(api)
    word, names = resolve_choice(_TABLES[api], choice, parallel, only)
    if api == "interactions":
        kind = {"allowed_tools": {"mode": word or "any", "tools": names}} if names else word
        return {"generation_config": {"tool_choice": kind}}
    if not names:
        return {"toolConfig": {"functionCallingConfig": {"mode": word}}}
    # Names may only go with ANY and VALIDATED; VALIDATED is AUTO, held to the schemas.
    mode = "VALIDATED" if word == "AUTO" else "ANY"
    return {"toolConfig": {"functionCallingConfig": {"mode": mode, "allowedFunctionNames": names}}}


def _find_readers(response: Any) -> Readers:
    return interactions.READERS if "steps" in wire.get_fields(response) else generate.READERS


def _read_end(response: Response) -> End:
    return _find_readers(response).end(response)


def calls(response: Response) -> list[ToolCall]:
    """Return the calls in the first candidate, or in an interaction, in order. The `data` of the latter marks them."""
    return _find_readers(response).calls(response)


@overload
def turn(response: GenerateContentResponse) -> list[ContentDict]: ...


@overload
def turn(response: Interaction | Mapping[str, Any]) -> list[Any]: ...


def turn(response: Response) -> list[Any]:
    """Return `[{"role": "model", "parts": [...]}]`, each thought signature on its own part; for an interaction, the
    steps that the model made."""
    return _find_readers(response).turn(response)


def text(response: Response) -> str:
    """Return the model's text, without its thoughts."""
    return _find_readers(response).text(response)


def stop(response: Response, tools: Iterable[Tool] = ()) -> Stop:
    """Return why the model stopped. With the offered `tools`, JSON in the text that calls one is `"malformed"` too."""
    return _find_readers(response).stop(response, tools)


def reason(response: Response, tools: Iterable[Tool] = ()) -> str | None:
    """Return why the answer is missing or incomplete; `None` if the model ended or made calls."""
    return _find_readers(response).reason(response, tools)


@overload
def state(response: GenerateContentResponse) -> GenerateContentConfigDict: ...


@overload
def state(response: Interaction | Mapping[str, Any]) -> dict[str, Any]: ...


def state(response: Response) -> Any:
    """Return the data to go on with a turn that stopped at the limit of one request, a `"pause"`; empty for other
    turns.

    generateContent: `{"continuation_token": ...}`, a field of `config`; send the same contents again, without this
    turn. Interactions: `{"previous_interaction_id": ..., "continuation_token": ...}`; send no `input`, or, if the
    interaction was not stored, the same input and only the token. The answer is the rest of the turn.
    """
    return _find_readers(response).state(response)


def results(results: Iterable[ToolResult]) -> list[Any]:
    """Return `[{"role": "user", "parts": [{"functionResponse": ...}, ...]}]`: one content for all results, as this API
    requires; for the calls of an interaction one `function_result` step for each."""
    parts: list[Any] = []
    steps: list[Any] = []
    for result in results:
        data = wire.require_call(result).data
        if isinstance(data, dict) and data.get("type") == "function_call":
            steps.append(interactions.function_result(result))
        else:
            parts.append({"functionResponse": generate.function_response(result)})
    return ([{"role": "user", "parts": parts}] if parts else []) + steps


class Stream(TurnStream["Event", Any], readers=Readers(calls, text, turn, stop, reason, state, _read_end)):
    """A `Stream`: feed it each chunk of generateContent, or each event of an interaction. Until one has a
    `finishReason`, or is `interaction.completed`, every call has a `problem`."""

    __slots__ = ("_stream",)

    def __init__(self) -> None:
        super().__init__()
        self._stream: Any = None
        """The stream of the detected API, from the first event with fields on."""

    def _read_event(self, event: Any) -> None:
        if self._stream is None:
            if not wire.get_fields(event):  # it names no API
                return
            interaction = wire.read(wire.read(event, "data", event), "event_type") is not None
            self._stream = interactions.Stream() if interaction else generate.Stream()
        self._stream._read_event(event)
        self._error = self._error or self._stream.error

    def _assemble(self) -> dict[str, Any]:
        return {} if self._stream is None else self._stream._assemble()

    def partial(self) -> dict[str, Any]:
        """Return the response so far, in the form of one without a stream."""
        return {} if self._stream is None else self._stream.partial()
