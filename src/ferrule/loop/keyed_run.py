"""A run of the loop with a key, in the runner's journal: the same key is the same run.

The journal has one row for the run, in the table of the calls. The states of the row mean the same as for a call:

    running    a living process runs it, and another process waits
    cut off    that process died, and the next one takes the run over
    deferred   the run was put aside: it is suspended, was cancelled, or raised; the next one takes it over
    ended      the result is rebuilt from the turns, and neither the model nor a tool is asked

`Intent.arguments` has the turns. It is written after each answer of the model and after the calls of each turn. A
process that takes the run over reads the saved turns and goes on after them. It repeats the calls of an unfinished turn
with the same ids, so the journal runs no call twice.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import replace
from os import urandom
from typing import Any

from pydantic import Field

from ferrule.definition.toolset import Toolset
from ferrule.errors import FerruleError
from ferrule.loop.suspended_run import Part, SavedCall, SavedResult, with_bytes, without_bytes
from ferrule.models import Message, Model, Reply
from ferrule.providers import Stop
from ferrule.providers._wire import to_plain
from ferrule.types import Journal
from ferrule.values.call_key import make_call_key
from ferrule.values.context import ToolContext
from ferrule.values.frozen import JsonObject, thaw
from ferrule.values.journal_entry import KEYED_RUN_NAME, Intent, JournalEntry
from ferrule.values.result import ToolResult


class RunKeyError(FerruleError):
    """A run with this key cannot go on here: docs/journal.md#a-request-that-is-sent-twice.

    Attributes:
        key: The key.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"the run with the key {key!r} {why}")
        self.key = key


class SavedTurn(Part):
    """One turn of a run: the new messages, the offered tools, the model's answer, and the results of its calls."""

    new_messages: list[dict[str, Any]]
    """The messages added before the model was asked."""
    offered: list[str] | None
    """The names of the tools that the model could call; `None` for all."""
    found: list[str]
    text: str
    stop: Stop
    reason: str | None
    messages: list[dict[str, Any]]
    state: dict[str, Any]
    usage: dict[str, Any]
    calls: list[SavedCall]
    results: list[SavedResult] | None = None
    """`None` until every call has its result."""
    waiting: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """The `pending` of the suspended calls, by their ids."""

    @classmethod
    def from_reply(
        cls, new_messages: Iterable[Message], offered: Toolset | None, found: list[str], reply: Reply
    ) -> SavedTurn:
        """Save an answer of the model."""
        return cls(
            new_messages=to_plain(list(new_messages), keep_bytes=True),
            offered=None if offered is None else [tool.name for tool in offered],
            found=found,
            text=reply.text,
            stop=reply.stop,
            reason=reply.reason,
            messages=to_plain(list(reply.messages), keep_bytes=True),
            state=to_plain(dict(reply.state), keep_bytes=True),
            usage=to_plain(dict(reply.usage)),
            calls=[SavedCall.from_call(call) for call in reply.calls],
        )

    def reply(self) -> Reply:
        """Return the model's answer again, without its `raw`."""
        calls = [saved.call() for saved in self.calls]
        return Reply(self.text, calls, self.messages, self.stop, self.usage, self.reason, self.state)

    def restored_results(self) -> list[ToolResult]:
        """Return the results again; an empty list until every call has one."""
        return [saved.result(self.waiting.get(saved.call.id)) for saved in self.results or ()]

    def with_results(self, results: Iterable[ToolResult]) -> SavedTurn:
        """Return the turn with these results."""
        results = list(results)
        waiting = {result.call_id: thaw(result.pending) for result in results if result.pending is not None}
        return self.model_copy(update={"results": [*map(SavedResult.from_result, results)], "waiting": waiting})


def run_row(key: str, context: ToolContext) -> str:
    """Return the key of the run in the journal, made of its principal, its session and its key."""
    return make_call_key((KEYED_RUN_NAME, context.principal, context.session, key), None)


def request_digest(model: Model, messages: list[Message], tools: Toolset) -> str:
    """Return a hash of the model, the messages and the tools. Equal requests have the same hash."""
    named = [getattr(model, name, None) for name in ("api", "name")]
    asked = {
        "model": [type(model).__qualname__, *(name for name in named if isinstance(name, str))],
        "messages": without_bytes(to_plain(messages, keep_bytes=True)),
        "tools": sorted([tool.name, tool.fingerprint] for tool in tools),
    }
    return make_call_key(("request",), asked)


class KeyedRun:
    """The row of one run in the journal.

    Args:
        journal: The journal.
        key: The key from the caller.
        id: The key of the row in the journal.
        digest: The hash of the request; `None` for a resumed run, because its request is not compared.
        context: The context with the principal and the session of the row.

    Attributes:
        turns: The turns so far.
        final_status: The status of the run after its end.
    """

    def __init__(self, journal: Journal, key: str, id: str, digest: str | None, context: ToolContext) -> None:
        self.key = key
        self.id = id
        self.turns: list[SavedTurn] = []
        self.final_status: Any = None
        self._journal = journal
        self._digest = digest
        self._context = context
        self._intent: Intent | None = None
        """The last intent that was written, while this run holds the row."""

    @property
    def is_held(self) -> bool:
        """Whether this run holds the row, so that no other process goes on with it."""
        return self._intent is not None

    async def open(self) -> None:
        """Find the run and take it over, or begin it. Wait while a living process runs it.

        Raises:
            RunKeyError: The key belongs to another request.
            JournalError: The journal cannot be read or written.
        """
        while True:
            entry = await self._journal.find(self.id)
            if entry is not None:
                self._check_request(entry.intent)
                entry = await self._journal.find(self.id, wait=entry.state == "running")
            if entry is None and self._digest is None:
                raise RunKeyError(self.key, "is not in this journal: give the runner the journal that it began with")
            if entry is not None:
                self._read(entry)
            if self.final_status is not None:
                return
            intent = self._intent = self._new_intent(entry)
            try:
                begun = await self._journal.begin(intent, after=entry)
            except BaseException:  # the row may have been written in spite of the error
                await self.close()
                raise
            if begun.earlier is None:
                return
            self._intent = None

    def _check_request(self, intent: Intent) -> None:
        if self._digest not in (None, intent.fingerprint):
            raise RunKeyError(
                self.key,
                "began with other messages, another model or other tools: nothing was run. The same key is for the "
                "same request; give another request a key of its own",
            )

    def _read(self, entry: JournalEntry) -> None:
        self._check_request(entry.intent)
        try:
            turns = map(json.loads, entry.intent.arguments["turns"])
            self.turns = [SavedTurn.model_validate(with_bytes(turn)) for turn in turns]
        except (ValueError, LookupError, TypeError) as error:
            raise RunKeyError(self.key, f"cannot be read in the journal: {error}") from error
        self.final_status = (entry.outcome or {}).get("final_status")

    def _new_intent(self, entry: JournalEntry | None) -> Intent:
        return Intent(
            key=self.id,
            reference=self.id,
            claim=urandom(16).hex(),
            call_id=self.key,
            tool_name=KEYED_RUN_NAME,
            principal=self._context.principal if entry is None else entry.intent.principal,
            session=self._context.session if entry is None else entry.intent.session,
            parent=None,
            fingerprint=self._digest or "" if entry is None else entry.intent.fingerprint,
            arguments=self._arguments(),
            at=time.time(),
        )

    def _arguments(self) -> JsonObject:
        # As texts: a journal may sort keys, and a model's prompt is cached by its bytes.
        return {"turns": [json.dumps(without_bytes(turn.model_dump())) for turn in self.turns]}

    async def write(self) -> None:
        """Write the turns to the journal.

        Raises:
            RunKeyError: Another process has taken the run over.
            JournalError: The journal cannot be written.
        """
        assert self._intent is not None
        # Retention must not delete the run as long as a question can be answered.
        at = max([time.time(), *(pending["expires_at"] for pending in self.turns[-1].waiting.values())])
        self._intent = replace(self._intent, arguments=self._arguments(), at=at)
        begun = await self._journal.begin(self._intent)
        if begun.earlier is not None:
            self._intent = None
            raise RunKeyError(self.key, "was taken over by another process")

    async def close(self, final_status: str | None = None) -> None:
        """Release the row: the run has ended, or is put aside if `final_status` is None. Do nothing the second time.

        Raises:
            JournalError: The journal cannot be written.
        """
        intent, self._intent = self._intent, None
        if intent is None:
            return
        outcome: dict[str, Any] | None = {"status": "suspended"} if self.turns else None
        if final_status is not None:
            outcome = {"status": "ok", "final_status": final_status}
        # A task of its own: the row is written even if the waiting task is cancelled once more.
        await asyncio.shield(asyncio.ensure_future(self._journal.end(intent, outcome)))
