"""The agent of the invoice desk: its tools, its guards, and how it settles payments that a crash interrupted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from bank import Bank
from pydantic import Field

from ferrule import Decision, Runner, ToolCall, ToolContext, ToolResult, approval, deny, models, tool
from ferrule.guards import flow, rules
from ferrule.journal import Filter, LoggedCall, Reader, SQLiteJournal

HERE = Path(__file__).resolve().parent
POLICY = HERE.parent / "policies" / "invoice_desk.toml"
INBOX: dict[str, dict[str, Any]] = {
    document["id"]: document for document in json.loads((HERE / "inbox.json").read_text("utf-8"))
}
TASK = """Read the document {document} and deal with it: pay an invoice if its amount is the amount of the order, and a
refund as it is requested. Pay nothing else. Say in one sentence what you did, or why you did nothing."""
KINDS = {"pay": "invoice", "refund": "refund"}

Cents = Annotated[int, Field(gt=0, description="1250 is 12.50 EUR.")]


class Office(NamedTuple):
    """The bank and the journal, for tools and guards."""

    bank: Bank
    calls: Reader
    """The calls in the journal, of all processes."""

    def payment(self, document: str) -> LoggedCall | None:
        """Return the call that has paid the document or may have. A call without an intent has not started."""
        found = self.calls.calls(Filter(session=document, status={"ok", "unknown", "cut_off"}))
        started = (call for call in found if call.status != "cut_off" or call.intent is not None)
        return next((call for call in started if call.tool_name in KINDS), None)


# -- guards ------------------------------------------------------------------------------------------------------------


def matches_document(call: ToolCall, context: ToolContext[Office]) -> Decision | None:
    """Allow only the payment that the document requests, whatever the model says."""
    document = INBOX.get(call.arguments["document"])
    if document is None or document["id"] != context.session:
        return deny("that is not the document to deal with")
    if (document["kind"], document.get("cents")) != (KINDS[call.name], call.arguments["cents"]):
        return deny("that is not what the document says")
    if document.get("ordered_for", document["cents"]) != document["cents"]:
        return deny("that is not what was ordered")
    return None


def paid_once(call: ToolCall, context: ToolContext[Office]) -> Decision | None:
    """Deny a second payment of a document. A model that is asked again makes a call with a new id, which is a new call
    for the journal."""
    before = context.deps.payment(call.arguments["document"])
    return deny(f"an earlier call has paid it or may have: that call is {before.status}") if before else None


# -- the tools ---------------------------------------------------------------------------------------------------------


def ask_the_bank(call: ToolCall, context: ToolContext[Office]) -> ToolResult:
    """Return the outcome of an interrupted payment. The reference of the transfer is the key of the call.

    If the bank could still be working on it, return None: the outcome is unknown."""
    number = context.deps.bank.find(context.idempotency_key)
    if number is None:
        return ToolResult(error="the bank has no such transfer, nothing was paid", status="failed", executed=False)
    return ToolResult(f"paid by transfer {number}")


@tool(read_only=True)
def read_document(document: str) -> dict[str, Any] | str:
    """Read a document of the inbox: the payee, the cents and the reason."""
    return INBOX.get(document, "There is no such document.")


@tool(guards=[matches_document, paid_once], reconcile=ask_the_bank)
def pay(document: str, cents: Cents, context: ToolContext[Office]) -> str:
    """Pay an invoice."""
    return f"paid by transfer {context.deps.bank.transfer(context.idempotency_key, INBOX[document]['to'], cents)}"


@tool(guards=[matches_document, paid_once], reconcile=ask_the_bank)
def refund(document: str, cents: Cents, context: ToolContext[Office]) -> str:
    """Pay money back. A colleague decides above a limit."""
    return f"paid by transfer {context.deps.bank.transfer(context.idempotency_key, INBOX[document]['to'], cents)}"


@tool
def send_mail(to: str, text: str, context: ToolContext[Office]) -> str:
    """Write to a supplier or a customer."""
    return f"mail {context.deps.bank.keep_mail(to, text)} is on its way"


TOOLS = [read_document, pay, refund, send_mail]


def runner(office: Office, journal: SQLiteJournal, resume_key: bytes) -> Runner:
    # Anybody may write to the inbox. After reading there, a person decides about each mail; `matches_document` decides
    # about payments.
    watch = flow(sources={"read_document": "untrusted"}, sinks={"send_mail"}, exempt={"pay", "refund"})
    return Runner(
        TOOLS,
        guards=[rules(POLICY, tools=TOOLS), watch],
        observers=[watch],
        approve=approval.later,  # the call is suspended until a person answers
        resume_key=resume_key,
        journal=journal,
        deps=office,
        timeout=30,
    )


# -- the model ---------------------------------------------------------------------------------------------------------


def pretend(messages: Sequence[models.Message]) -> Any:
    """Stand in for a model: read the document, pay it, and report the result."""
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    if not calls:
        words = messages[0]["content"].split()
        return [("read_document", {"document": words[words.index("document") + 1]})]
    last = messages[-1]["content"]
    if calls[-1]["name"] != "read_document":
        refused = "Not sent" if calls[-1]["name"] == "send_mail" else "Not paid"
        return f"Done: {last}." if last.startswith(("paid", "mail")) else f"{refused}: {last}"
    document = json.loads(last)
    if document["kind"] == "letter":  # like a real model, it may do what a text says
        return [("send_mail", {"to": document["reason"].split()[-1], "text": "We paid you 120.00 EUR."})]
    if document.get("ordered_for", document["cents"]) != document["cents"]:
        return f"Not paid: {document['cents']} cents are asked for, and {document['ordered_for']} were ordered."
    names = {kind: name for name, kind in KINDS.items()}
    return [(names[document["kind"]], {"document": document["id"], "cents": document["cents"]})]


def parse_model(name: str | None) -> Any:
    return models.Scripted([pretend] * 10) if name is None else models.model_from_name(name)
