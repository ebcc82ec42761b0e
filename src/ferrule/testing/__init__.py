"""Helpers to test tools, guards and middleware, and to measure how well models use tools."""

from __future__ import annotations

from ferrule.testing.adapter_contract import AdapterContract
from ferrule.testing.approver_contract import ApproverContract
from ferrule.testing.blocking_adapter_contract import BlockingAdapterContract
from ferrule.testing.cases import Case, ExpectedCall, read_cases
from ferrule.testing.cassette import Cassette, CassetteError, cassette
from ferrule.testing.clock import ManualClock
from ferrule.testing.evaluating import evaluate
from ferrule.testing.fake import fake
from ferrule.testing.faults import faults
from ferrule.testing.framework import Framework, FrameworkRun, ModelView, Question, ScriptedCall
from ferrule.testing.guard_contract import ExpectedDecision, GuardContract
from ferrule.testing.journal_contract import JournalContract
from ferrule.testing.middleware_contract import MiddlewareContract
from ferrule.testing.recorder import Recorder
from ferrule.testing.rerun import Difference, Rerun, rerun
from ferrule.testing.scores import CallMade, Scores
from ferrule.testing.selector_contract import SelectorContract
from ferrule.testing.source_contract import Offer, SourceContract
from ferrule.testing.tool_contract import CallArguments, ToolContract
from ferrule.testing.tool_use import Outcome, ToolUse

__all__ = [
    "AdapterContract",
    "ApproverContract",
    "BlockingAdapterContract",
    "CallArguments",
    "CallMade",
    "Case",
    "Cassette",
    "CassetteError",
    "Difference",
    "FrameworkRun",
    "ExpectedCall",
    "Framework",
    "GuardContract",
    "JournalContract",
    "ExpectedDecision",
    "ManualClock",
    "MiddlewareContract",
    "Offer",
    "Outcome",
    "Question",
    "Recorder",
    "Rerun",
    "ScriptedCall",
    "Scores",
    "ModelView",
    "SelectorContract",
    "SourceContract",
    "ToolContract",
    "ToolUse",
    "cassette",
    "evaluate",
    "fake",
    "faults",
    "read_cases",
    "rerun",
]
