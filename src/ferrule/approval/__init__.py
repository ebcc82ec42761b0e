"""Who answers when a guard asks: the person at the terminal, by `console`, with what `question` and `preview` write;
`remembered` asks once for what a person allows for a while, and keeps it as `Grants`. `printable` is for whatever a
program prints that others have written.

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
