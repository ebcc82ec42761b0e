"""Handlers on other machines: `remote.dbos` for calls that survive and are bounded, `remote.ray` for a cluster.

All decisions about a call stay in the program; only the place of the handler changes. An object for a tool's
`isolation=` makes an executor for each tool, `RemoteExecutor`, which writes the judged call as an order and reads
the messages about it. `OrderRunner` is the other end, the same for all: it makes the tool again, validates the judged
arguments once more and runs the handler without guards. Between them is an `OrderTransport`:

    class OrderTransport(Protocol):
        def send(self, workflow, order, *, repeatable, principal): ...   # yields the messages of the remote side

`_seal.py` signs all traffic in both directions, and `_wire.py` defines its content.
"""

from __future__ import annotations

from ferrule.remote._executor import OrderTransport, RemoteExecutor
from ferrule.remote._order_runner import OrderRunner, list_places
from ferrule.remote._seal import Seal

__all__ = ["OrderRunner", "OrderTransport", "RemoteExecutor", "Seal", "list_places"]
