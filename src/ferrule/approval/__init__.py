"""Approvers: the answer when a guard asks.

`console` asks the person at the terminal, and `callback` a function of your program. `webhook` asks in a chat or by
mail. `later` suspends the call, and `web` is a queue of calls for a page. `remembered` asks once and stores the answer
for a while in `Grants`.
`Asked`, `Question` and `preview_lines` hold the contents of a question. `printable` makes text from others
safe to print.

An approver takes the call, the decision to ask and the context. `allow(…)` or `True` lets the call run, and `ask(…)`
suspends it. Any other result denies it, and so does an exception. The smallest approver of your own:

    def only_in_tests(call, decision, context):
        return context.principal == "tests"
"""

from __future__ import annotations

from ferrule.approval.callback import callback
from ferrule.approval.console import console
from ferrule.approval.grants import Grant, Grants
from ferrule.approval.later import later
from ferrule.approval.offer import Offer
from ferrule.approval.preview import NoPreview, preview_lines
from ferrule.approval.question import Question
from ferrule.approval.remembered import remembered
from ferrule.approval.request import Answer, Asked, RequestApprover, add_preview
from ferrule.approval.terminal import printable
from ferrule.approval.web import (
    AcceptedAnswer,
    AlreadyAnswered,
    AnswerRefused,
    NotWaiting,
    OwnCall,
    QuestionChanged,
    WaitingCall,
    web,
)
from ferrule.approval.webhook import Reply, Webhook, sign_message, verify_message, webhook

__all__ = [
    "AlreadyAnswered",
    "Answer",
    "AnswerRefused",
    "Asked",
    "RequestApprover",
    "Grant",
    "Grants",
    "NoPreview",
    "QuestionChanged",
    "NotWaiting",
    "Offer",
    "OwnCall",
    "Question",
    "AcceptedAnswer",
    "WaitingCall",
    "callback",
    "console",
    "later",
    "preview_lines",
    "add_preview",
    "printable",
    "remembered",
    "web",
    "Reply",
    "Webhook",
    "sign_message",
    "verify_message",
    "webhook",
]
