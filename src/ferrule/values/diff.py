"""`Diff`: the change that a call would make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from ferrule.values.frozen import FrozenDict, JsonObject


@final
@dataclass(frozen=True, slots=True)
class Diff:
    """The change that a call would make. A tool's `preview` returns it for the person who approves.

    See docs/approvals.md.

    Attributes:
        before: The text as it is; empty for something new.
        after: The text as it would be.
        name: The name of the changed thing, such as a path.
        binds: Values for private parameters of the tool, such as a digest of `before`. Approving the diff supplies
            them, so the handler can refuse if the text has changed since.
    """

    before: str
    after: str
    name: str = ""
    binds: JsonObject = field(default_factory=FrozenDict, compare=False)
