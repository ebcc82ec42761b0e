"""What a person was shown is what runs, or nothing does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferrule import Decision, Diff, Runner, ToolCall, ToolContext, ToolResult, allow, approval, ask, deny, tool
from ferrule.approval import Answer, Asked
from ferrule.guards import ask_before_changes, within
from ferrule.tools import files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(os.path.realpath(tmp_path))


def runner(root: Path, answer: Callable[[Asked], Any], **options: Any) -> Runner:
    guards = [within(root), ask_before_changes]
    return Runner(files.tools, guards=guards, approve=approval.callback(answer), **options)


def after(change: Callable[[], object]) -> Callable[[Asked], bool]:
    """A person who says yes, and somebody who changes something between what is shown and the yes."""

    def answer(asked: Asked) -> bool:
        change()
        return True

    return answer


WRITE = ("write_file", {"path": "a.txt", "content": "new\n"})
EDIT = ("edit_file", {"path": "a.txt", "old": "one", "new": "1"})


@pytest.mark.parametrize(("name", "arguments"), [WRITE, EDIT])
@pytest.mark.parametrize("change", ["changed", "gone", "binary", "same"])
def test_what_has_changed_since_it_was_shown_is_not_written_over(
    name: str, arguments: dict[str, Any], change: str, root: Path
) -> None:
    path = root / "a.txt"
    path.write_text("one\ntwo\n", encoding="utf-8")
    changes: dict[str, Callable[[], object]] = {
        "changed": lambda: path.write_text("one\nthree\n", encoding="utf-8"),
        "gone": path.unlink,
        "binary": lambda: path.write_bytes(b"one\0"),
        "same": lambda: path.write_text("one\ntwo\n", encoding="utf-8"),
    }
    result = runner(root, after(changes[change])).run_sync(name, arguments, ToolContext(working_directory=str(root)))
    if change == "same":
        assert result.success and path.read_text(encoding="utf-8") in {"new\n", "1\ntwo\n"}
        return
    assert not result.success
    assert not path.exists() if change == "gone" else path.read_bytes() in {b"one\nthree\n", b"one\0"}
    if change == "changed":
        assert "has changed since it was shown" in str(result.error) and result.executed is False


def test_a_file_that_came_since_it_was_shown_that_there_is_none_is_not_replaced(root: Path) -> None:
    path = root / "a.txt"
    result = runner(root, after(lambda: path.write_text("mine", encoding="utf-8"))).run_sync(
        *WRITE, ToolContext(working_directory=str(root))
    )
    assert "has changed since it was shown" in str(result.error)
    assert path.read_text(encoding="utf-8") == "mine"
    assert runner(root, lambda asked: True).run_sync(*WRITE, ToolContext(working_directory=str(root))).success
    made = ("write_file", {"path": "deep/er/b.txt", "content": "x"})
    assert runner(root, lambda asked: True).run_sync(*made, ToolContext(working_directory=str(root))).success


def test_the_next_call_is_shown_anew_and_then_it_is_written(root: Path) -> None:
    path = root / "a.txt"
    path.write_text("one\n", encoding="utf-8")
    shown = []

    def answer(asked: Asked) -> bool:
        shown.append(asked.preview)
        if len(shown) == 1:
            path.write_text("other\n", encoding="utf-8")
        return True

    running = runner(root, answer)
    assert [running.run_sync(*WRITE, ToolContext(working_directory=str(root))).success for _ in range(2)] == [
        False,
        True,
    ]
    assert "-one" in shown[0] and "-other" in shown[1]
    assert path.read_text(encoding="utf-8") == "new\n"


def test_no_model_sees_or_fills_what_a_call_is_held_to(root: Path) -> None:
    for one in (files.write_file, files.edit_file):
        assert "expected" not in one.input_schema["properties"]
    given = ("write_file", {**WRITE[1], "expected": "nothing"})
    result = runner(root, lambda asked: True).run_sync(*given, ToolContext(working_directory=str(root)))
    assert result.status == "invalid" and not (root / "a.txt").exists()


def test_where_nobody_is_asked_what_is_there_is_replaced(root: Path) -> None:
    seen: list[Any] = []
    (root / "a.txt").write_text("one", encoding="utf-8")
    quiet = Runner(files.tools, observers=[seen.append])
    assert quiet.run_sync(*WRITE, ToolContext(working_directory=str(root))).success
    assert all("expected" not in event.call.arguments for event in seen)


def test_no_event_and_no_record_has_what_a_call_is_held_to(root: Path) -> None:
    seen: list[Any] = []
    (root / "a.txt").write_text("one", encoding="utf-8")
    digests = []

    def answer(asked: Asked) -> bool:
        digests.append(asked.binds["expected"])
        assert "expected" not in asked.text and "expected" not in asked.arguments
        return True

    result = runner(root, answer, observers=[seen.append]).run_sync(*WRITE, ToolContext(working_directory=str(root)))
    assert result.success
    written = str([dict(event.data) for event in seen]) + str(result.record())
    assert digests[0] not in written


def test_a_mounted_tool_is_held_to_what_was_shown_too(root: Path) -> None:
    path = root / "a.txt"
    inner = Runner(files.tools, guards=[within(root), ask_before_changes])
    change = after(lambda: path.write_text("mine", encoding="utf-8"))
    outer = Runner(inner.as_tools(), approve=approval.callback(change))
    result = outer.run_sync(*WRITE, ToolContext(working_directory=str(root)))
    assert "has changed since it was shown" in str(result.error)
    assert path.read_text(encoding="utf-8") == "mine"


def test_a_tool_in_another_process_is_held_to_what_was_shown_too(root: Path) -> None:
    path = root / "a.txt"
    change = after(lambda: path.write_text("mine", encoding="utf-8"))
    guards = [within(root), ask_before_changes]
    apart = files.write_file.replace(isolation="process")
    results: list[ToolResult] = []

    async def run() -> None:
        async with Runner([apart], guards=guards, approve=approval.callback(change)) as running:
            results.append(await running.run(*WRITE, ToolContext(working_directory=str(root))))
        path.unlink()
        async with Runner([apart], guards=guards, approve=approval.callback(lambda asked: True)) as running:
            results.append(await running.run(*WRITE, ToolContext(working_directory=str(root))))

    asyncio.run(run())
    assert "has changed since it was shown" in str(results[0].error)
    assert results[1].success and path.read_text(encoding="utf-8") == "new\n"


# What a function is told, and what it may say


def pays(**options: Any) -> Any:
    @tool(**options)
    def pay(to: str, euros: int) -> str:
        """Pay somebody."""
        return f"paid {to} {euros}"

    return pay


PAY = ("pay", {"to": "ada", "euros": 5})


def asked_of(answer: Any, own: bool = True, **options: Any) -> ToolResult:
    approve = approval.callback(answer, own=own)
    made = Runner([pays(**options)], guards=[ask_before_changes], approve=approve)
    return made.run_sync(*PAY, principal="ann")


async def says_yes(asked: Asked) -> Answer:
    return asked.approve(by="bob")


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (lambda asked: True, "paid ada 5"),
        (lambda asked: allow(by="bob"), "paid ada 5"),
        (lambda asked: asked.approve(by="bob"), "paid ada 5"),
        (says_yes, "paid ada 5"),
        (lambda asked: says_yes(asked), "paid ada 5"),
        (lambda asked: allow({**asked.arguments, "euros": 3}), "paid ada 3"),
        (lambda asked: asked.with_arguments({**asked.arguments, "euros": 3}).approve(), "paid ada 3"),
        (lambda asked: Answer(allow()), "paid ada 5"),
    ],
)
def test_what_a_function_allows_runs(answer: Any, output: str) -> None:
    assert asked_of(answer).output == output


@pytest.mark.parametrize("said", [False, None, 1, "yes", deny("no"), [True]])
def test_whatever_else_it_says_denies(said: Any) -> None:
    assert asked_of(lambda asked: said).status == "denied"


def breaks(asked: Asked) -> bool:
    raise StopIteration


async def breaks_later(asked: Asked) -> bool:
    raise SystemExit


@pytest.mark.parametrize("answer", [breaks, breaks_later])
def test_a_function_that_breaks_denies(answer: Any) -> None:
    assert asked_of(answer).status == "denied"


def test_not_now_suspends() -> None:
    assert asked_of(lambda asked: ask("later")).status == "suspended"
    result = Runner([pays()], guards=[ask_before_changes], approve=approval.later).run_sync(*PAY)
    assert result.status == "suspended" and result.pending is not None


@pytest.mark.parametrize(
    ("by", "status"),
    [
        ("bob", "ok"),
        ("anne", "ok"),
        ("ann", "denied"),
        (None, "denied"),
        ("", "denied"),
        ("Ann", "denied"),
        (" ann", "denied"),
        ("ann\u200b", "denied"),
        ("\u0430nn", "denied"),
        ("\uff41nn", "denied"),
    ],
)
def test_a_principal_does_not_allow_its_own_calls_where_that_is_barred(by: str | None, status: str) -> None:
    assert asked_of(lambda asked: asked.approve(by=by), own=False).status == status
    assert asked_of(lambda asked: asked.approve(by=by)).status == "ok"
    assert asked_of(lambda asked: asked.deny("mine"), own=False).error == "Denied: mine. Nothing was run."


@pytest.mark.parametrize("principal", [None, ""])
def test_where_nobody_may_allow_a_call_of_their_own_it_has_to_be_known_whose_it_is(principal: str | None) -> None:
    approve = approval.callback(lambda asked: asked.approve(by="bob"), own=False)
    made = Runner([pays()], guards=[ask_before_changes], approve=approve)
    result = made.run_sync(*PAY, principal=principal)
    assert result.status == "denied" and "principal of this call is unknown" in result.text


def test_nobody_is_asked_about_what_cannot_work(root: Path) -> None:
    asked: list[Asked] = []
    (root / "a.txt").write_text("two", encoding="utf-8")
    result = runner(root, lambda one: bool(asked.append(one))).run_sync(*EDIT, ToolContext(working_directory=str(root)))
    assert result.status == "denied" and "old does not occur" in str(result.error) and asked == []


def test_a_preview_binds_what_is_private_and_nothing_else() -> None:
    shown: list[Asked] = []
    preview = Diff("a", "b", "x", {"euros": 5000})
    result = asked_of(lambda asked: shown.append(asked) or True, preview=lambda arguments: preview)
    assert result.output == "paid ada 5"
    assert shown[0].binds == {} and "private parameters only" in shown[0].text


# The digest


def question(**changes: Any) -> Asked:
    call = ToolCall("1", "pay", changes.get("arguments", {"to": "ada", "euros": 5}))
    decision = Decision("ask", changes.get("reason", "why"), rule=changes.get("rule", "a rule"))
    given = {name: changes[name] for name in ("session", "principal", "working_directory") if name in changes}
    context = ToolContext[Any](**{"principal": "ann", **given})
    return Asked(call, decision, context, preview=changes.get("preview"), binds=changes.get("binds", {}))


@pytest.mark.parametrize(
    "changed",
    [
        {"arguments": {"to": "ada", "euros": 50}},
        {"arguments": {"to": "ada", "euros": "5"}},
        {"arguments": {"to": "ada\u200b", "euros": 5}},
        {"arguments": {"to": "\ud800", "euros": 5}},
        {"reason": "other"},
        {"rule": "other"},
        {"session": "s"},
        {"working_directory": "/elsewhere"},
        {"principal": "bob"},
        {"preview": ("x",)},
        {"preview": "x"},
        {"binds": {"expected": "x"}},
    ],
)
def test_another_question_has_another_digest(changed: dict[str, Any]) -> None:
    assert question().digest == question().digest != question(**changed).digest
