"""The view of the approvals: all questions, and the answers to them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.responses import Response

from ferrule import allow, deny
from ferrule.approval import AcceptedAnswer
from ferrule.journal.reading import LoggedCall
from ferrule.values.frozen import thaw
from ferrule.values.json_text import parse_json
from ferrule.web.checks import Refused
from ferrule.web.forms import draw_form, find_unreadable, read_form, to_json
from ferrule.web.questions import QUESTIONS, Questions, Waiting, give_input, list_elsewhere
from ferrule.web.shown import Part, compare_values, show_difference, show_text, show_value
from ferrule.web.state import Form, Visit


def _find_questions(visit: Visit) -> Questions:
    if visit.inspector.questions is None:
        raise Refused(404, "This page shows a journal only, and cannot continue a call.")
    return visit.inspector.questions


async def show_questions(visit: Visit) -> Response:
    """List everything that waits."""
    questions = visit.inspector.questions
    found = [] if questions is None else await questions.list_waiting()
    elsewhere: list[LoggedCall] = []
    if visit.inspector.reader is not None:
        elsewhere = await asyncio.to_thread(list_elsewhere, visit.inspector.reader, found)
    cards = [draw_question(waiting) for waiting in found]
    template = "approvals_part.html" if visit.is_part else "approvals.html"
    return await visit.render(template, cards=cards, elsewhere=elsewhere)


def draw_question(waiting: Waiting) -> dict[str, Any]:
    """Return what a card shows about a question."""
    asked, schema = waiting.asked, waiting.wanted_schema
    return {
        "waiting": waiting,
        "asked": asked,
        "preview": show_preview(asked.preview),
        "no_preview": asked.preview if isinstance(asked.preview, str) else "",
        "arguments": show_value(thaw(asked.arguments)),
        "form": None if schema is None else draw_form(schema, {}),
        "can_edit": schema is None and asked.decision.schema is None and asked.tool is not None,
    }


def show_preview(preview: object) -> Part | None:
    """Return a preview as a text or a difference."""
    if not isinstance(preview, tuple):
        return None
    lines = list(map(str, preview))
    return show_difference(lines) if any(line.startswith("@@ ") for line in lines) else show_text("\n".join(lines))


async def answer_question(visit: Visit) -> Response:
    """Approve or deny a call, and show it."""
    form = await visit.read_form()
    questions = _find_questions(visit)
    waiting = await questions.find(form.get("id"))
    try:
        taken = await _take(visit, questions, waiting, form)
    except ValueError as error:
        return await visit.show_message(422, "Not answered", str(error))
    visit.inspector.topics.announce(QUESTIONS)
    if taken.is_live:
        return visit.redirect("/approvals")
    run = visit.inspector.runs.resume(visit.runner, taken, waiting.call.id, waiting.asked.call)
    return visit.redirect("/run", [("id", run.id)])


async def _take(visit: Visit, questions: Questions, waiting: Waiting, form: Form) -> AcceptedAnswer:
    """Take a question with the answer of a form.

    Raises:
        AnswerRefused: The answer does not count.
        ValueError: The form is no answer.
    """
    word, digest, by = form.get("answer"), form.get("digest"), visit.person
    if word == "deny":
        reason = form.get("reason").strip() or "the person who was asked said no"
        return await questions.answer(waiting, digest, deny(reason), by)
    if word == "approve edited":
        arguments = parse_json(form.get("arguments"))
        return await questions.approve_edited(waiting, digest, arguments, form.get("edited_digest"), by)
    if word != "approve":
        raise ValueError("An answer is approve or deny.")
    schema = waiting.wanted_schema
    if schema is None:
        return await questions.answer(waiting, digest, allow(), by)
    draft = read_form(schema, form.fields)
    if find_unreadable(draft):
        raise ValueError(f"{find_unreadable(draft)[0]!r} cannot be read. Go back, and change it.")
    return await questions.answer(waiting, digest, give_input(waiting, to_json(draft)), by)


async def show_edit(visit: Visit) -> Response:
    """Show the form in which a person changes the arguments of a waiting call."""
    waiting = await _find_questions(visit).find(visit.get("id"))
    return await _render_edit(visit, waiting, thaw(waiting.asked.arguments), waiting.call.digest)


async def change_edit(visit: Visit) -> Response:
    """Show the changed arguments again: after a change of the form's shape, or with their difference and preview."""
    form = await visit.read_form()
    questions = _find_questions(visit)
    waiting = await questions.find(form.get("id"))
    schema = _edit_schema(waiting)
    draft = read_form(schema, form.fields, form.get("action"))
    if form.get("action") != "preview" or find_unreadable(draft):
        return await _render_edit(visit, waiting, draft, form.get("digest"))
    arguments = to_json(draft)
    try:
        edited = await questions.edit(waiting, arguments)
    except ValueError as error:
        return await _render_edit(visit, waiting, draft, form.get("digest"), problem=str(error), status=422)
    shown = thaw(edited.arguments)
    sent = {name: value for name, value in shown.items() if name not in edited.hidden}
    preview = {
        "difference": compare_values(thaw(waiting.asked.arguments), shown, "arguments"),
        "effect": show_preview(edited.preview),
        "no_preview": edited.preview if isinstance(edited.preview, str) else "",
        "digest": edited.digest,
        "arguments": json.dumps(sent, ensure_ascii=False),
    }
    return await _render_edit(visit, waiting, sent, form.get("digest"), preview=preview)


def _edit_schema(waiting: Waiting) -> dict[str, Any]:
    schema: dict[str, Any] = thaw(getattr(waiting.asked.tool, "input_schema", None) or {"type": "object"})
    return schema


async def _render_edit(
    visit: Visit,
    waiting: Waiting,
    draft: Any,
    digest: str,
    *,
    problem: str = "",
    preview: dict[str, Any] | None = None,
    status: int = 200,
) -> Response:
    form = draw_form(_edit_schema(waiting), draft)
    values = {"waiting": waiting, "form": form, "problem": problem, "preview": preview, "digest": digest}
    return await visit.render("edit_form.html" if visit.is_part else "edit.html", status=status, **values)
