"""Redact known secrets in everything that leaves a call: errors, reasons, progress, log lines.

A call that succeeds runs none of this.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, partial
from logging import ERROR, INFO
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ferrule.security.masking import mask_certain_credentials
from ferrule.security.redaction import redact_value
from ferrule.values.decision import Decision
from ferrule.values.frozen import FrozenDict, JsonObject, freeze
from ferrule.values.json_text import SECRET_STARS
from ferrule.values.log import LogAttributes, LogLines, log_attributes, write_log

if TYPE_CHECKING:
    from ferrule.kernel.state import CallState
    from ferrule.values.context import RunningCall

    AnyCall: TypeAlias = RunningCall | CallState

Json = TypeVar("Json")
_IN_WORDS = ("title", "description", "$comment")
_IN_DATA = ("const", "enum", "default", "examples")
_NOTHING: JsonObject = FrozenDict()
_LONGEST_LOGGED_TEXT = 5_000
REDACT_KNOWN: ContextVar[Callable[[str], str]] = ContextVar("ferrule_redact_known", default=str)
"""Puts stars for the secrets of the call whose event or journal entry is written now. An observer may use it."""


def redact(call: AnyCall, value: Json, given: JsonObject = _NOTHING) -> Json:
    """Return a text, JSON data or a result with stars for the secrets of the call and hidden values in `given`."""
    redactor = make_call_redactor(call, given)
    return value if redactor is str else redact_value(value, redactor)


def redact_question(call: AnyCall, decision: Decision) -> Decision:
    """Return a decision that may leave the call.

    Its texts have stars for secrets. In its schema, which is enforced, only titles and descriptions have. It has
    arguments only if it allows.
    """
    reason, by, rule = redact(call, (decision.reason, decision.by, decision.rule))
    schema = decision.schema
    if schema is not None:
        schema = freeze(_redact_in_schema(schema, partial(redact, call)))
    arguments = decision.arguments if decision.kind == "allow" else None
    return replace(decision, reason=reason, by=by, rule=rule, schema=schema, arguments=arguments)


def _redact_in_schema(node: Any, redactor: Callable[[str], str]) -> Any:
    if isinstance(node, list | tuple):
        return [_redact_in_schema(item, redactor) for item in node]
    if not isinstance(node, Mapping):
        return node
    made = {key: item if key in _IN_DATA else _redact_in_schema(item, redactor) for key, item in node.items()}
    return made | {key: redactor(made[key]) for key in _IN_WORDS if isinstance(made.get(key), str)}


def log_exception(call: AnyCall, message: str, *about: object, error: BaseException, level: int = ERROR) -> None:
    """Log an exception with its traceback and with stars for secrets."""
    redactor, whole = make_call_redactor(call), "".join(traceback.format_exception(error)).rstrip()
    shown = mask_certain_credentials(redactor(whole))
    if redactor is str and shown == whole:
        write_log(level, get_log_facts(call), message, *about, error=error)
    else:
        write_log(level, get_log_facts(call), "%s%s", redactor(message % about), LogLines(shown))


def log_text(call: AnyCall, message: str, text: str, *, level: int = INFO) -> None:
    """Log the name of a tool and the beginning of its text. Known secrets are hidden in the text already."""
    shown = mask_certain_credentials(text[:_LONGEST_LOGGED_TEXT])
    write_log(level, get_log_facts(call), f"{message}: %.500r", call.tool.name, shown)


def get_log_facts(call: AnyCall) -> LogAttributes:
    """Return the attributes of a log record about a call: its tool, id, session and principal."""
    return log_attributes(call.tool.name, call.call.id, call.context.session, call.context.principal)


@contextmanager
def redacting(call: AnyCall | None, secrets: object = None, *, expires: bool = False) -> Iterator[None]:
    """Set `REDACT_KNOWN` to the secrets of a call, and to others. They are looked up at the first use.

    Args:
        expires: Whether tasks that are started meanwhile forget them at the end. A write to a journal may go on.
    """
    before = REDACT_KNOWN.get()
    live = [cache(partial(make_call_redactor, call, secrets=secrets))]
    REDACT_KNOWN.set(lambda text: live[0]()(text) if live else text)
    try:
        yield
    finally:
        if expires:
            live.clear()
        REDACT_KNOWN.set(before)  # `reset` would raise if a closed loop ends the call


def make_call_redactor(
    call: AnyCall | None, given: JsonObject = _NOTHING, *, with_parents: bool = True, secrets: object = None
) -> Callable[[str], str]:
    """Return a function that puts stars for the secrets of a call into a text; `str` if the call has none.

    These are the secrets and hidden values of the call and of the calls that made it, and further `secrets`.
    """
    known = [secrets] if secrets else []
    source: AnyCall | None = call
    try:
        while source is not None:
            tool: Any = source.tool
            parameters = tool.handling.parameters
            if source.context.secrets:
                known.append(source.context.secrets)
            if parameters.hidden:
                sides = source.call.arguments, given
                known += parameters.bound, [one.get(name) for one in sides for name in parameters.hidden]
            source = source.parent if with_parents else None
        if not known:
            return str
        from ferrule.security.redactor import make_redactor  # for the programs that have secrets

        return make_redactor(known)
    except Exception:  # a foreign mapping may raise anything
        return lambda text: SECRET_STARS
