"""A queue of suspended calls that a page or a chat bot drains, each answered once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ferrule.approval.asked import Asked, off_the_loop
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, FerruleError
from ferrule.store import Memory, Store
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision
from ferrule.values.frozen import JsonObject, freeze, thaw
from ferrule.values.result import ToolResult

_WAITS = "waiting "


class AnswerRefused(FerruleError):
    """An answer that does not count; nothing was taken. See docs/approvals.md#a-page-or-a-chat-bot."""


class NotWaiting(AnswerRefused):
    """No call of this id waits: it is not known, or has expired. See docs/approvals.md#a-page-or-a-chat-bot."""


class AlreadyAnswered(AnswerRefused):
    """Somebody else has answered before. See docs/approvals.md#a-page-or-a-chat-bot."""


class NotAsShown(AnswerRefused):
    """What would be answered is not what was shown; show it anew. See docs/approvals.md#a-page-or-a-chat-bot."""


class OwnCall(AnswerRefused):
    """Nobody may allow a call of their own here. See docs/approvals.md#a-page-or-a-chat-bot."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A suspended call that waits for an answer. See docs/approvals.md#a-page-or-a-chat-bot.

    Attributes:
        id: Of its record.
        asked: The question, with the preview as it is now.
        record: What takes it up again.
        digest: Of all that is to be shown, which comes back with the answer.
        expires_at: Seconds since the epoch.
    """

    id: str
    asked: Asked
    record: JsonObject
    digest: str
    expires_at: float

    @property
    def text(self) -> str:
        """The whole question, as lines."""
        return self.asked.text


class Taken(NamedTuple):
    """The one answer that counts, for `runner.resume(taken.record, taken.decision, by=taken.by)`.
    See docs/approvals.md#a-page-or-a-chat-bot."""

    record: JsonObject
    decision: Decision
    by: str


class Web:
    """What `web` makes."""

    def __init__(self, store: Store, tools: Mapping[str, Tool], own: bool) -> None:
        self.store = store
        self.tools = tools
        self.own = own

    async def put(self, suspended: ToolResult | JsonObject) -> str:
        """Have a suspended call wait, a result or its `.record()`; its id. One that is put again waits again, which
        the runner takes up once all the same.

        Raises:
            DefinitionError: for what is no suspended call.
        """
        record: object = suspended.record() if isinstance(suspended, ToolResult) else suspended
        try:
            kept = {"pending": thaw(record["pending"])}  # type: ignore[index]
            pending = kept["pending"]
            self._check_shown(pending)
        except (LookupError, TypeError, ValueError, AttributeError, FerruleError) as error:
            raise DefinitionError("put(…) takes a suspended result, or its .record(), and this is none") from error

        def put() -> None:
            self._forget_expired()
            while not self.store.compare_and_set(
                _store_key(pending["key"]), self.store.get(_store_key(pending["key"])), kept
            ):
                pass

        await off_the_loop(put)
        return str(pending["key"])

    def _check_shown(self, pending: JsonObject) -> None:
        """Refuse what cannot be kept, shown or put in order, which would stand in the way of all that waits."""
        json.dumps(pending, allow_nan=False)
        pending["key"] + self._asked(pending).text  # a text
        pending["asked_at"] + pending["expires_at"] + 0.0  # numbers

    async def waiting(self) -> list[Waiting]:
        """All that waits, the oldest first, each with its preview as it is now."""
        return await off_the_loop(self._all_waiting)

    async def answer(self, id: str, digest: str, given: Decision | bool, *, by: str) -> Taken:
        """Take the call of this id with its answer, once: the first answer wins.

        Args:
            id: Of the record that was shown.
            digest: Of what was shown.
            given: `True`, `False`, or `allow(…)` or `deny(…)`.
            by: Who answers, as your application's sign-in says; never what a body says.

        Raises:
            AnswerRefused: where the answer does not count; nothing is taken then.
            DefinitionError: for what is no answer, and without `by`.
        """
        answer: object = given  # perhaps of a body
        if not isinstance(answer, bool) and not (isinstance(answer, Decision) and answer.kind != "ask"):
            raise DefinitionError(f"an answer is True, False, allow(…) or deny(…), not {answer!r}")
        who: object = by
        if not isinstance(who, str) or not who:
            raise DefinitionError("answer(by=…) is the name of who answers, as your application's sign-in says")
        return await off_the_loop(lambda: self._take(id, digest, given, by))

    def _take(self, id: str, digest: str, given: Decision | bool, by: str) -> Taken:
        kept = self.store.get(_store_key(id))
        if kept is not None and "answered" in kept:
            raise AlreadyAnswered(f"{kept['answered']} has answered this before; nothing came of this answer")
        found = None if kept is None else self._waiting(id, kept)
        if found is None:
            raise NotWaiting("no call of this id waits: it is not known, or its time is over")
        if found.digest != digest:
            raise NotAsShown("this is not what was shown, or it has changed since: look at it again, and answer then")
        decision = replace(found.asked.answered(given).decision, by=by)
        if decision.kind == "allow" and not self.own and (barred := found.asked.barred(by)) is not None:
            raise OwnCall(barred)
        answered = {"answered": by, "pending": {"expires_at": found.expires_at}}
        if not self.store.compare_and_set(_store_key(id), kept, answered):
            raise AlreadyAnswered("somebody else has answered this before; nothing came of this answer")
        return Taken(found.record, decision, by)

    def _all_waiting(self) -> list[Waiting]:
        self._forget_expired()
        kept = self.store.items(_WAITS).items()
        found = [self._waiting(place.removeprefix(_WAITS), one) for place, one in kept if "answered" not in one]
        return sorted((one for one in found if one is not None), key=lambda one: one.record["pending"]["asked_at"])

    def _waiting(self, id: str, kept: JsonObject) -> Waiting | None:
        """What is kept under this id, where it is the record of that id and has not expired."""
        pending = kept["pending"]
        if pending["key"] != id or pending["expires_at"] <= time.time():
            return None
        asked = self._asked(pending).previewed()
        return Waiting(id, asked, freeze(kept), asked.digest, pending["expires_at"])

    def _asked(self, pending: JsonObject) -> Asked:
        name = pending["call"]["name"]
        call = ToolCall(pending["call"]["id"], name, pending["arguments"], parent=pending["call"]["parent"])
        wanted = None if pending["schema"] is None else freeze(pending["schema"])
        decision = Decision("ask", pending["reason"], into=pending["into"], schema=wanted, rule=pending["rule"])
        tool = self.tools.get(name) if pending["listed"] else None
        return Asked(call, decision, ToolContext(**pending["context"]), tool=tool)

    def _forget_expired(self) -> None:
        for place, kept in self.store.items(_WAITS).items():
            if kept["pending"]["expires_at"] <= time.time():
                self.store.compare_and_set(place, kept, None)


def _store_key(id: str) -> str:
    return f"{_WAITS}{id}"


def web(store: Store | None = None, *, tools: Iterable[Tool] = (), own: bool = True) -> Web:
    """A queue of suspended calls for a page or a chat bot, of a runner that has `approval.later` as its approver.
    See docs/approvals.md#a-page-or-a-chat-bot.

    Args:
        store: Where they wait; in the memory of this process where it is left out.
        tools: Whose previews are shown, such as `runner.tools`. What a yes says yes to is bound to them.
        own: Whether a principal may allow its own calls.
    """
    return Web(Memory() if store is None else store, {tool.name: tool for tool in tools}, own)
