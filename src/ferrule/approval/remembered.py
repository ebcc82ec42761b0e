"""Answer from earlier grants, and ask another approver about all other calls."""

from __future__ import annotations

import inspect
import logging
from dataclasses import replace
from typing import Any

from ferrule.approval.grants import Grant, Grants
from ferrule.approval.offer import Offer
from ferrule.approval.request import Answer, Asked, add_preview, run_blocking
from ferrule.definition.handler import is_async
from ferrule.types import Approver
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.decision import Decision, deny
from ferrule.values.frozen import thaw
from ferrule.values.json_text import is_same_json

log = logging.getLogger("ferrule")


class Remember:
    """The approver made by `remembered`."""

    def __init__(self, inner: Approver, grants: Grants) -> None:
        self.inner: Any = inner
        self.grants = grants

    @property
    def suspends(self) -> bool:
        """Whether a call without a grant is suspended."""
        return getattr(self.inner, "suspends", False) is True

    async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
        return (await self.answer(Asked.of(call, decision, context))).decision

    async def answer(self, request: Asked) -> Answer:
        """Return the answer of a grant, or the other approver's answer to the question with offers."""
        try:
            grant = await run_blocking(lambda: self.grants.use(request.call, request.decision, request.context))
            if grant is not None:
                return Answer(grant.decision)
            request = replace(request, offers=await run_blocking(lambda: self.grants.offers(request)))
        except Exception:
            log.exception("the grants are unreadable, so none answers")
        answer = await self._inner_answer(request)
        if answer.offer is None or answer.decision.kind != "allow":
            return answer
        return await self._store_grant(request, answer, answer.offer)

    async def foresee(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision | None:
        """Return the answer of a grant without using it up, or the decision that the other approver foresees."""
        grant: Grant | None = await run_blocking(lambda: self.grants.find(call, decision, context))
        if grant is not None:
            return grant.decision
        inner = getattr(self.inner, "foresee", None)
        return None if inner is None else await inner(call, decision, context)

    async def _inner_answer(self, request: Asked) -> Answer:
        if (ask := getattr(self.inner, "answer", None)) is not None:
            return await ask(request)  # type: ignore[no-any-return]
        if (problem := (await add_preview(request)).problem) is not None:
            return request.deny(problem)
        question = request.call, request.decision, request.context
        if is_async(self.inner):
            return request.to_answer(await self.inner(*question))
        given: Any = await run_blocking(lambda: self.inner(*question))
        return request.to_answer(await given if inspect.isawaitable(given) else given)

    async def _store_grant(self, request: Asked, answer: Answer, offer: Offer) -> Answer:
        """Store the chosen grant, and return the answer; a deny if the choice goes beyond the offers."""
        if not _is_unchanged(request, answer.decision):
            return Answer(deny("the person changed the arguments, and a grant covers unchanged arguments only"))
        try:
            await run_blocking(lambda: self.grants.grant(request, offer, by=answer.decision.by))
        except ValueError as error:
            return Answer(deny(f"the grant goes beyond the offer: {error}"))
        except Exception:
            log.exception("the grant was not stored")
        return answer


def _is_unchanged(request: Asked, decision: Decision) -> bool:
    """Return whether an allow is for the arguments as shown."""
    if decision.arguments is None:
        return True
    given, shown = (
        {name: thaw(value) for name, value in one.items() if name not in request.hidden}
        for one in (decision.arguments, request.arguments)
    )
    return is_same_json(given, shown)


def remembered(inner: Approver, grants: Grants | None = None) -> Remember:
    """Make an approver that asks `inner` once, and then remembers the answer if the person wants it.

    See docs/approvals.md#remembered-answers. A grant answers each call it covers: `allow(by=…)` with the name of its
    author, and the rule `grant ID`. `inner` answers the other calls. If it is an approver of `ferrule.approval`, it
    gets offers: for these arguments, for this session, always. The chosen offer is stored as a grant.

    Args:
        inner: The approver to ask.
        grants: The stored grants; in the memory of this process by default.
    """
    return Remember(inner, Grants() if grants is None else grants)
