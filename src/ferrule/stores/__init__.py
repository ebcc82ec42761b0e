"""Stores: values that several programs share, changed by compare-and-set, and the limits built on them.

    store = Postgres("postgresql://…")
    runner = Runner(tools, limits=share_limits(store))

See docs/approvals.md#stores and docs/limits.md#among-several-programs.
"""

from ferrule.stores.limits import share_limits
from ferrule.stores.store import Memory, Postgres, ReachableError, SealedFile, Store, StoreError

__all__ = ["Memory", "Postgres", "ReachableError", "SealedFile", "Store", "StoreError", "share_limits"]
