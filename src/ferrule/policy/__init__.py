"""What teams write into files about who may call what: conditions, rules, files in scopes, trust. See docs/policy.md.

`conditions.py` answers of one argument and `rule.py` of one call, in three ways; the verdict over all rules is there
too. Both are values. `policy.py` is the guard that holds the rules of several files.
"""

from __future__ import annotations

from ferrule.policy.conditions import Condition, condition
from ferrule.policy.rule import Rule

__all__ = ["Condition", "Rule", "condition"]
