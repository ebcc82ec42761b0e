"""Files for the permissions of a team: conditions, rules, files in scopes, trust. See docs/policy.md.

`conditions.py` answers about one argument, `rule.py` about one call, and `verdict.py` about all rules. An answer is
true, false or unknown. Conditions and rules are values. `policy.py` is the guard with the rules of several files.
"""

from __future__ import annotations

from ferrule.policy.conditions import Condition, parse_condition
from ferrule.policy.files import find_files, list_standard_files
from ferrule.policy.lock import format_lock, make_definition
from ferrule.policy.policy import Difference, Policy
from ferrule.policy.reading import Finding, PolicyTest
from ferrule.policy.rule import JudgedCall, Rule
from ferrule.policy.trust import TrustedFiles
from ferrule.policy.verdict import PolicyDecision

__all__ = [
    "Condition",
    "Difference",
    "Finding",
    "JudgedCall",
    "PolicyDecision",
    "Policy",
    "PolicyTest",
    "Rule",
    "TrustedFiles",
    "find_files",
    "format_lock",
    "list_standard_files",
    "make_definition",
    "parse_condition",
]
