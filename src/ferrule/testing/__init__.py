"""What tests of tools, guards and middleware are written with."""

from __future__ import annotations

from ferrule.testing.cassette import Cassette, CassetteError, cassette
from ferrule.testing.clock import ManualClock
from ferrule.testing.fake import fake
from ferrule.testing.faults import faults
from ferrule.testing.journal_contract import JournalContract
from ferrule.testing.recorder import Recorder
from ferrule.testing.rerun import Difference, Rerun, rerun
from ferrule.testing.selector_contract import SelectorContract
from ferrule.testing.source_contract import Offer, SourceContract

__all__ = [
    "Cassette",
    "CassetteError",
    "Difference",
    "JournalContract",
    "ManualClock",
    "Offer",
    "Recorder",
    "Rerun",
    "SelectorContract",
    "SourceContract",
    "cassette",
    "fake",
    "faults",
    "rerun",
]
