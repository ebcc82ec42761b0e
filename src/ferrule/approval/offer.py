"""An offer of "always for …". A person may choose it, and narrow it first."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ferrule.approval.question import format_name
from ferrule.errors import DefinitionError
from ferrule.policy import Condition, parse_condition
from ferrule.policy.reading import read_short_form
from ferrule.policy.span import format_span, parse_span
from ferrule.values.frozen import FrozenDict, JsonObject, freeze, thaw

DURATION = "for"
"""The name of the part with the duration of an offer."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Calls that a person may allow without further questions. See docs/approvals.md.

    Attributes:
        key: The kind of offer, such as `"session"`. It stays the same when the offer is narrowed.
        tool: The name of the tool.
        exactly: Whether only the exact arguments of the question are covered; `arguments` is empty then.
        arguments: The condition for each argument, as JSON (`{"within": ["notes"]}`); `None` for any value. A call with
            any other argument is not covered.
        session: Whether only this session is covered.
        seconds: The duration; `None` for no end before it is revoked.
        uses: The number of calls; `None` for any number.
    """

    key: str
    tool: str
    exactly: bool = False
    arguments: JsonObject = field(default_factory=FrozenDict)
    session: bool = False
    seconds: float | None = None
    uses: int | None = None

    @property
    def parts(self) -> Mapping[str, str]:
        """The parts for a person to narrow, by name, in the form that `narrow` reads."""
        conditions = {
            name: "any" if condition is None else _format_condition(condition)
            for name, condition in self.arguments.items()
        }
        return {**conditions, **({} if self.seconds is None else {DURATION: format_span(self.seconds)})}

    @property
    def text(self) -> str:
        """Everything that the offer covers, in one line."""
        limits = [
            "in this session" if self.session else "in this folder",
            "" if self.seconds is None else f"for {format_span(self.seconds)}",
            "" if self.uses is None else f"{self.uses} times" if self.uses != 1 else "once more",
        ]
        return ", ".join([f"{format_name(self.tool)} {self._describe_arguments()}".rstrip(), *filter(None, limits)])

    def _describe_arguments(self) -> str:
        if self.exactly:
            return "with these arguments"
        texts = [
            f"any {format_name(name)}" if condition is None else f"{format_name(name)} {_format_condition(condition)}"
            for name, condition in self.arguments.items()
        ]
        return f"with {' and '.join(texts)}" if texts else "without arguments"

    def narrow(self, part: str, text: str) -> Offer:
        """Return the offer with one of its `parts` narrowed to `text`.

        Raises:
            ValueError: The text cannot be read, or covers more than the offer. The error has the right form.
        """
        if part == DURATION and self.seconds is not None:
            seconds = parse_span(text)
            if not 0 < seconds <= self.seconds:
                raise ValueError(f"{text!r} goes beyond the offer of {format_span(self.seconds)}")
            return replace(self, seconds=seconds)
        if part not in self.arguments:
            raise ValueError(f"unknown part {part!r}: the parts of this offer are {', '.join(self.parts)}")
        offered = self.arguments[part]
        try:
            given = _read_condition(text.strip(), offered)
            if offered is not None and not parse_condition(offered).covers(given):
                raise ValueError(f"{given.text} is not known to be within the offer of {_format_condition(offered)}")
        except DefinitionError as error:
            raise ValueError(str(error)) from None
        return replace(self, arguments=FrozenDict({**self.arguments, part: freeze(given.to_json())}))


_LIST_WORDS = {"within": "within ", "hosts": "host "}
"""The first word of each kind of list in the short form of policy files."""
_SHORT_FORM = re.compile(r"[<>=]|(in|within|host)\s")


def _read_condition(text: str, offered: Any) -> Condition:
    """Return the condition that a person has written.

    It may have the short form of a policy file (`<=50`, `within notes|src`), or be values alone.

    Raises:
        DefinitionError: The text is no condition.
    """
    for kind, word in _LIST_WORDS.items():
        if offered is not None and kind in offered:
            values = [value.strip() for value in text.removeprefix(word).split("|")]
            return parse_condition({**thaw(offered), kind: values})
    return read_short_form(f"it(it {text if _SHORT_FORM.match(text) else f'in {text}'})")[1]["it"]


def _format_condition(given: Any) -> str:
    try:
        return parse_condition(given).text
    except DefinitionError:  # a list or an object, shown as it is
        return json.dumps(thaw(given.get("equals", given)), ensure_ascii=False)
