"""What tests of tools, guards and middleware are written with."""

from __future__ import annotations

from ferrule.testing.clock import ManualClock
from ferrule.testing.fake import fake
from ferrule.testing.faults import faults
from ferrule.testing.journal_contract import JournalContract
from ferrule.testing.recorder import Recorder
from ferrule.testing.selector_contract import SelectorContract

__all__ = ["JournalContract", "ManualClock", "Recorder", "SelectorContract", "fake", "faults"]
