"""A queue of calls that wait for a person, for a page or a chat bot. Each call is answered once.

Suspended calls wait as sealed records, and `webhook` adds the live questions of running calls.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ferrule.approval.live import LiveQuestion, format_answer, make_live_row
from ferrule.approval.request import Asked, add_preview, add_previews, run_blocking
from ferrule.definition.tool import Tool
from ferrule.errors import DefinitionError, FerruleError
from ferrule.stores.store import BrokenRow, Memory, Store, read_row, replace_row
from ferrule.values.call import ToolCall
from ferrule.values.call_key import hash_parts
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision
from ferrule.values.frozen import JsonObject, freeze, thaw
from ferrule.values.result import ToolResult, find_pending, find_question


class AnswerRefused(FerruleError):
    """An answer that does not count. It takes no call from the queue. See docs/approvals.md#a-page-or-a-chat-bot."""


class NotWaiting(AnswerRefused):
    """No call with this id waits: it is unknown or has expired. See docs/approvals.md#a-page-or-a-chat-bot."""


class AlreadyAnswered(AnswerRefused):
    """Somebody else has answered first. See docs/approvals.md#a-page-or-a-chat-bot."""


class QuestionChanged(AnswerRefused):
    """The question differs from the one shown. Show it again. See docs/approvals.md#a-page-or-a-chat-bot."""


class OwnCall(AnswerRefused):
    """Nobody may allow their own call here. See docs/approvals.md#a-page-or-a-chat-bot."""


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A suspended call without an answer. See docs/approvals.md#a-page-or-a-chat-bot.

    Attributes:
        id: The id of its record.
        request: The question, with a current preview.
        record: The record for resuming the call.
        expires_at: Seconds since the epoch.
        problem: The reason why the stored record cannot be read, or `None`. Such a call can only be denied.
    """

    id: str
    request: Asked
    record: JsonObject
    expires_at: float
    problem: str | None = None

    @property
    def text(self) -> str:
        """The whole question, as lines."""
        return self.request.text

    @property
    def digest(self) -> str:
        """The digest of everything shown. It comes back with the answer.

        That of a live question is salted: nobody who sees it can try which secret stands behind the stars.
        """
        found = self.request.digest
        return hash_parts(self.record["live"]["salt"], found) if self.is_live else found

    @property
    def is_live(self) -> bool:
        """Whether a running call waits for the answer, so there is nothing to resume."""
        return "live" in self.record


class AcceptedAnswer(NamedTuple):
    """The one answer that counts, for `runner.resume(taken.record, taken.decision, by=taken.by)`.

    See docs/approvals.md#a-page-or-a-chat-bot.
    """

    record: JsonObject
    decision: Decision
    by: str

    @property
    def is_live(self) -> bool:
        """Whether a running call has got the answer, so there is nothing to resume."""
        return "live" in self.record


class Web:
    """The queue made by `web`."""

    def __init__(self, store: Store, tools: Mapping[str, Tool], own: bool, name: str) -> None:
        self.store = store
        self.tools = tools
        self.own = own
        self._prefix = f"waiting-{name} " if name else "waiting "
        self._live: dict[str, LiveQuestion] = {}

    async def put(self, suspended: ToolResult | JsonObject) -> str:
        """Add a suspended call, as a result, its `.pending` or its `.record()`, and return its id.

        A call added twice waits again, but the runner resumes it only once.

        Raises:
            NotWaiting: It has expired.
            DefinitionError: It is no suspended call, or it cannot be stored or shown.
        """
        pending = find_pending("put", suspended)
        read = read_row(pending, lambda pending: self._read(pending["key"], {"pending": thaw(pending)}))
        if isinstance(read, BrokenRow):
            raise DefinitionError(
                f"put takes a call suspended by a runner, and this record cannot be read: {read.problem}"
            )
        if _has_expired(read.record):
            raise NotWaiting(f"the call with the id {read.id!r} has expired: resume it with False, to end its run")
        await run_blocking(lambda: replace_row(self.store, self._prefix + read.id, _pack(thaw(read.record))))
        return read.id

    async def waiting(self) -> list[WaitingCall]:
        """Return all waiting calls, the oldest first, each with a current preview.

        The previews are made in parallel, within 10 s for all. Unreadable records come first, with their `problem`.
        """
        return await run_blocking(self._list_waiting)

    async def count(self) -> int:
        """Return the number of waiting calls. No preview is made."""
        rows = await run_blocking(lambda: self.store.items(self._prefix))
        return sum(not (_is_answered(row) or read_row(row, _has_expired) is True) for row in rows.values())

    async def ask(
        self, request: Asked, *, channel: str, shown: JsonObject, expires_at: float
    ) -> tuple[LiveQuestion, WaitingCall]:
        """Add the question of a running call. Return it, and how it looks with its preview.

        Args:
            channel: The channel that it is shown in. Answers from another channel do not count.
            shown: The arguments as they are shown there.
            expires_at: Seconds since the epoch.

        Raises:
            StoreError: The store cannot be changed.
        """
        id = os.urandom(16).hex()
        row = make_live_row(request, id, channel, shown, expires_at)
        live = self._live[id] = LiveQuestion(self.store, self._prefix + id, request.tool)
        try:
            await run_blocking(lambda: replace_row(self.store, self._prefix + id, _pack(row)))
            waiting = self._read(id, row)
            return live, replace(waiting, request=await add_preview(waiting.request))
        except BaseException:
            await self.end(id)
            raise

    async def end(self, id: str) -> Decision | None:
        """End a live question, and return its answer, if it has got one."""
        live = self._live.pop(id, None)
        return None if live is None else await live.close()

    async def find_live(self, id: str, channel: str) -> WaitingCall | str | None:
        """Return a live question of a channel, without its preview; None if there is none.

        Of an answered one, return the id of the message with the answer, or an empty text.
        """
        row = await run_blocking(lambda: self.store.get(self._prefix + id))
        if not isinstance(row, Mapping) or (row.get("live") or {}).get("channel") != channel:
            return None
        return str(row.get("message") or "") if _is_answered(row) else self._read_or_report(id, row)

    async def answer(
        self, id: str, digest: str, given: Decision | bool, *, by: str, message: str | None = None
    ) -> AcceptedAnswer:
        """Take the call with this id and its answer, once: the first answer wins.

        Args:
            id: The id of the record shown.
            digest: The digest of the question shown.
            given: `True`, `False`, or `allow(…)` or `deny(…)`.
            by: The name of the person, from your application's sign-in and never from a request body.
            message: The id of the message with the answer, to recognise it if it comes again.

        Raises:
            AnswerRefused: The answer does not count, and takes no call from the queue.
            DefinitionError: `given` is no answer, or `by` is missing.
        """
        answer: object = given  # perhaps from a request body
        if not isinstance(answer, bool) and not (isinstance(answer, Decision) and answer.kind != "ask"):
            raise DefinitionError(f"answer(given) must be True, False, allow(…) or deny(…), not {answer!r}")
        person: object = by
        if not isinstance(person, str) or not person:
            raise DefinitionError(
                f"answer(by) must be the person's name from your application's sign-in, not {person!r}"
            )
        return await run_blocking(lambda: self._accept(id, digest, given, by, message))

    def _accept(self, id: str, digest: str, given: Decision | bool, by: str, message: str | None) -> AcceptedAnswer:
        row = self.store.get(self._prefix + id)
        _refuse_second_answer(row)
        if row is None or read_row(row, _has_expired) is True:
            raise NotWaiting(f"no call with the id {id!r} waits: the id is unknown or has expired")
        read = self._read_or_report(id, row)
        found = replace(read, request=read.request.with_preview())
        if found.digest != digest:
            _refuse_second_answer(self.store.get(self._prefix + id))  # its call may have changed the preview
            raise QuestionChanged("the question has changed since you saw it. Read it again, and then answer")
        decision = replace(found.request.to_answer(given).decision, by=by)
        problem = found.problem or found.request.problem
        if decision.kind == "allow" and problem is not None:
            raise AnswerRefused(f"this call can only be denied: {problem}")
        conflict = None if self.own or decision.kind != "allow" else found.request.find_conflict(by)
        if conflict is not None:
            raise OwnCall(conflict)
        if decision.kind == "allow":
            try:
                found.request.check_answer(decision.arguments)
            except ValueError as error:
                raise AnswerRefused(str(error).rstrip(".")) from None
        answered: dict[str, Any] = {"answered": by, "pending": {"expires_at": found.expires_at}}
        if found.is_live:
            answered |= {"decision": format_answer(decision), "live": thaw(found.record["live"]), "message": message}
        if not self.store.compare_and_set(self._prefix + id, row, answered):
            _refuse_second_answer(self.store.get(self._prefix + id))
            raise AlreadyAnswered("this answer has no effect: somebody else has answered before")
        if (live := self._live.get(id)) is not None:
            live.wake()
        return AcceptedAnswer(found.record, decision, by)

    def _list_waiting(self) -> list[WaitingCall]:
        found = []
        for place, row in self.store.items(self._prefix).items():
            if read_row(row, _has_expired) is True:
                self.store.compare_and_set(place, row, None)
            elif not _is_answered(row):
                found.append(self._read_or_report(place.removeprefix(self._prefix), row))
        previews = add_previews([waiting.request for waiting in found])
        shown = [replace(waiting, request=request) for waiting, request in zip(found, previews, strict=True)]
        return sorted(shown, key=_asked_at)

    def _read_or_report(self, id: str, row: Any) -> WaitingCall:
        """Return the stored record, or one with a `problem`."""
        read = read_row(row, lambda row: self._read(id, row))
        if isinstance(read, WaitingCall):
            return read
        problem = f"the stored record cannot be read ({read.problem})"
        request = Asked(ToolCall(id, "unreadable"), Decision("ask", problem), ToolContext(), problem=problem)
        return WaitingCall(id, request, freeze({"pending": None}), time.time() + _UNREADABLE_SECONDS, problem)

    def _read(self, id: str, row: Any) -> WaitingCall:
        """Return a stored record without its preview.

        Raises:
            Exception: The record cannot be shown, or was stored under another id.
        """
        row = _unpack(row)
        pending = row["pending"]
        asked = find_question(pending)
        name = asked["call"]["name"]
        call = ToolCall(asked["call"]["id"], name, asked["arguments"], parent=asked["call"]["parent"])
        wanted = None if asked["schema"] is None else freeze(asked["schema"])
        decision = Decision("ask", asked["reason"], into=asked["into"], schema=wanted, rule=asked["rule"])
        live = self._live.get(str(id))
        tool = live.tool if live is not None else self.tools.get(name) if asked["listed"] else None
        request = Asked(call, decision, ToolContext(**asked["context"]), tool=tool)
        if pending["key"] != str(id) or not (request.text and request.digest):
            raise ValueError(f"the record belongs to {pending['key']!r}")
        0.0 + pending["asked_at"] + pending["expires_at"]  # both are numbers, not texts
        return WaitingCall(id, request, freeze(row), pending["expires_at"])


def _pack(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for the store. The record is a text in it, because a store sorts the fields of a form."""
    pending = row["pending"]
    return {**row, "pending": {"expires_at": pending["expires_at"], "text": json.dumps(pending, allow_nan=False)}}


def _unpack(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row with its record."""
    text = row["pending"].get("text")
    return row if text is None else {**row, "pending": json.loads(text)}


_UNREADABLE_SECONDS = 86_400.0
"""The number of seconds to remember the denial of an unreadable record."""


def _asked_at(waiting: WaitingCall) -> float:
    return -math.inf if waiting.problem else float(waiting.record["pending"]["asked_at"])


def _is_answered(row: Any) -> bool:
    return isinstance(row, Mapping) and "answered" in row


def _refuse_second_answer(row: Any) -> None:
    if _is_answered(row):
        raise AlreadyAnswered(f"this answer has no effect: {row['answered']} has answered before")


def _has_expired(row: Any) -> bool:
    return bool(row["pending"]["expires_at"] <= time.time())


def list_queues(store: Store) -> list[str]:
    """Return the names of the queues with calls in a store, for `web(store, name=…)`."""
    names = {place.partition(" ")[0].removeprefix("waiting").removeprefix("-") for place in store.items("waiting")}
    return sorted(names)


def web(store: Store | None = None, *, tools: Iterable[Tool] = (), own: bool = True, name: str = "") -> Web:
    """Make a queue of suspended calls for a page or a chat bot.

    The runner has `approval.later` as its approver. See docs/approvals.md#a-page-or-a-chat-bot.

    Args:
        store: The store of the queue; the memory of this process by default.
        tools: The tools for previews, such as `runner.tools`. A yes is bound to the preview.
        own: Whether a principal may allow its own calls.
        name: The queue within the store. Give each runner's queue a name if several runners share a store; queues with
            the same name are one queue.

    Raises:
        DefinitionError: The name has characters other than letters, digits, `_`, `.` and `-`.
    """
    if not re.fullmatch(r"[\w.-]*", name):
        raise DefinitionError(f"web(name) may have letters, digits, '_', '.' and '-', not {name!r}")
    return Web(Memory() if store is None else store, {tool.name: tool for tool in tools}, own, name)
