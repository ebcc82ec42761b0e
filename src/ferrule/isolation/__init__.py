"""Handlers in processes of their own: what an executor needs of it.

recipe = Recipe(tool)                                        # once for each tool
shared().warm(1, [recipe])                                   # start a worker ahead
# take one of SLOTS, then:
order = Order(recipe, call, given, values, remaining)        # NotStartedError: it cannot be sent
job = shared().submit(order, on_progress)
outcome = await job.future                                   # a value, or Raised; NotStartedError, WorkerDiedError
job.kill()                                                   # whether it had not been started
"""

from __future__ import annotations

from ferrule.isolation.orders import Order
from ferrule.isolation.pool import SLOTS, Job, shared
from ferrule.isolation.recipes import Recipe

__all__ = ["SLOTS", "Job", "Order", "Recipe", "shared"]
