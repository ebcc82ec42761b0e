"""`ToolCall`: one request to run one tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ferrule.values.arguments import Arguments, Shape
from ferrule.values.frozen import frozen


class ToolCall:
    """One request to run one tool.

    Args:
        id: The call's id, as the provider gave it; the runner makes one where it is empty.
        name: The tool's name, as the model wrote it.
        arguments: JSON text, a mapping, or nothing.
        problem: Why the provider already knows that this call must not run (a turn that was cut off).
        data: What the provider needs back verbatim.
        parent: The id of the call whose handler made this one.
    """

    __slots__ = ("_arguments", "data", "id", "name", "parent", "problem", "raw")
    id: str
    name: str
    raw: str | Mapping[str, Any] | None
    """The arguments as they came."""

    def __init__(
        self,
        id: str,
        name: str,
        arguments: str | Mapping[str, Any] | None = None,
        *,
        problem: str | None = None,
        data: Any = None,
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
        """The arguments as a read-only mapping; empty where they do not decode, which is answered at *decode*."""
        arguments = self._arguments
        if arguments is None:
            arguments = Arguments(self.raw)
            _keep_arguments(self, arguments)
        return arguments

    def replace(self, **changes: Any) -> ToolCall:
        """A changed copy; `changes` are the constructor's arguments."""
        kept: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "arguments": self.raw,
            "problem": self.problem,
            "data": self.data,
            "parent": self.parent,
        }
        return ToolCall(**{**kept, **changes})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolCall):
            return NotImplemented
        return (self.id, self.name, self.raw, self.problem, self.data, self.parent) == (
            other.id,
            other.name,
            other.raw,
            other.problem,
            other.data,
            other.parent,
        )

    def __hash__(self) -> int:
        return hash((self.id, self.name))

    def __repr__(self) -> str:
        return f"ToolCall({self.id!r}, {self.name!r}, {self.raw!r})"


_keep_arguments = cast("Any", ToolCall.__dict__["_arguments"]).__set__
_FrozenCall = frozen(ToolCall)


def judged_call(call: ToolCall, raw: str, given: Any = None, shape: Shape | None = None) -> ToolCall:
    """`call` with the arguments that are judged and run: as the constructors make both, at a third of the cost."""
    arguments = object.__new__(Arguments)
    arguments._raw = raw
    arguments._given = given
    arguments._shape = shape
    arguments._full = None
    judged = object.__new__(ToolCall)
    judged.id = call.id
    judged.name = call.name
    judged.raw = raw
    judged.problem = None
    judged.data = call.data
    judged.parent = call.parent
    judged._arguments = arguments
    judged.__class__ = _FrozenCall
    return judged
