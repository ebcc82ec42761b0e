"""Run an agent: ask the model, run its calls, answer them, and ask again until it is done.

    result = await run(model, model.user("What is in the notes?"), runner)

`run_many` makes thousands of calls without a model. See docs/models.md#models-and-the-loop and
docs/long-work.md#many-calls.
"""

from ferrule.loop.agent_loop import (
    Finished,
    LoopEvent,
    LoopResult,
    Messages,
    ModelText,
    NotResumed,
    OnFailure,
    Run,
    Status,
    TurnStarted,
    resume,
    run,
)
from ferrule.loop.keyed_run import RunKeyError
from ferrule.loop.long_batch import BatchSummary, LongBatch, run_many

__all__ = [
    "BatchSummary",
    "Finished",
    "LongBatch",
    "LoopEvent",
    "LoopResult",
    "Messages",
    "ModelText",
    "NotResumed",
    "OnFailure",
    "Run",
    "RunKeyError",
    "Status",
    "TurnStarted",
    "resume",
    "run",
    "run_many",
]
