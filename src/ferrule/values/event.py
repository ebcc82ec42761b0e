"""`Event`: something that happened."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from time import time as now
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from ferrule.values.call import ToolCall, format_run_id, input_for_record
from ferrule.values.decision import Decision
from ferrule.values.frozen import FrozenDict, make_frozen_class
from ferrule.values.log import log_attributes, write_log
from ferrule.values.result import ToolResult

if TYPE_CHECKING:
    from ferrule.values.context import ContextFields

EventKind: TypeAlias = Literal[
    "tool:pre",
    "tool:decided",
    "tool:started",
    "tool:progress",
    "tool:suspended",
    "tool:post",
    "tool:error",
    "client:refused",
]
About: TypeAlias = ToolResult | Decision | Mapping[str, Any] | None
"""The subject of an event, besides its call."""


class Event:
    """Something that happened. See docs/events.md.

    Attributes:
        kind: `tool:pre` (the call arrived), `tool:decided`, `tool:started` (the call has its slot and keys),
            `tool:progress`, `tool:suspended`, and exactly one of `tool:post` and `tool:error` for every call;
            `client:refused` if a client of a served runner gave no known token.
        call: The call, under the tool's own name; for `client:refused`, a call without a name.
        at: Seconds since the epoch.
        seq: The number of the event in this process; later events have higher numbers.
        session: The conversation of the call.
        principal: The principal on whose behalf it runs.
    """

    __slots__ = ("_about", "_data", "_run", "at", "call", "kind", "principal", "seq", "session")

    kind: EventKind
    call: ToolCall
    at: float
    seq: int
    session: str | None
    principal: str | None
    _data: Mapping[str, Any]

    def __init__(
        self,
        kind: EventKind,
        call: ToolCall,
        about: About = None,
        *,
        session: str | None = None,
        principal: str | None = None,
        run: float | str = 0.0,
    ) -> None:
        self.kind = kind
        self.call = call
        self.at = now()
        self.seq = _next_number()
        self.session = session
        self.principal = principal
        self._run = run
        self._about = about
        self.__class__ = _FrozenEvent

    @property
    def run(self) -> str:
        """The id shared by all events of one call, also after it is resumed in another process."""
        return format_run_id(self._run)

    @property
    def data(self) -> Mapping[str, Any]:
        """The facts of the event: `tool_name` and `input`, and more by its kind.

        - A final event and `tool:suspended`: `result`, and `error` (the text) and `exception` of an unsuccessful one.
        - `tool:decided`: the `decision`, and the name of the person who answered (`by`) if it is known.
        - `tool:progress`: `done`, `total` and `message`; or the `chunk` from the handler; or the `attempt` that failed,
          with its `status`, `error` and `wait`; or the `fault` made by a test.
        - `tool:pre`: the `turn` of the call, if its id may come again in another turn.
        - `client:refused`: the `reason`, and the `address` of the client.

        Hidden values are stars in `input` and in `call`.
        """
        try:
            return self._data
        except AttributeError:  # nobody has read it yet
            data = FrozenDict(self._build())
            _set_data(self, data)
            return data

    @property
    def facts(self) -> About:
        """The subject of the event: a result, a decision, or the facts of its kind."""
        return self._about

    def copy_with(self, call: ToolCall, facts: About) -> Event:
        """Return a copy about another call and subject, with the same time and number."""
        copy: Any = _new_event(Event)
        copy.kind, copy.call, copy._about = self.kind, call, facts
        copy.at, copy.seq, copy._run = self.at, self.seq, self._run
        copy.session, copy.principal = self.session, self.principal
        copy.__class__ = _FrozenEvent
        return copy  # type: ignore[no-any-return]

    def _build(self) -> dict[str, Any]:
        call, about = self.call, self._about
        data: dict[str, Any] = {"tool_name": call.name, "input": input_for_record(call)}
        if isinstance(about, ToolResult):
            data["result"] = about
            if about.status != "ok":
                data |= {"error": about.error, "exception": about.exception}
        elif isinstance(about, Decision):
            data["decision"] = about
        elif about is not None:
            data |= about
        return data

    def __repr__(self) -> str:
        return f"<Event {self.kind} {self.call.name} {self.call.id}>"


_next_number = itertools.count(1).__next__
_set_data = cast("Any", Event.__dict__["_data"]).__set__
_FrozenEvent = make_frozen_class(Event)
_new_event = Event.__new__


def emit(
    observers: tuple[Callable[[Event], object], ...],
    kind: EventKind,
    call: ToolCall,
    about: About,
    caller: ContextFields,
    run: float | str = 0.0,
) -> None:
    """Emit an event to all observers. An observer that raises is logged; the others and the call go on.

    Args:
        caller: The fields of the call's context.
        run: The arrival time of the call, or the id of a resumed call.
    """
    event: Any = _new_event(Event)  # the constructor would make a call with observers 5 % slower
    event.kind = kind
    event.call = call
    event.at = now()
    event.seq = _next_number()
    event.session = caller.session
    event.principal = caller.principal
    event._run = run
    event._about = about
    event.__class__ = _FrozenEvent
    for observer in observers:
        try:
            observer(event)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            facts = log_attributes(call.name, call.id, caller.session, caller.principal)
            write_log(logging.ERROR, facts, "an observer broke on %s of %r", kind, call.name, error=error)
