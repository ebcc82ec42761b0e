"""Handlers on other machines: `remote.dbos` for calls that survive and are bounded, `remote.ray` for a cluster.

All that judges stays in the program; where a handler runs is a choice. An object for a tool's `isolation=` gives an
executor for each tool, `_near.RemoteExecutor`, which writes the judged call as an order and reads what is told of it.
`_far.FarSide` is the other end, the same for all: it makes the tool again, validates the judged arguments once more and
runs the handler without guards. What lies between is a `Line`:

    class Line(Protocol):
        def send(self, workflow, order, *, repeatable, principal): ...   # what the far side tells, as it comes

`_seal.py` signs all that crosses, in both directions, and `_wire.py` says what that is.
"""

from __future__ import annotations

from ferrule.remote._far import FarSide, places_of
from ferrule.remote._near import Line, RemoteExecutor
from ferrule.remote._seal import Seal

__all__ = ["FarSide", "Line", "RemoteExecutor", "Seal", "places_of"]
