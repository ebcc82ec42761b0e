"""Who answers when a guard asks.

The person at the terminal, by `console`; a function of the program's own, by `callback`; nobody now, by `later`, so
that the call waits, perhaps in the queue of a page, which is `web`. `remembered` asks once for what a person allows for
a while, and keeps it as `Grants`. `Asked`, `Question` and `preview_lines` are what a person is shown; `printable` is
for whatever a program prints that others have written.

An approver takes the call, the decision that asks and the context: `allow(…)` or `True` lets the call run, `ask(…)`
suspends it, and everything else, breaking too, denies. The smallest one of your own:

    def only_in_tests(call, decision, context):
        return context.principal == "tests"
"""

from __future__ import annotations

from ferrule.approval.asked import Answer, Asked, AskedApprover, previewed
from ferrule.approval.callback import callback
from ferrule.approval.console import console
from ferrule.approval.grants import Grant, Grants
from ferrule.approval.later import later
from ferrule.approval.offer import Offer
from ferrule.approval.preview import NoPreview, preview_lines
from ferrule.approval.question import Question
from ferrule.approval.remembered import remembered
from ferrule.approval.terminal import printable
from ferrule.approval.web import AlreadyAnswered, AnswerRefused, NotAsShown, NotWaiting, OwnCall, Taken, Waiting, web

__all__ = [
    "AlreadyAnswered",
    "Answer",
    "AnswerRefused",
    "Asked",
    "AskedApprover",
    "Grant",
    "Grants",
    "NoPreview",
    "NotAsShown",
    "NotWaiting",
    "Offer",
    "OwnCall",
    "Question",
    "Taken",
    "Waiting",
    "callback",
    "console",
    "later",
    "preview_lines",
    "previewed",
    "printable",
    "remembered",
    "web",
]
