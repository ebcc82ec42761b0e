"""What tests of tools, guards and middleware are written with."""

from __future__ import annotations

from ferrule.testing.clock import ManualClock
from ferrule.testing.fake import fake
from ferrule.testing.faults import faults

__all__ = ["ManualClock", "fake", "faults"]
