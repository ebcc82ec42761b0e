"""Values that are known to be secret, as stars in every text that leaves a call: errors, reasons, progress, the log.
Nothing of it is on the way of a call that succeeds."""

from __future__ import annotations

import json
import re
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from functools import lru_cache, partial
from logging import DEBUG, ERROR, INFO
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from ferrule.values.decision import Decision
from ferrule.values.frozen import FrozenDict, JsonObject, fields_of, freeze
from ferrule.values.json_text import SECRET_STARS
from ferrule.values.logged import CallFacts, LogLines, call_facts, log, write_log
from ferrule.values.masking import without_keys
from ferrule.values.redaction import redact_result, redact_value

if TYPE_CHECKING:
    from ferrule.pipeline.state import CallState
    from ferrule.values.context import RunningCall
    from ferrule.values.result import ToolResult

    AnyCall: TypeAlias = RunningCall | CallState

Json = TypeVar("Json")
_WRITTEN_ONE_WAY = re.compile(r"[\w.~-]+", re.ASCII).fullmatch
_IN_WORDS = ("title", "description", "$comment")
_IN_DATA = ("const", "enum", "default", "examples")
_NOTHING: JsonObject = FrozenDict()
_LONGEST_SAID = 5_000
_LONGEST_BRIEF_LINE = 500
_SHORTEST = 4
_SHORTEST_ANYWHERE = 8
"""Shorter ones are stars as whole words alone: `read` that is bound is not to be one in `ready`."""
_WRITTEN_BY_STR = ("uuid", "decimal", "datetime", "ipaddress")
_ESCAPED_BREAK = r"\\+(?:[nrx]|(?=/))"
"""What may stand between the characters of base64 and hex, beside blanks and `:`, in JSON and in `repr`."""


def hide(call: AnyCall, value: Json, given: JsonObject = _NOTHING) -> Json:
    """A text, or JSON data, with stars in the place of what the call knows to be secret, and of what is bound or
    private in arguments that somebody has given for it."""
    hiding = redactor_of(call, given)
    return value if hiding is str else redact_value(value, hiding)


def hide_result(call: AnyCall, result: ToolResult) -> ToolResult:
    """Return a result with stars for what the call knows to be secret, wherever it stands in the result."""
    hiding = redactor_of(call)
    return result if hiding is str else redact_result(result, hiding)


def hide_question(call: AnyCall, decision: Decision) -> Decision:
    """The decision as it may leave the call: with stars in all that somebody has written, of its schema, which is
    enforced as it is, in what that says in words; and with arguments only where it allows."""
    reason, by, rule = hide(call, (decision.reason, decision.by, decision.rule))
    schema = decision.schema
    if schema is not None:
        schema = freeze(_described(schema, partial(hide, call)))
    arguments = decision.arguments if decision.kind == "allow" else None
    return replace(decision, reason=reason, by=by, rule=rule, schema=schema, arguments=arguments)


def _described(node: Any, hiding: Callable[[str], str]) -> Any:
    if isinstance(node, list | tuple):
        return [_described(item, hiding) for item in node]
    if not isinstance(node, Mapping):
        return node
    made = {key: item if key in _IN_DATA else _described(item, hiding) for key, item in node.items()}
    return made | {key: hiding(made[key]) for key in _IN_WORDS if isinstance(made.get(key), str)}


def log_raised(call: AnyCall, message: str, *about: object, error: BaseException, level: int = ERROR) -> None:
    """Log an exception with its traceback. A secret in it becomes stars, and a call of a long batch logs one line."""
    if getattr(getattr(call, "origin", None), "brief_log", False) and not log.isEnabledFor(DEBUG):
        said = without_keys(hide(call, f"{message % about}: {type(error).__name__}: {error}"))
        write_log(level, facts_of(call), "%s", said[:_LONGEST_BRIEF_LINE])
        return
    hiding, whole = redactor_of(call), "".join(traceback.format_exception(error)).rstrip()
    shown = without_keys(hiding(whole))
    if hiding is str and shown == whole:
        write_log(level, facts_of(call), message, *about, error=error)
    else:
        write_log(level, facts_of(call), "%s%s", hiding(message % about), LogLines(shown))


def log_said(call: AnyCall, message: str, text: str, *, level: int = INFO) -> None:
    """Write down a tool's name and the beginning of what it said, whose known secrets are hidden already."""
    said = without_keys(text[:_LONGEST_SAID])
    write_log(level, facts_of(call), f"{message}: %.500r", call.tool.name, said)


def facts_of(call: AnyCall) -> CallFacts:
    """What a record of the log about a call has as attributes: which one it is, and whose."""
    return call_facts(call.tool.name, call.call.id, call.context.session, call.context.principal)


def redactor_of(call: AnyCall, given: JsonObject = _NOTHING) -> Callable[[str], str]:
    """Return what puts stars for the secrets of a call into a text; `str` if the call knows none."""
    try:
        known = list(filter(None, _known_secrets(call, given)))  # mostly nothing: 1 µs, and 10 where one looks into it
        forms = [_written_forms(secret) for secret in set(_secrets_in(known))] if known else ()
    except Exception:  # of a mapping of somebody's own
        return lambda text: SECRET_STARS
    texts = _longest_first(one.texts for one in forms)
    return partial(_put_stars, texts, _longest_first(one.encoded for one in forms)) if texts else str


def _longest_first(forms: Iterable[frozenset[str]]) -> list[str]:
    return sorted(frozenset().union(*forms), key=len, reverse=True)


def _known_secrets(call: AnyCall | None, given: JsonObject) -> Iterator[object]:
    """The secrets, and what is bound and private, of a call and of those that made it; in a worker, of what it runs."""
    while call is not None:
        tool: Any = call.tool
        parameters = tool.handling.parameters
        yield call.context.secrets
        yield parameters.bound
        yield [arguments.get(name) for arguments in (call.call.arguments, given) for name in parameters.hidden]
        call = call.parent


def _secrets_in(value: Any) -> Iterator[str | bytes]:
    """The texts and bytes in `value`, at any depth; keys and the names of fields are none."""
    unveiled = getattr(value, "get_secret_value", None)
    if unveiled is not None:
        yield from _secrets_in(unveiled())
    elif isinstance(value, str):
        yield str.__str__(value)  # a class may write stars of its own
    elif isinstance(value, bytes | bytearray | memoryview):
        yield bytes(value)
    elif isinstance(value, PathLike):
        yield fspath(value)
    elif (
        isinstance(value, int | float) or hasattr(value, "unicode_string") or type(value).__module__ in _WRITTEN_BY_STR
    ):
        yield from () if isinstance(value, bool) else (str(value),)
    else:
        for inner in _members_of(value):
            yield from _secrets_in(inner)


def _members_of(value: Any) -> Iterable[Any]:
    if isinstance(value, Enum):
        return (value.value,)
    value = fields_of(value) or value
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, Iterable) else ()


class _Forms(NamedTuple):
    """How one secret is written: as texts, and as base64 and hex, in which breaks do not count."""

    texts: frozenset[str]
    encoded: frozenset[str]


@lru_cache(maxsize=256)
def _written_forms(secret: str | bytes) -> _Forms:
    """The forms of a secret that is long enough."""
    text = secret.decode("utf-8", "surrogateescape") if isinstance(secret, bytes) else secret
    if len(text) < _SHORTEST:
        return _Forms(frozenset(), frozenset())
    if len(text) < _SHORTEST_ANYWHERE:
        return _Forms(frozenset(_ways_of_writing(text)), frozenset())
    wide = [] if isinstance(secret, bytes) else [text.encode(f"utf-16-{end}", "surrogatepass") for end in ("le", "be")]
    data = [secret if isinstance(secret, bytes) else _encode_secret(text), *wide]
    wide_texts = [one.decode("utf-8", "surrogateescape") for one in wide]
    return _Forms(
        frozenset([*_ways_of_writing(text), *wide_texts, *(repr(one)[1:-1] for one in wide_texts)]),
        frozenset(form for one in data for form in (*_base64_forms(one), one.hex(), one.hex().upper())),
    )


def _ways_of_writing(text: str) -> list[str]:
    if _WRITTEN_ONE_WAY(text):
        return [text]
    from urllib.parse import quote, quote_plus  # 3 ms

    lines = [line for line in text.splitlines() if len(line) >= _SHORTEST_ANYWHERE]
    json_texts = [json.dumps(text, ensure_ascii=plain)[1:-1] for plain in (True, False)]
    json_texts += [json.dumps(one, ensure_ascii=False)[1:-1] for one in json_texts]  # JSON in JSON
    json_texts += [one.replace("/", "\\/") for one in json_texts if "/" in one]
    quoted = [
        quote(text, errors="surrogatepass"),
        quote(text, safe="", errors="surrogatepass"),
        quote_plus(text, errors="surrogatepass"),
    ]
    lower = [re.sub("%..", lambda escape: escape[0].lower(), one) for one in quoted]
    return [text, repr(text)[1:-1], repr(_encode_secret(text))[2:-1], *json_texts, *quoted, *lower, *lines]


def _encode_secret(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")  # bytes that are no UTF-8 were decoded so
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _base64_forms(data: bytes) -> list[str]:
    """Return the characters that stand for `data` wherever it begins in longer base64, in both alphabets."""
    forms = []
    for before in range(3):
        encoded = b64encode(bytes(before) + data).decode().rstrip("=")
        # The first characters hold bits of what comes before, and the last one may hold bits of what follows.
        own = encoded[-(-before * 4 // 3) : (before + len(data)) * 4 // 3]
        forms += [own, own.replace("+", "-").replace("/", "_")]
    return forms


def _put_stars(texts: list[str], encoded: list[str], text: str) -> str:
    """`text` with stars in the place of each of `texts`, and of each of `encoded` when the breaks are left out."""
    if found := [_expression(one) for one in texts if one in text]:  # an expression of all would take 8 ms to compile
        text = re.sub("|".join(found), SECRET_STARS, text)
    unbroken = "".join((re.sub(_ESCAPED_BREAK, "", text) if "\\" in text else text).replace(":", "").split())
    if not (found := [re.escape(one) for one in encoded if one in unbroken]):
        return text
    places = [one.start() for one in re.finditer(rf"(?s)[\s:]|{_ESCAPED_BREAK}|(.)", text) if one[1]]
    pieces, at = [], 0
    for match in re.finditer("|".join(found), unbroken):
        pieces += [text[at : places[match.start()]], SECRET_STARS]
        at = places[match.end() - 1] + 1
    return "".join([*pieces, text[at:]])


def _expression(secret: str) -> str:
    escaped = re.escape(secret)
    return escaped if len(secret) >= _SHORTEST_ANYWHERE else rf"(?<!\w){escaped}(?!\w)"
