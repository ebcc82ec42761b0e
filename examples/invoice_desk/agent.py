"""The agent of the invoice desk: its tools, what it may do, and how it finds out what a crash has left open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from bank import Bank
from pydantic import Field

from ferrule import Decision, Runner, ToolCall, ToolContext, ToolResult, approval, deny, models, tool
from ferrule.guards import rules
from ferrule.journal import SQLiteJournal
from ferrule.journal.reading import Filter, LoggedCall, Reader

HERE = Path(__file__).resolve().parent
POLICY = HERE.parent / "policies" / "invoice_desk.toml"
INBOX: dict[str, dict[str, Any]] = {one["id"]: one for one in json.loads((HERE / "inbox.json").read_text("utf-8"))}
TASK = """Read the document {document} and deal with it: pay an invoice whose amount is what was ordered, and a refund
as it was asked for. Pay nothing else. Say in one sentence what you did, or why you did nothing."""
KINDS = {"pay": "invoice", "refund": "refund"}

Cents = Annotated[int, Field(gt=0, description="How much: 1250 is 12.50 EUR.")]


class Office(NamedTuple):
    """What tools and guards work with."""

    bank: Bank
    calls: Reader
    """What the journal has, of whichever process."""

    def payment(self, document: str) -> LoggedCall | None:
        """The call that has paid the document, or may have: one that was cut off without an intent has not begun."""
        found = self.calls.calls(Filter(session=document, status={"ok", "unknown", "cut_off"}))
        began = (call for call in found if call.status != "cut_off" or call.intent is not None)
        return next((call for call in began if call.tool_name in KINDS), None)


# -- may it? -----------------------------------------------------------------------------------------------------------


def as_written(call: ToolCall, context: ToolContext[Office]) -> Decision | None:
    """What is paid stands in the document, whatever the model has made of it."""
    document = INBOX.get(call.arguments["document"])
    if document is None or document["id"] != context.session:
        return deny("that is not the document to deal with")
    if (document["kind"], document["cents"]) != (KINDS[call.name], call.arguments["cents"]):
        return deny("that is not what the document says")
    if document.get("ordered_for", document["cents"]) != document["cents"]:
        return deny("that is not what was ordered")
    return None


def paid_once(call: ToolCall, context: ToolContext[Office]) -> Decision | None:
    """A model that is asked again makes a call with another id: for the journal that is another call. For the desk it
    is the same payment."""
    before = context.deps.payment(call.arguments["document"])
    return deny(f"it was paid before, or may have been: that call is {before.status}") if before else None


# -- the tools ---------------------------------------------------------------------------------------------------------


def ask_the_bank(call: ToolCall, context: ToolContext[Office]) -> ToolResult:
    """What came of a payment that was cut off: the reference of its transfer is the key of the call.

    Where the bank could be at it still, the answer would have to be `None`, which is: not known."""
    number = context.deps.bank.find(context.idempotency_key)
    if number is None:
        return ToolResult(error="the bank knows of no such transfer, nothing was paid", status="failed", executed=False)
    return ToolResult(f"paid by transfer {number}")


@tool(read_only=True)
def read_document(document: str) -> dict[str, Any] | str:
    """Read a document of the inbox: who asks for how many cents, and for what."""
    return INBOX.get(document, "There is no such document.")


@tool(guards=[as_written, paid_once], reconcile=ask_the_bank)
def pay(document: str, cents: Cents, context: ToolContext[Office]) -> str:
    """Pay an invoice."""
    return f"paid by transfer {context.deps.bank.transfer(context.idempotency_key, INBOX[document]['to'], cents)}"


@tool(guards=[as_written, paid_once], reconcile=ask_the_bank)
def refund(document: str, cents: Cents, context: ToolContext[Office]) -> str:
    """Pay money back. Above a limit a colleague decides."""
    return f"paid by transfer {context.deps.bank.transfer(context.idempotency_key, INBOX[document]['to'], cents)}"


TOOLS = [read_document, pay, refund]


def runner(office: Office, journal: SQLiteJournal, resume_key: bytes) -> Runner:
    return Runner(
        TOOLS,
        guards=[rules(POLICY, tools=TOOLS)],
        approve=approval.later,  # nobody is asked now: the call waits
        resume_key=resume_key,
        journal=journal,
        deps=office,
        timeout=30,
    )


# -- the model ---------------------------------------------------------------------------------------------------------


def pretend(messages: Sequence[models.Message]) -> Any:
    """Stands in for a model: reads the document, pays what it asks for, and says what came of it."""
    made = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    if not made:
        words = messages[0]["content"].split()
        return [("read_document", {"document": words[words.index("document") + 1]})]
    last = messages[-1]["content"]
    if made[-1]["name"] != "read_document":
        return f"Done: {last}." if last.startswith("paid") else f"Not paid: {last}"
    document = json.loads(last)
    if document.get("ordered_for", document["cents"]) != document["cents"]:
        return f"Not paid: {document['cents']} cents are asked for, and {document['ordered_for']} were ordered."
    names = {kind: name for name, kind in KINDS.items()}
    return [(names[document["kind"]], {"document": document["id"], "cents": document["cents"]})]


def model_named(name: str | None) -> Any:
    return models.Scripted([pretend] * 10) if name is None else models.model_from_name(name)
