"""What the streams of the provider modules share: one way to feed and to read them, and fragments joined once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from ferrule.providers._read import Stop, not_run, plain, view
from ferrule.values.call import ToolCall
from ferrule.values.content import clean, to_text
from ferrule.values.json_text import Malformed, loads

Reading: TypeAlias = tuple[
    Callable[[Any], list[ToolCall]], Callable[[Any], list[dict[str, Any]]], Callable[[Any], Stop]
]


class TurnStream:
    """A turn that comes event by event, and is read like a response at any time; every `Stream` is one.

    A provider's own says how whole responses are read, `reading=(calls, turn, stop)`, and what its events mean:

        _goes_on(event)    takes a fragment of a text that is begun, as nearly all events are; whether it was one
        _take(event)       takes any other, and passes over what is not known
        _so_far()          the response so far, as `calls`, `turn` and `stop` read it
    """

    __slots__ = ("_error",)
    _reading: ClassVar[Reading]

    def __init_subclass__(cls, *, reading: Reading) -> None:
        cls._reading = reading

    def __init__(self) -> None:
        self._error: str | None = None

    def feed(self, event: Any) -> None:
        """Take the next event, an SDK object or a dict; what is not known is passed over."""
        try:
            if self._goes_on(event):
                return
        except (LookupError, AttributeError, TypeError, ValueError):  # it has another shape
            pass
        error = error_in(event)
        if error is not None:
            self._error = error
        self._take(event)

    def _goes_on(self, event: Any) -> bool:
        return False

    def _take(self, event: Any) -> None:
        raise NotImplementedError

    def _so_far(self) -> dict[str, Any]:
        raise NotImplementedError

    def calls(self) -> list[ToolCall]:
        """The calls so far."""
        found = self._reading[0](self._so_far())
        if self._error is None:
            return found
        problem = not_run(f"the turn ended in an error ({self._error})")
        return [call.replace(problem=problem) for call in found]

    def partial(self) -> dict[str, Any]:
        """The response so far, as it comes without a stream."""
        return plain(self._so_far())  # type: ignore[no-any-return]

    def turn(self) -> list[dict[str, Any]]:
        """The assistant's turn so far, signatures and all."""
        return self._reading[1](self._so_far())

    @property
    def stop(self) -> Stop:
        """Why the model stopped; `"other"` before it has, and after an error."""
        return "other" if self._error is not None else self._reading[2](self._so_far())

    @property
    def error(self) -> str | None:
        """What the API said went wrong, in an event of its own; nothing of such a turn may run."""
        return self._error

    @property
    def reason(self) -> str | None:
        """Why there is no answer, or not all of it, in the API's own words, where it says more than `stop`."""
        return None


_LONGEST_ERROR = 1_000


def error_in(event: Any) -> str | None:
    """What an event says of an error, in any of the forms that APIs have for it: `{"error": {...}}`, `{"error": text}`
    or `{"type": "error", "message": text}`."""
    said = view(event)
    inner = said.get("data")
    if inner is not None:
        said = view(inner)
    error = said.get("error")
    if error is None and "error" in (said.get("type"), said.get("event_type"), said.get("object")):
        error = said
    return said_of(error) if error else None


def said_of(error: Any) -> str:
    """An API's error as `kind: message`, or whatever it is as text."""
    said = view(error)
    message = said.get("message")
    kinds = [said.get(key) for key in ("code", "type", "status")]
    kind = next((one for one in kinds if isinstance(one, str) and one and one != "error"), None)
    if isinstance(message, str) and message:
        text = f"{kind}: {message}" if kind else message
    else:
        text = error if isinstance(error, str) else kind or to_text(plain(error))
    return clean(text)[:_LONGEST_ERROR]


def joined(fragments: Sequence[str]) -> str:
    """The text whose fragments these are; a character that was cut in two is whole again."""
    text = "".join(fragments)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return text


def fragment(value: Any) -> str:
    """A fragment as text; nothing for null."""
    return value if isinstance(value, str) else "" if value is None else to_text(plain(value))


def as_object(text: Any) -> Any:
    """The object that `text` is the JSON of; `text` itself where it is none, or none that can be trusted."""
    if not isinstance(text, str):
        return text
    try:
        found = loads(text)
    except Malformed:
        return text
    return found if isinstance(found, dict) else text


_MARKS = re.compile(r'[{}\[\]"]|\\.?', re.DOTALL)


class Brackets:
    """The brackets of a JSON text that comes in fragments: each fragment is looked at once."""

    __slots__ = ("_closed", "_depth", "_escaped", "_quoted", "_seen")

    def __init__(self) -> None:
        self._depth = self._seen = 0
        self._closed = self._quoted = self._escaped = False

    def closed_in(self, fragments: Sequence[str]) -> bool:
        """Whether the first bracket is closed within `fragments`: all those of before, and perhaps more."""
        while not self._closed and self._seen < len(fragments):
            self._closed = self._closed_by(fragments[self._seen])
            self._seen += 1
        return self._closed

    def _closed_by(self, text: str) -> bool:
        rest = text[1:] if self._escaped and text else text
        self._escaped = self._escaped and not text
        for mark in _MARKS.findall(rest):
            if mark[0] == "\\":
                self._escaped = self._quoted and len(mark) == 1
            elif mark == '"':
                self._quoted = not self._quoted
            elif not self._quoted:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    return True
        return False


def place(value: Any) -> int | None:
    """`value` where it can be an index."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def merged(whole: dict[str, Any], delta: Mapping[str, Any], fixed: frozenset[str] = frozenset()) -> None:
    """Adds a delta to what is there: texts are continued (but those of `fixed`), lists are, by the `index` of their
    items where these have one; null says nothing, and anything else is the newer value.

    Fragments of a text are kept in a list until `settled`, so that a long one is joined once.
    """
    for key, value in delta.items():
        if value is None:
            whole.setdefault(key, None)
        elif isinstance(value, str) and key not in fixed:
            kept = whole.get(key)
            if isinstance(kept, _Texts):
                kept.append(value)
            else:
                whole[key] = _Texts([value])
        elif isinstance(value, Mapping):
            inner = whole.get(key)
            if not isinstance(inner, dict):
                inner = whole[key] = {}
            merged(inner, value, _FIXED)
        elif isinstance(value, list):
            _extend(whole, key, value)
        else:
            whole[key] = value


class _Texts(list[str]):
    """Fragments of one text."""


_FIXED = frozenset({"id", "type", "format", "role", "name"})


def _extend(whole: dict[str, Any], key: str, items: list[Any]) -> None:
    kept = whole.get(key)
    if not isinstance(kept, _Items):
        kept = whole[key] = _Items()
    for item in items:
        at = place(item.get("index")) if isinstance(item, Mapping) else None
        if at is None:
            kept.append({} if isinstance(item, Mapping) else item)
        elif at not in kept.places:
            kept.places[at] = len(kept)
            kept.append({})
        if isinstance(item, Mapping):
            merged(kept[-1 if at is None else kept.places[at]], item, _FIXED)


class _Items(list[Any]):
    """Items of one list, and where those with an index stand."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}


def settled(value: Any) -> Any:
    """What `merged` has gathered, as plain data."""
    if isinstance(value, _Texts):
        return joined(value)
    if isinstance(value, dict):
        return {key: settled(item) for key, item in value.items()}
    return [settled(item) for item in value] if isinstance(value, _Items) else value
