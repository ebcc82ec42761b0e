"""`Decision`: allow, ask or deny, with a reason."""

from __future__ import annotations

from operator import attrgetter
from typing import Literal, NoReturn

from ferrule.errors import DefinitionError
from ferrule.values.content import text_of
from ferrule.values.frozen import JsonObject, frozen


class Decision:
    """Allow, ask or deny, with a reason. Made by `allow`, `ask` and `deny`; the stricter wins.

    Attributes:
        kind: `"allow"`, `"ask"` or `"deny"`.
        reason: For the person or the model; empty for a plain allow.
        arguments: For an allow: the arguments that are to be used instead, or `None`.
        into: For an ask: the parameter whose value a person supplies, or `None`.
    """

    __slots__ = ("arguments", "into", "kind", "reason")

    def __init__(
        self,
        kind: Literal["allow", "ask", "deny"],
        reason: str = "",
        *,
        arguments: JsonObject | None = None,
        into: str | None = None,
    ) -> None:
        if kind not in _STRICTNESS:
            raise DefinitionError(f"a decision is 'allow', 'ask' or 'deny', not {kind!r}")
        self.kind = kind
        given: object = reason
        self.reason = "" if given is None else reason if type(given) is str else text_of(given)
        self.arguments = arguments
        self.into = into
        self.__class__ = _FrozenDecision

    def stricter(self, other: Decision) -> Decision:
        """The stricter of the two; this one where they are equal."""
        return other if _STRICTNESS[other.kind] > _STRICTNESS[self.kind] else self

    def __bool__(self) -> NoReturn:
        raise TypeError('a Decision is neither true nor false: compare decision.kind with "allow", "ask" or "deny"')

    def __eq__(self, other: object) -> bool:
        return _compared(self) == _compared(other) if isinstance(other, Decision) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.kind, self.reason, self.into))

    def __repr__(self) -> str:
        shown = [repr(self.reason)] if self.reason else []
        if self.arguments is not None:
            shown.append(f"arguments={dict(self.arguments)!r}")
        if self.into:
            shown.append(f"into={self.into!r}")
        return f"{self.kind}({', '.join(shown)})"


_compared = attrgetter("kind", "reason", "arguments", "into")
_STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}
_FrozenDecision = frozen(Decision)
ALLOW = Decision("allow")


def allow(arguments: JsonObject | None = None) -> Decision:
    """The call may run, with `arguments` instead of its own where they are given (they are judged again)."""
    return ALLOW if arguments is None else Decision("allow", arguments=arguments)


def ask(reason: str, *, into: str | None = None) -> Decision:
    """A person decides; with `into`, a person supplies the value of that parameter."""
    return Decision("ask", reason, into=into)


def deny(reason: str) -> Decision:
    """The call may not run; `reason` is shown to the model."""
    return Decision("deny", reason)
