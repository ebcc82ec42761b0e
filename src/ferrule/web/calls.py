"""The view of one call of the page, while it runs and afterwards."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from ferrule.approval import AnswerRefused
from ferrule.journal.reading import Filter
from ferrule.values.content import Media
from ferrule.web.approvals import draw_question
from ferrule.web.checks import HEADERS, Refused
from ferrule.web.drawing import draw_call
from ferrule.web.questions import Waiting
from ferrule.web.runs import Run
from ferrule.web.shown import IMAGES, SOUNDS, show_result
from ferrule.web.state import Visit


def find_run(visit: Visit, id: str) -> Run:
    """Return a call of the page.

    Raises:
        Refused: It is unknown, as all are after a restart.
    """
    run = visit.inspector.runs.find(id)
    if run is None:
        text = "This server no longer has that call in memory."
        text += " The journal keeps it: look under Calls." if visit.inspector.reader else ""
        raise Refused(404, text)
    return run


async def show_run(visit: Visit) -> Response:
    """Show a call of the page."""
    run = find_run(visit, visit.get("id"))
    logged = run.logged
    waiting = await _find_question(visit, run)
    result = run.result if run.is_over and run.status != "suspended" else None
    return await visit.render(
        "run_part.html" if visit.is_part else "run.html",
        run=run,
        drawing=None if logged is None else draw_call(logged),
        parts=[] if result is None or result.error else show_result(result),
        card=None if waiting is None else draw_question(waiting),
        seq=await _find_in_journal(visit, run),
    )


async def _find_question(visit: Visit, run: Run) -> Waiting | None:
    if run.question is None or visit.inspector.questions is None:
        return None
    try:
        return await visit.inspector.questions.find(run.question)
    except AnswerRefused:
        return None


async def _find_in_journal(visit: Visit, run: Run) -> int | None:
    """Return the place of an ended call in the journal, or None."""
    reader, journal = visit.inspector.reader, visit.runner.journal
    if reader is None or journal is None or not run.is_over:
        return None
    await journal.flush()
    found = await asyncio.to_thread(reader.newest, Filter(call_id=run.call.id, every=True), 1)
    return found[0].group.rows[0].seq if found else None


async def stop_run(visit: Visit) -> Response:
    """Cancel a call."""
    form = await visit.read_form()
    run = find_run(visit, form.get("id"))
    visit.inspector.runs.stop(run)
    return visit.redirect("/run", [("id", run.id)])


async def show_block(visit: Visit) -> Response:
    """Return the data of a block: an image or a sound to show, anything else to download."""
    run, number = find_run(visit, visit.get("id")), visit.get_place("number")
    blocks = () if run.result is None else run.result.content
    block = None if number is None or number >= len(blocks) else blocks[number]
    if not isinstance(block, Media) or block.data is None:
        raise Refused(404, "There is no such file.")
    kind = block.mime_type.partition(";")[0].lower()
    headers = {**HEADERS, "Content-Security-Policy": "default-src 'none'; sandbox"}
    if kind not in IMAGES + SOUNDS:
        kind, headers["Content-Disposition"] = "application/octet-stream", "attachment"
    return Response(block.data, media_type=kind, headers=headers)
