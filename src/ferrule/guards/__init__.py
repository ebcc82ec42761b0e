"""May this call run? Each file holds one guard, named as you write it in `guards=[…]`.

A guard takes a validated call and its context. It returns `allow`, `ask` or `deny`, a mapping of changed arguments, or
nothing if it has no objection. It has no other effects. If it raises, the call is denied. The smallest guard of your
own:

    def at_most_ten(call, context):
        if call.arguments.get("count", 0) > 10:
            return deny("count is at most 10; ask in several calls")
"""

from __future__ import annotations

from ferrule.guards.ask_before_changes import ask_before_changes
from ferrule.guards.commands import commands
from ferrule.guards.flow import flow
from ferrule.guards.hosts import hosts
from ferrule.guards.rules import rules
from ferrule.guards.within import within
from ferrule.security.paths import PATH_NAMES

__all__ = ["PATH_NAMES", "ask_before_changes", "commands", "flow", "hosts", "rules", "within"]
