"""Attacks by names of tools, and by definitions that are invalid or changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sample import rows

from cast import ask_always
from ferrule import DefinitionError, Runner, Tool, Toolset, allow, ask, tool


def named(name: str) -> Tool:
    return tool(lambda: "own", name=name, description="Do it.")


@pytest.mark.parametrize("row", rows("names"), ids=lambda row: row["why"])
def test_a_row_of_names_is_taken_or_refused(row: dict[str, str]) -> None:
    name = row["name"]
    if row["expect"] == "ok":
        assert Toolset([named(name)]).get(name).name == name
        return
    with pytest.raises(DefinitionError, match=r"name is 1 to 128|look alike|two tools are called"):
        Toolset([named("read_file"), named(name)])


REFUSED = [
    *("", " ", ".", "..", "a/..", "../../a", "/a", "a/", "a//b", "a b", "a\tb", "a\nb", "a\0b", "a\\b", "\ud800"),
    *("a\u200bb", "a\u00adb", "\u202eabc", "a\u2066b", "a\u3164", "\uffa0a", "a\ufe0f", "a\U000e0061"),
    *("a\u00a0b", "a\u2028b", "\U0001f600", "a*", "?", "[a]", "$a", "%s", "{0}", "`a`", "a;b", "<a>", "a'b", 'a"b'),
    *("~a", "a@b", "a" * 129, "#", "-a"),
]


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_an_ambiguous_name_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="name is 1 to 128"):
        named(name)


async def test_an_approval_of_another_definition_is_not_resumed() -> None:
    ran: list[str] = []

    def runner_of(kind: type, **traits: Any) -> Runner:
        def act(n: Any) -> str:
            """Act."""
            ran.append("act")
            return "done"

        act.__annotations__["n"] = kind
        made = tool(act, **traits)
        return Runner([made], guards=[ask_always], approve=lambda *_: ask("later"), resume_key=b"k" * 32)

    record = json.loads(json.dumps((await runner_of(int).run("act", {"n": 1})).record()))
    for changed in (runner_of(bool), runner_of(int, destructive=False)):
        assert (await changed.resume(record, allow())).status == "invalid"
    assert ran == []
    assert (await runner_of(int).resume(record, allow())).success and ran == ["act"]
