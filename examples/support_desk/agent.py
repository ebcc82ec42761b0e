"""The agent of the support desk: its tools, what it may do, and how a case goes on after a person has answered."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import Field
from store import Queue, Store

from ferrule import Decision, Journal, Runner, ToolCall, ToolContext, ToolError, approval, deny, models, tool
from ferrule.guards import ask_before_changes
from ferrule.loop import Run, resume, run


def euros(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02} EUR"


@tool(read_only=True)
def find_order(order: int, context: ToolContext[Store]) -> dict[str, Any]:
    """Find one of the customer's orders: what it was, the cents that were paid, and those paid back so far.

    Args:
        order: Its number.
    """
    found = context.deps.order(order)
    if found is None or found["customer"] != context.principal:
        raise ToolError(f"this customer has no order {order}")
    return found


@tool
def refund(order: int, cents: Annotated[int, Field(gt=0)], reason: str, context: ToolContext[Store]) -> str:
    """Pay money back to the customer. A colleague decides.

    Args:
        order: The number of the order.
        cents: How much: 1250 is 12.50 EUR.
        reason: One sentence for the colleague who decides.
    """
    if not context.deps.refund(order, cents, reason):
        raise ToolError(f"more than was paid for order {order}; nothing was paid back")
    return f"paid back {euros(cents)} for order {order}"


def within_what_was_paid(call: ToolCall, context: ToolContext[Store]) -> Decision | None:
    """Nobody is asked about what is out of the question."""
    if call.name != "refund":
        return None
    order = context.deps.order(call.arguments["order"])
    if order is None or order["customer"] != context.principal:
        return deny("that is no order of this customer")
    left = order["cents"] - order["refunded"]
    return deny(f"no more than {euros(left)} can be paid back") if call.arguments["cents"] > left else None


def pretend(messages: Sequence[models.Message]) -> Any:
    """Stands in for a model: finds the order, asks to pay all of it back, and says what came of it."""
    last, question = messages[-1], next(one["content"] for one in messages if one["role"] == "user")
    if last["role"] == "user":
        number = re.search(r"\b\d{4}\b", question)
        return [("find_order", {"order": int(number[0])})] if number else "Which order is it about?"
    if last["content"].startswith("{"):
        order = json.loads(last["content"])
        return [("refund", {"order": order["id"], "cents": order["cents"], "reason": f"They write: {question}"})]
    if last["content"].startswith("paid back"):
        return f"Good news: we have {last['content']}."
    return "I am sorry: we cannot pay anything back for this."


def new_model() -> Any:
    return models.Scripted([pretend] * 20)  # or models.Anthropic("claude-sonnet-5-5", system="You answer …")


class Agent:
    def __init__(self, store: Store, resume_key: bytes) -> None:
        self.store = store
        self.runner = Runner(
            [find_order, refund],
            guards=[within_what_was_paid, ask_before_changes],
            approve=approval.later,  # nobody is asked now: the run is suspended, and the page shows what waits
            resume_key=resume_key,
            journal=Journal.open(store.path.with_name("calls.db")),  # what was begun, came of it, and was taken up
            deps=store,
            timeout=30,
        )
        self.queue = approval.web(Queue(store), tools=self.runner.tools)

    async def ask(self, customer: str, question: str) -> None:
        """Begin a case. It ends with an answer, or waits for a person."""
        await self._begin(self.store.open_case(customer, question), customer, question)

    async def again(self, case: int) -> bool:
        """Go on with a case whose model failed, where it stood; False where there is nothing to go on with."""
        stopped = self.store.claim_stopped(case)
        if stopped is None:
            return False
        await self._begin(case, stopped["customer"], stopped["question"], stopped["so_far"])
        return True

    async def waiting(self) -> dict[str, approval.Waiting]:
        """What waits for an answer, by the key of its record."""
        for case in self.store.cases():
            if case["left_behind"]:  # whoever took the answer was ended: it is asked about again
                await self._put(case["waiting"])
        return {one.id: one for one in await self.queue.waiting()}

    async def answer(self, case: int, call_id: str, key: str, digest: str, yes: bool, by: str) -> None:
        """Go on with a case.

        Raises:
            AnswerRefused: where the answer does not count.
        """
        taken = await self.queue.answer(key, digest, yes, by=by)
        suspended = self.store.claim(case, call_id, key)
        if suspended is None:
            await self.queue.put(taken.record)
            raise approval.NotWaiting("another answer to this case is being worked on: answer again in a moment")
        going = resume(suspended, {call_id: taken.decision}, new_model(), self.runner, by=taken.by)
        await self._follow(case, going)

    async def _put(self, waiting: Iterable[dict[str, Any]]) -> None:
        for pending in waiting:
            await self.queue.put({"pending": {name: one for name, one in pending.items() if name != "order"}})

    async def _begin(self, case: int, customer: str, question: str, so_far: dict[str, Any] | None = None) -> None:
        model, context = new_model(), ToolContext(principal=customer)
        begun = so_far or {"messages": model.user(question), "state": None}
        going = run(model, begun["messages"], self.runner, context=context, state=begun["state"])
        await self._follow(case, going)

    async def _follow(self, case: int, going: Run) -> None:
        try:
            result = await going
        except Exception as error:
            logging.getLogger("desk").exception("case %s stopped", case)
            waiting = going.suspended  # what was done is not in it, nor what was taken up before
            # All that was done before the model failed is in its messages, so nothing is done twice.
            so_far = None if waiting else {"messages": going.messages, "state": dict(going.state)}
            said = f"{type(error).__name__}: {error}"
            self.store.keep(case, "waiting" if waiting else "stopped", said, waiting, so_far)
        else:
            waiting = result.suspended
            status = {"suspended": "waiting", "done": "done"}.get(result.status, "stopped")
            self.store.keep(case, status, result.text or result.reason or "", waiting)
        await self._put((waiting or {}).get("waiting", {}).values())
