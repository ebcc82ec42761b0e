"""Files for the permissions of a team: conditions, rules, files in scopes, trust. See docs/policy.md.

`conditions.py` answers about one argument, `rule.py` about one call, and `verdict.py` about all rules. An answer is
true, false or unknown. Conditions and rules are values. `policy.py` is the guard with the rules of several files.
"""

from __future__ import annotations

from ferrule.policy.conditions import Condition, condition
from ferrule.policy.files import found_files, standard_files
from ferrule.policy.policy import Difference, Policy, load
from ferrule.policy.reading import Finding, PolicyTest
from ferrule.policy.rule import Rule
from ferrule.policy.trust import Trusted
from ferrule.policy.verdict import Judged

__all__ = [
    "Condition",
    "Difference",
    "Finding",
    "Judged",
    "Policy",
    "PolicyTest",
    "Rule",
    "Trusted",
    "condition",
    "found_files",
    "load",
    "standard_files",
]
