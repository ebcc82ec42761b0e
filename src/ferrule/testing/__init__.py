"""What tests of tools, guards and middleware are written with."""

from __future__ import annotations

from ferrule.testing.adapter_contract import AdapterContract
from ferrule.testing.blocking_adapter_contract import BlockingAdapterContract
from ferrule.testing.clock import ManualClock
from ferrule.testing.fake import fake
from ferrule.testing.faults import faults
from ferrule.testing.framework import Driven, Framework, Question, Said, Seen
from ferrule.testing.journal_contract import JournalContract
from ferrule.testing.recorder import Recorder
from ferrule.testing.selector_contract import SelectorContract
from ferrule.testing.source_contract import Offer, SourceContract

__all__ = [
    "AdapterContract",
    "BlockingAdapterContract",
    "Driven",
    "Framework",
    "JournalContract",
    "ManualClock",
    "Offer",
    "Question",
    "Recorder",
    "Said",
    "Seen",
    "SelectorContract",
    "SourceContract",
    "fake",
    "faults",
]
