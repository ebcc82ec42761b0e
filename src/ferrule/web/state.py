"""Everything that the views share: the runner, its calls and questions, the journal, and one visit of a person."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ferrule import Journal, Runner, ToolResult, Toolset, approval
from ferrule.approval.web import Web
from ferrule.journal import Reader, SQLiteStore
from ferrule.policy import Policy
from ferrule.providers.lint import LIMITS, Cost, Finding, costs, findings
from ferrule.stores import Memory
from ferrule.web.checks import HEADERS, Refused, check_token, make_token, read_body
from ferrule.web.live import Topics, file_state
from ferrule.web.questions import QUESTIONS, Questions
from ferrule.web.rendering import render
from ferrule.web.runs import Runs

CALLS = "calls"
"""The topic of the journal."""
_MOST_FIELDS = 5_000


@dataclass(frozen=True)
class ToolFacts:
    """The lint findings and the costs of a toolset."""

    findings: tuple[Finding, ...]
    costs: Mapping[str, Cost]


class Inspector:
    """The state behind the page.

    Attributes:
        runner: The runner whose tools are shown, or None if there is only a journal.
        reader: The reader of the journal, or None.
        journal_note: Why there is no reader, or how long the journal is kept.
    """

    def __init__(
        self,
        runner: Runner | None,
        *,
        queue: Web | None = None,
        journal: str | None = None,
        read_only: bool = False,
        journal_note: str = "",
    ) -> None:
        self.topics = Topics()
        self.read_only = read_only or runner is None
        self.questions: Questions | None = None
        self.runner: Runner | None = None
        self._facts: asyncio.Task[ToolFacts] | None = None
        path = journal if runner is None or runner.journal is None else _find_path(runner.journal)
        self.reader = None if path is None else Reader(path)
        self.journal_note = journal_note or ("" if self.reader else _explain_missing(runner))
        if runner is not None:
            self.runner = _with_page(runner)
            self.questions = Questions(self.runner, queue)
            if not isinstance(self.questions.store, Memory):
                store = self.questions.store
                self.topics.watch(QUESTIONS, lambda: tuple(store.items("waiting")))
        if path is not None:
            self.topics.watch(CALLS, lambda: file_state(path))
        self.runs = Runs(self.topics, self._put_question)

    def use(self, runner: Runner) -> None:
        """Use another runner from now on, such as one with other tools."""
        self.runner = _with_page(runner)
        self._facts = None
        if self.questions is not None:
            self.questions.use(self.runner)

    async def _put_question(self, result: ToolResult) -> str | None:
        id = None if self.questions is None else await self.questions.put(result)
        self.topics.announce(QUESTIONS)
        return id

    @property
    def tools(self) -> Toolset:
        """The tools of the runner."""
        return Toolset() if self.runner is None else self.runner.tools

    @property
    def policy(self) -> Policy | None:
        """The policy files of the runner, or None."""
        guards = () if self.runner is None else self.runner.guards
        return next((guard for guard in guards if isinstance(guard, Policy)), None)

    async def read_facts(self) -> ToolFacts:
        """Return the findings and costs of the tools, computed once."""
        if self._facts is None:
            tools, names = self.tools, list(LIMITS)

            def compute() -> ToolFacts:
                found = costs(tools, names, False)
                return ToolFacts(tuple(findings(tools, names, False)), {cost.tool: cost for cost in found})

            self._facts = asyncio.ensure_future(asyncio.to_thread(compute))
        return await asyncio.shield(self._facts)


def _with_page(runner: Runner) -> Runner:
    """Return the runner with questions for the page, unless it has its own approver."""
    return runner if runner.approve is not None else runner.replace(approve=approval.later)


def _find_path(journal: Journal) -> str | None:
    """Return the file of a journal, also of one that redacts what it passes on."""
    return getattr(journal, "path", None) if isinstance(journal.store, SQLiteStore) else None


def _explain_missing(runner: Runner | None) -> str:
    if runner is not None and runner.journal is not None:
        return "The journal of this runner is not a file, so the page cannot read it."
    return "This runner has no journal, so its calls are not kept. Give it one: Runner(…, journal=Journal.open(…))."


def parse_place(text: str) -> int | None:
    """Return a place in the journal, or None if the text is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


class Form:
    """The fields of a sent form."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self.fields = fields

    def get(self, name: str) -> str:
        """Return the last value of a field; empty if it is missing."""
        return (self.fields.get(name) or ("",))[-1]


@dataclass(frozen=True)
class Visit:
    """One request of a person.

    Attributes:
        person: The name of the person, from the sign-in.
        secret: The secret of the browser, from its cookie.
    """

    inspector: Inspector
    request: Request
    person: str
    secret: str

    def get(self, name: str) -> str:
        """Return a parameter of the address; empty if it is missing."""
        return self.request.query_params.get(name, "")

    def get_place(self, name: str) -> int | None:
        """Return a parameter of the address that is a place in the journal, or None."""
        return parse_place(self.get(name))

    @property
    def is_part(self) -> bool:
        """Whether only the changing part of the page is wanted."""
        return self.request.headers.get("x-ferrule-part") == "1"

    @property
    def base(self) -> str:
        """The address of the page within its host."""
        return str(self.request.scope.get("root_path", "")).rstrip("/")

    async def read_form(self) -> Form:
        """Return the fields that were sent.

        Raises:
            Refused: The form does not come from the page that this browser shows.
        """
        try:
            fields = parse_qs((await read_body(self.request)).decode(), True, max_num_fields=_MOST_FIELDS)
        except ValueError:
            raise Refused(400, f"A form has at most {_MOST_FIELDS:,} fields, in UTF-8.") from None
        form = Form(fields)
        check_token(self.request, form.get("token"))
        return form

    async def render(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page."""
        questions = self.inspector.questions
        text = render(
            template,
            **values,
            inspector=self.inspector,
            read_only=self.inspector.read_only,
            person=self.person,
            token=make_token(self.secret),
            base=self.base,
            waiting_count=0 if questions is None else await questions.count(),
        )
        return HTMLResponse(text, status, headers=HEADERS)

    async def show_message(self, status: int, title: str, text: str) -> Response:
        """Return a page with nothing but a message."""
        back = "/approvals" if "/approvals" in self.request.url.path else "/"
        return await self.render("message.html", status=status, title=title, text=text, back=back)

    def redirect(self, path: str, values: Iterable[tuple[str, str]] = ()) -> Response:
        """Return a redirect to another view."""
        query = urlencode(list(values))
        return RedirectResponse(f"{self.base}{path}{'?' if query else ''}{query}", 303, headers=HEADERS)

    @cached_property
    def reader(self) -> Reader:
        """The reader of the journal.

        Raises:
            Refused: There is none.
        """
        if self.inspector.reader is None:
            raise Refused(404, self.inspector.journal_note)
        return self.inspector.reader

    @property
    def runner(self) -> Runner:
        """The runner.

        Raises:
            Refused: The page shows a journal only.
        """
        if self.inspector.runner is None:
            raise Refused(
                404, "This page shows a journal only. Start it with tools: ferrule inspect MODULE --journal FILE"
            )
        return self.inspector.runner
