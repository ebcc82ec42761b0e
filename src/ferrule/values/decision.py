"""`Decision`: allow, ask or deny, with a reason."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Literal, NoReturn, final

from ferrule.errors import DefinitionError
from ferrule.values.content import safe_str
from ferrule.values.frozen import JsonObject
from ferrule.values.log import LogAttributes, write_log


@final
@dataclass(frozen=True, slots=True)
class Decision:
    """Allow, ask or deny, with a reason. Made by `allow`, `ask` and `deny`; the stricter wins. See docs/guards.md.

    Attributes:
        kind: `"allow"`, `"ask"` or `"deny"`.
        reason: For the person or the model; empty for a plain allow.
        arguments: For an allow: the arguments to use instead, or `None`.
        into: For an ask: the name of the parameter that takes the person's answer, or `None` for a yes or no.
        schema: For the question of a running tool: the JSON Schema of the answer, an object; answer it with
            `allow({...})`. `None` for an ask whether the call may run.
        by: The name of the person who answered, if it is known.
        rule: The rule that decided, or else the guard's name. After an answer, the rule that asked.
    """

    kind: Literal["allow", "ask", "deny"]
    reason: str = ""
    arguments: JsonObject | None = field(default=None, kw_only=True, hash=False)
    into: str | None = field(default=None, kw_only=True)
    schema: JsonObject | None = field(default=None, kw_only=True, hash=False)
    by: str | None = field(default=None, kw_only=True)
    rule: str | None = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in _STRICTNESS:
            raise DefinitionError(f"a decision is 'allow', 'ask' or 'deny', not {self.kind!r}")
        given: object = self.reason
        if type(given) is not str:
            object.__setattr__(self, "reason", "" if given is None else safe_str(given))

    def stricter(self, other: Decision) -> Decision:
        """Return the stricter of the two decisions; this one if they are equal."""
        return other if _STRICTNESS[other.kind] > _STRICTNESS[self.kind] else self

    def __bool__(self) -> NoReturn:
        raise TypeError('a Decision is neither true nor false: compare decision.kind with "allow", "ask" or "deny"')


_STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}
ALLOW = Decision("allow")


def allow(arguments: JsonObject | None = None, *, by: str | None = None) -> Decision:
    """Return the decision that the call may run. See docs/guards.md.

    Args:
        arguments: Arguments in place of the call's own. They are judged again.
        by: The name of the person who approved it.
    """
    if by is not None and not isinstance(by, str):
        raise DefinitionError(f"allow(by=…) is the name of the approving person, not {type(by).__name__}")
    return ALLOW if arguments is None and by is None else Decision("allow", arguments=arguments, by=by)


def ask(reason: str, *, into: str | None = None, rule: str | None = None) -> Decision:
    """Return the decision that a person is asked. With `into`, the answer is the value of that parameter.

    See docs/guards.md.
    """
    return Decision("ask", reason, into=into, rule=rule)


def deny(reason: str, *, rule: str | None = None) -> Decision:
    """Return the decision that the call may not run. The model reads `reason`. See docs/guards.md."""
    return Decision("deny", reason, rule=rule)


def deny_unreadable_answer(answer: object, tool_name: str, facts: LogAttributes) -> Decision:
    """Return the deny for an approver's answer that is neither a decision nor a bool, and log what would be right."""
    kind = type(answer).__name__
    text = "the approver of tool %r returned %s: it must return True, False, allow(…), ask(…) or deny(…)"
    write_log(logging.ERROR, facts, text, tool_name, kind)
    return deny(f"the approver returned {kind}, which is neither a yes nor a no")
