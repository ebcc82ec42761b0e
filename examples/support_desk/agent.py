"""The agent of the support desk: its tools, its guards, and how a case continues after a person has answered."""

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
    """Find one of the customer's orders: the item, the cents that were paid, and the cents paid back so far.

    Args:
        order: The number of the order.
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
        cents: The amount: 1250 is 12.50 EUR.
        reason: One sentence for the colleague who decides.
    """
    if not context.deps.refund(order, cents, reason):
        raise ToolError(f"that is more than was paid for order {order}; nothing was paid back")
    return f"paid back {euros(cents)} for order {order}"


def within_what_was_paid(call: ToolCall, context: ToolContext[Store]) -> Decision | None:
    """Deny impossible refunds, so that nobody is asked about them."""
    if call.name != "refund":
        return None
    order = context.deps.order(call.arguments["order"])
    if order is None or order["customer"] != context.principal:
        return deny("that is no order of this customer")
    left = order["cents"] - order["refunded"]
    return deny(f"no more than {euros(left)} can be paid back") if call.arguments["cents"] > left else None


def pretend(messages: Sequence[models.Message]) -> Any:
    """Stand in for a model: find the order, request a full refund, and report the result."""
    last, question = messages[-1], next(message["content"] for message in messages if message["role"] == "user")
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
            approve=approval.later,  # the run is suspended, and the page shows the question
            resume_key=resume_key,
            journal=Journal.open(store.path.with_name("calls.db")),  # intents, outcomes, and answers that were used
            deps=store,
            timeout=30,
        )
        self.queue = approval.web(Queue(store), tools=self.runner.tools)

    async def ask(self, customer: str, question: str) -> None:
        """Open a case. It ends with an answer, or waits for a person."""
        await self._begin(self.store.open_case(customer, question), customer, question)

    async def retry(self, case: int) -> bool:
        """Continue a case whose model failed, and return whether there was one."""
        stopped = self.store.claim_stopped(case)
        if stopped is None:
            return False
        await self._begin(case, stopped["customer"], stopped["question"], stopped["so_far"])
        return True

    async def waiting(self) -> dict[str, approval.WaitingCall]:
        """Return the questions that wait for an answer, by the key of the record."""
        for case in self.store.cases():
            if case["left_behind"]:  # the process with the answer was killed: ask again
                await self._put(case["waiting"])
        return {question.id: question for question in await self.queue.waiting()}

    async def answer(self, case: int, call_id: str, key: str, digest: str, yes: bool, by: str) -> None:
        """Continue a case with an answer.

        Raises:
            AnswerRefused: The answer does not count.
        """
        taken = await self.queue.answer(key, digest, yes, by=by)
        suspended = self.store.claim(case, call_id, key)
        if suspended is None:
            await self.queue.put(taken.record)
            raise approval.NotWaiting("the case is busy with another answer: answer again in a moment")
        task_run = resume(suspended, {call_id: taken.decision}, new_model(), self.runner, by=taken.by)
        await self._follow(case, task_run)

    async def _put(self, waiting: Iterable[dict[str, Any]]) -> None:
        for pending in waiting:
            await self.queue.put({"pending": {name: value for name, value in pending.items() if name != "order"}})

    async def _begin(self, case: int, customer: str, question: str, so_far: dict[str, Any] | None = None) -> None:
        model, context = new_model(), ToolContext(principal=customer)
        start = so_far or {"messages": model.user(question), "state": None}
        task_run = run(model, start["messages"], self.runner, context=context, state=start["state"])
        await self._follow(case, task_run)

    async def _follow(self, case: int, task_run: Run) -> None:
        try:
            result = await task_run
        except Exception as error:
            logging.getLogger("desk").exception("case %s stopped", case)
            waiting = task_run.suspended  # without the calls that ran and the answers that were used
            # The messages have all earlier calls, so nothing is done twice.
            so_far = None if waiting else {"messages": task_run.messages, "state": dict(task_run.state)}
            reason = f"{type(error).__name__}: {error}"
            self.store.save_case(case, "waiting" if waiting else "stopped", reason, waiting, so_far)
        else:
            waiting = result.suspended
            status = {"suspended": "waiting", "done": "done"}.get(result.status, "stopped")
            self.store.save_case(case, status, result.text or result.reason or "", waiting)
        await self._put((waiting or {}).get("waiting", {}).values())
