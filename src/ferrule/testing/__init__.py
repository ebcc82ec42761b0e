"""What tests of tools, guards and middleware are written with."""

from __future__ import annotations

from ferrule.testing.approver_contract import ApproverContract, Said
from ferrule.testing.clock import ManualClock
from ferrule.testing.fake import fake
from ferrule.testing.faults import faults
from ferrule.testing.guard_contract import GuardContract, Judged
from ferrule.testing.journal_contract import JournalContract
from ferrule.testing.middleware_contract import MiddlewareContract
from ferrule.testing.recorder import Recorder
from ferrule.testing.selector_contract import SelectorContract
from ferrule.testing.source_contract import Offer, SourceContract
from ferrule.testing.tool_contract import CallArguments, ToolContract

__all__ = [
    "ApproverContract",
    "CallArguments",
    "GuardContract",
    "JournalContract",
    "Judged",
    "ManualClock",
    "MiddlewareContract",
    "Offer",
    "Recorder",
    "Said",
    "SelectorContract",
    "SourceContract",
    "ToolContract",
    "fake",
    "faults",
]
