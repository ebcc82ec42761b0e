"""Stores: values that several programs share, changed by compare-and-set, with the limits and artifacts built on them.

    store = Postgres("postgresql://…")
    runner = Runner(tools, limits=share_limits(store))

See docs/approvals.md#stores, docs/limits.md#among-several-programs and docs/guides/large-results.md.
"""

from ferrule.stores.artifacts import Artifact, Artifacts
from ferrule.stores.limits import share_limits
from ferrule.stores.store import Memory, Postgres, ReachableError, SealedFile, Store, StoreError

__all__ = [
    "Artifact",
    "Artifacts",
    "Memory",
    "Postgres",
    "ReachableError",
    "SealedFile",
    "Store",
    "StoreError",
    "share_limits",
]
