"""A request to a model with the right calls for it, and the file format of such cases."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from ferrule.errors import DefinitionError
from ferrule.models import Message
from ferrule.policy.conditions import refuse_unknown_keys
from ferrule.selection.evaluation import read_rows

_SUCH_CALLS = "'refund' or ('refund', {'order': '4711'})"


class ExpectedCall(NamedTuple):
    """A right call. See docs/evaluation.md#a-case."""

    name: str
    arguments: Mapping[str, Any] = {}
    """The arguments to compare. Other arguments of the call are ignored."""


@dataclass(frozen=True)
class Case:
    """A request, and the calls a model should make for it. See docs/evaluation.md#a-case.

        Case("refund-4711", "I want my money back for 4711.", calls=[("refund", {"order": "4711"})])

    Raises:
        DefinitionError: The case says nothing about calls, or it forbids all calls and names one.
    """

    id: str
    request: str | Sequence[Message]
    """The text of a user, or messages in the model's own form that end with it."""
    calls: Sequence[str | tuple[str, Mapping[str, Any]]] = ()
    """The right calls, each the name of a tool, or `(name, arguments)`. Arguments without a name here are not compared.
    `unittest.mock.ANY`, `pytest.approx` and other values with an `==` of their own decide by themselves.
    """
    in_order: bool = False
    """Whether the calls are to be made in this order."""
    never: Sequence[str] = ()
    """Names of tools that must not be called, or globs of them, such as `delete_*`."""
    refuses: bool = False
    """Whether the model must call nothing at all."""

    def __post_init__(self) -> None:
        about = f"the case {self.id!r}"
        if not isinstance(self.id, str) or not self.id:  # type: ignore[redundant-expr]
            raise DefinitionError(f"a case has an id, which is a text, not {self.id!r}")
        if not self.request or not isinstance(self.request, Sequence):
            raise DefinitionError(f"{about}: request is what a user says, or messages, not {self.request!r:.80}")
        if isinstance(self.never, str) or not all(isinstance(one, str) for one in self.never):
            raise DefinitionError(f"{about}: never is a list of names or globs of tools, not {self.never!r:.80}")
        if not (self.expected or self.never or self.refuses):
            raise DefinitionError(f"{about} says nothing of calls: give calls=[…], never=[…] or refuses=True")
        if self.refuses and (self.expected or self.never):
            raise DefinitionError(
                f"{about} has refuses=True, so that nothing is to be called: leave calls and never out"
            )
        if self.in_order and len(self.expected) < 2:
            raise DefinitionError(f"{about} has in_order=True, and fewer than two calls: leave it out")

    @property
    def expected(self) -> tuple[ExpectedCall, ...]:
        """The calls, each with its arguments."""
        if isinstance(self.calls, str) or not isinstance(self.calls, Sequence):
            raise DefinitionError(f"the case {self.id!r}: calls is a list, each {_SUCH_CALLS}, not {self.calls!r:.80}")
        return tuple(map(self._expected_call, self.calls))

    def _expected_call(self, given: object) -> ExpectedCall:
        match given:
            case str(name):
                return ExpectedCall(name)
            case (str(name), Mapping() as arguments):
                return ExpectedCall(name, arguments)
        raise DefinitionError(f"the case {self.id!r}: a call is {_SUCH_CALLS}, not {given!r:.80}")


_KEYS_OF_CASE = tuple(one.name for one in fields(Case))


def read_cases(path: str | os.PathLike[str]) -> list[Case]:
    """Return the cases of a JSONL file, one object a line. See docs/evaluation.md#cases-in-a-file.

    `{"id": "refund-4711", "request": "…", "calls": ["find_order", {"name": "refund", "arguments": {"euros": 80}}]}`,
    besides `in_order`, `never` and `refuses`. A case without an `id` is called by its line. The value of an argument is
    compared as it is; leave out an argument that may have any value.

    Raises:
        DefinitionError: A case is wrong; the error names file and line.
        OSError: The file cannot be read.
    """
    cases: list[Case] = []
    for where, row in read_rows(path):
        try:
            cases.append(_parse_case(row, where.rpartition(", ")[2]))
        except DefinitionError as error:
            raise DefinitionError(f"{where}: {error}") from None
    return cases


def _parse_case(row: Mapping[str, Any], line: str) -> Case:
    refuse_unknown_keys(row, _KEYS_OF_CASE, "a case")
    for key, kind, what in (("in_order", bool, "true or false"), ("refuses", bool, "true or false")):
        if not isinstance(row.get(key, False), kind):
            raise DefinitionError(f'"{key}" is {what}, not {row[key]!r:.80}')
    for key in ("calls", "never"):
        if not isinstance(row.get(key, []), list):
            raise DefinitionError(f'"{key}" is a list, not {row[key]!r:.80}')
    given = {"id": line, "request": "", **row, "calls": tuple(_parse_call(one) for one in row.get("calls", ()))}
    return Case(**given)


def _parse_call(given: Any) -> Any:
    """Return a call in the form of a case. Anything else stays as it is, and the case refuses it."""
    if not isinstance(given, dict):
        return given
    refuse_unknown_keys(given, ("name", "arguments"), "a call")
    if not isinstance(given.get("name"), str):
        raise DefinitionError(f'a call has a "name", as in {{"name": "refund"}}, not {given!r:.80}')
    return given["name"], given.get("arguments", {})
