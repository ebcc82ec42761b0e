"""`ToolCall`: one request to run one tool."""

from __future__ import annotations

import itertools
import os
from operator import attrgetter
from typing import Any, cast

from ferrule.values.arguments import Arguments, redact_hidden
from ferrule.values.frozen import JsonObject, freeze, make_frozen_class


class ToolCall:
    """One request to run one tool. See docs/start/first-tool.md.

    Args:
        id: The call's id, as the provider gave it. The runner makes one if it is empty.
        name: The tool's name, as the model wrote it.
        arguments: JSON text, a mapping, or nothing.
        problem: The reason why the call must not run, if the provider knows one (a turn that was cut off).
        data: Data for the provider, returned verbatim.
        parent: The id of the call whose handler made this one.
    """

    __slots__ = ("_arguments", "data", "id", "name", "parent", "problem", "raw")
    id: str
    name: str
    raw: str | JsonObject | None
    """The arguments as they came."""

    def __init__(
        self,
        id: str,
        name: str,
        arguments: str | JsonObject | None = None,
        *,
        problem: str | None = None,
        data: object = None,
        parent: str | None = None,
    ) -> None:
        if not isinstance(id, str) or not isinstance(name, str):  # type: ignore[redundant-expr]
            raise TypeError(f"the id and the name of a call are texts, not {id!r} and {name!r}")
        self.id = id
        self.name = name
        self.raw = arguments
        self.problem = problem
        self.data = data
        self.parent = parent
        self._arguments: Arguments | None = None
        self.__class__ = _FrozenCall

    @property
    def arguments(self) -> Arguments:
        """The arguments as a read-only mapping; empty if they do not decode."""
        arguments = self._arguments
        if arguments is None:
            arguments = Arguments(self.raw)
            _set_arguments(self, arguments)
        return arguments

    def replace(self, **changes: Any) -> ToolCall:
        """Return a changed copy; `changes` are the constructor's arguments."""
        fields = {name: getattr(self, name) for name in ("id", "name", "problem", "data", "parent")}
        return ToolCall(**{"arguments": self.raw, **fields, **changes})

    def __eq__(self, other: object) -> bool:
        return _comparison_key(self) == _comparison_key(other) if isinstance(other, ToolCall) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.id, self.name))

    def __repr__(self) -> str:
        arguments = self._arguments
        shown = self.raw if arguments is None or not arguments.hidden else arguments
        return f"ToolCall({self.id!r}, {self.name!r}, {shown!r})"


_comparison_key = attrgetter("id", "name", "raw", "problem", "data", "parent")
_set_arguments = cast("Any", ToolCall.__dict__["_arguments"]).__set__
_FrozenCall = make_frozen_class(ToolCall)
_new_call = ToolCall.__new__


_ids = itertools.count(1)
_process = ""


def _name_process() -> None:
    global _process
    _process = os.urandom(8).hex()


_name_process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_name_process)


def new_id() -> str:
    """Return an id for a call without one. Neither a model nor another process makes the same id."""
    return f"call_{_process}_{next(_ids)}"


def format_run_id(run: float | str) -> str:
    """Return the id of a call in its events, unique among all processes, from its arrival time by `perf_counter`.

    An id made by another process stays as it is.
    """
    return run if isinstance(run, str) else f"{_process}_{run}"


def make_judged_call(call: ToolCall, arguments: Arguments) -> ToolCall:
    """Return a copy of `call` with its judged arguments. It is made faster than by the constructor."""
    judged: Any = _new_call(ToolCall)
    judged.id = call.id
    judged.name = call.name
    judged.raw = arguments.raw
    judged.problem = None
    judged.data = call.data
    judged.parent = call.parent
    judged._arguments = arguments
    judged.__class__ = _FrozenCall
    return judged  # type: ignore[no-any-return]


def redact_call(call: ToolCall, hidden: frozenset[str]) -> ToolCall:
    """Return `call` with stars for the parameters in `hidden`."""
    if hidden.isdisjoint(call.arguments):
        return call
    return call.replace(arguments=freeze(redact_hidden(call.arguments, hidden)))


def input_for_record(call: ToolCall) -> JsonObject | str:
    """Return the arguments for events and records: the text as it was sent if it does not decode."""
    raw = call.raw
    if isinstance(raw, str) and raw.strip() not in ("", "{}", "null") and not call.arguments:
        return raw
    return call.arguments
