"""A grant for A never runs B, for generated tools, arguments, callers and choices."""

from __future__ import annotations

import asyncio
import os
import posixpath
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from ferrule import Decision, Runner, Tool, ToolCall, ToolContext, allow, ask
from ferrule.approval import Answer, Asked, Grants, remembered

TEXTS = ["", "a", "b", "a b", "/etc/x", "../x", "~x", "https://a.org/", "file:/x"]
VALUES: dict[str, list[Any]] = {
    "text": TEXTS,
    "count": [-1, 0, 1, 2, 3],
    "on": [True, False],
    "kind": ["x", "y"],
    "path": ["/n/a", "/n/b", "/n/c/d", "/m/a", "/n/../m/a", "/n", "/", "/nn/a"],
    "url": [
        *("https://a.org/", "https://a.org/b", "https://b.org/", "http://a.org/", "https://a.org:8/"),
        *("https://a.org@b.org/", "x"),
    ],
    "command": ["ls", "ls -l", "git log", "git log -1", "git push", "sh -c ls", "ls; git push", "ls > x", "sudo ls"],
    "code": ["1", "2"],
    "cmd_str": ["ls", "git push"],
    "items": [["a"], ["b"], []],
}
TYPES: dict[str, dict[str, Any]] = {
    "count": {"type": "integer"},
    "on": {"type": "boolean"},
    "kind": {"enum": ["x", "y"]},
    "items": {"type": "array", "items": {"type": "string"}},
}


FACTS = ["tool", "description", "destructive", "open_world", "principal", "session", "directory", "rule"]


@dataclass(frozen=True)
class Made:
    """The parts of one call."""

    tool: str
    description: str
    destructive: bool | None
    open_world: bool
    arguments: tuple[tuple[str, Any], ...]
    principal: str | None
    session: str | None
    directory: str
    rule: str

    @property
    def given(self) -> dict[str, Any]:
        return dict(self.arguments)


@st.composite
def calls(draw: st.DrawFn) -> Made:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3, unique=True))
    return Made(
        draw(st.sampled_from(["one", "other", "bash"])),
        draw(st.sampled_from(["Do it.", "Do more."])),
        draw(st.sampled_from([False, False, None, True])),
        draw(st.booleans()),
        tuple((name, draw(st.sampled_from(VALUES[name]))) for name in sorted(names)),
        draw(st.sampled_from([None, "kim", "eve"])),
        draw(st.sampled_from([None, "s1", "s2"])),
        draw(st.sampled_from(["/", "/usr"])),
        draw(st.sampled_from(["r1", "r2"])),
    )


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Made, Made]:
    """A call, and one that differs in some of what it is made of: else hardly any two are alike."""
    one, other = draw(calls()), draw(calls())
    kept = draw(st.sets(st.sampled_from(FACTS))) if draw(st.booleans()) else FACTS
    other = replace(other, **{name: getattr(one, name) for name in kept})
    if draw(st.integers(0, 3)):
        changed = draw(st.sampled_from(sorted(one.given)))
        others = VALUES[changed]
        given = {**one.given, changed: draw(st.sampled_from(others))}
        other = replace(other, arguments=tuple(given.items()))
    return one, other


def tool_of(made: Made) -> Tool:
    async def handler(payload: dict[str, Any]) -> str:
        return "done"

    properties = {name: TYPES.get(name, {"type": "string"}) for name in made.given}
    marked = {} if made.destructive is None else {"destructive": made.destructive}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return Tool(
        name=made.tool,
        handler=handler,
        description=made.description,
        input_schema=schema,
        open_world=made.open_world,
        **marked,
    )


async def answered(made: Made, grants: Grants, chosen: int | None) -> bool:
    """Whether the call was answered by a grant; else the person chooses the offer of that number."""
    asked: list[Asked] = []

    class Person:
        async def __call__(self, call: ToolCall, decision: Decision, context: ToolContext) -> Decision:
            raise NotImplementedError

        async def answer(self, question: Asked) -> Answer:
            asked.append(question)
            offers = question.offers
            return Answer(allow(), None if chosen is None or not offers else offers[chosen % len(offers)])

    runner = Runner(
        [tool_of(made)], guards=[lambda *_: ask("may it?", rule=made.rule)], approve=remembered(Person(), grants)
    )
    context: ToolContext = ToolContext(principal=made.principal, session=made.session, working_directory=made.directory)
    result = await runner.run(made.tool, made.given, context)
    assert result.success
    return not asked


def leads_elsewhere(text: str) -> bool:
    return text not in {"", "a", "b", "a b", "x"}


def may_be(name: str, shown: Any, value: Any) -> bool:
    """Whether "always" may cover this value; written apart from the code under test."""
    if shown == value and isinstance(shown, bool) is isinstance(value, bool):
        return True
    if name == "count":
        return 0 <= value <= shown
    if name == "path":
        folder = posixpath.dirname(os.path.normpath(shown))
        meant = os.path.normpath(value)
        folder = os.path.normpath(shown) if folder == "/" else folder  # else all files would be in it
        return folder != "/" and (meant == folder or meant.startswith(f"{folder}/"))
    if name == "url":
        return {shown, value} <= {"https://a.org/", "https://a.org/b"}
    if name == "text":
        if leads_elsewhere(shown):
            return shown == "/etc/x" and value.startswith("/etc/")
        return not leads_elsewhere(value)
    return False


def may_answer(one: Made, other: Made) -> bool:
    """Whether any grant that a person can give for `one` may answer `other`."""
    if any(getattr(one, name) != getattr(other, name) for name in FACTS if name not in {"session", "destructive"}):
        return False
    if (one.destructive is False) is not (other.destructive is False):
        return False  # a tool that declares nothing counts, and is shown, as destructive
    if one.given.keys() != other.given.keys():
        return False
    is_line = one.tool == "bash" or {"command", "code", "cmd_str"} & one.given.keys()
    may_be_line = one.open_world and (one.given.get("text") or one.given.get("items"))
    if (is_line or may_be_line) and repr(one.given) != repr(other.given):
        return False  # a grant for what may be a shell line or code covers these exact words
    risky = one.destructive is True or (one.destructive is None and "command" not in one.given)
    risky = risky or bool({"code", "cmd_str"} & one.given.keys()) or (one.tool == "bash" and "command" not in one.given)
    risky = risky or one.given.get("command", "ls") in {"sh -c ls", "ls > x", "sudo ls"}
    if risky:
        return repr(one.given) == repr(other.given) and one.session is not None and one.session == other.session
    return all(may_be(name, value, other.given[name]) for name, value in one.given.items())


@settings(max_examples=100, deadline=None)
@given(pairs(), st.integers(0, 3))
def test_a_grant_covers_only_what_was_shown(two: tuple[Made, Made], chosen: int) -> None:
    one, other = two

    async def main() -> tuple[bool, bool]:
        grants = Grants()
        assert not await answered(one, grants, chosen)
        in_session = [grant.session for grant in grants.list_active()]
        again = await answered(other, grants, None)
        assert not (again and in_session[0] is not None and other.session != in_session[0])
        return again, bool(in_session)

    again, kept = asyncio.run(main())
    event(f"answered {again}, kept {kept}, equal {one == other}")
    if again:
        assert may_answer(one, other), (one, other)
    if one == other:
        assert again is kept  # and a grant does answer the very call that it was made for
