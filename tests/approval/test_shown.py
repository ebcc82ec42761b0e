"""A call runs as it was shown to a person, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferrule import Decision, Diff, Runner, ToolCall, ToolContext, ToolError, ToolResult, allow, approval, ask, tool
from ferrule.approval import Answer, Asked
from ferrule.guards import ask_before_changes, within
from ferrule.tools import files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(os.path.realpath(tmp_path))


def run_files(
    root: Path, answer: Callable[[Asked], Any], name: str, arguments: dict[str, Any], **options: Any
) -> ToolResult:
    """The result of a file tool, about which somebody who gives this answer is asked."""
    guards = [within(root), ask_before_changes]
    asking = Runner(files.tools, guards=guards, approve=approval.callback(answer), **options)
    return asking.run_sync(name, arguments, ToolContext(working_directory=str(root)))


def after(change: Callable[[], object]) -> Callable[[Asked], bool]:
    """A person who says yes, and somebody who changes something between what is shown and the yes."""

    def answer(asked: Asked) -> bool:
        change()
        return True

    return answer


WRITE = ("write_file", {"path": "a.txt", "content": "new\n"})
EDIT = ("edit_file", {"path": "a.txt", "old": "one", "new": "1"})


def write(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("name", "arguments"), [WRITE, EDIT])
@pytest.mark.parametrize(
    ("change", "left"),
    [
        (write("one\nthree\n"), b"one\nthree\n"),
        (Path.unlink, None),
        (lambda path: path.write_bytes(b"one\0"), b"one\0"),
    ],
)
def test_a_changed_file_is_not_overwritten(
    name: str, arguments: dict[str, Any], change: Callable[[Path], object], left: bytes | None, root: Path
) -> None:
    path = root / "a.txt"
    path.write_text("one\ntwo\n", encoding="utf-8")
    result = run_files(root, after(lambda: change(path)), name, arguments)
    assert not result.success
    assert path.read_bytes() == left if left else not path.exists()
    if left == b"one\nthree\n":
        assert "has changed since it was shown" in str(result.error) and result.executed is False


def test_a_file_that_appeared_since_the_question_is_not_overwritten(root: Path) -> None:
    path = root / "a.txt"
    result = run_files(root, after(lambda: write("mine")(path)), *WRITE)
    assert "has changed since it was shown" in str(result.error)
    assert path.read_text(encoding="utf-8") == "mine"


def test_the_digest_of_a_shown_file_is_hidden_everywhere(root: Path) -> None:
    events: list[Any] = []
    digests = []
    (root / "a.txt").write_text("one", encoding="utf-8")

    def answer(asked: Asked) -> bool:
        digests.append(asked.binds["expected"])
        assert "expected" not in asked.text and "expected" not in asked.arguments
        return True

    for one in (files.write_file, files.edit_file):
        assert "expected" not in one.input_schema["properties"]
    result = run_files(root, answer, "write_file", {**WRITE[1], "expected": "nothing"})
    assert result.status == "invalid" and digests == []
    result = run_files(root, answer, *WRITE, observers=[events.append])
    assert result.success
    assert digests[0] not in str([dict(event.data) for event in events]) + str(result.record())


def test_a_mounted_tool_does_not_overwrite_a_changed_file(root: Path) -> None:
    path = root / "a.txt"
    inner = Runner(files.tools, guards=[within(root), ask_before_changes])
    change = after(lambda: path.write_text("mine", encoding="utf-8"))
    outer = Runner(inner.as_tools(), approve=approval.callback(change))
    result = outer.run_sync(*WRITE, ToolContext(working_directory=str(root)))
    assert "has changed since it was shown" in str(result.error)
    assert path.read_text(encoding="utf-8") == "mine"


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
        (lambda asked: says_yes(asked), "paid ada 5"),
        (lambda asked: asked.with_arguments({**asked.arguments, "euros": 3}).approve(), "paid ada 3"),
        (lambda asked: Answer(allow()), "paid ada 5"),
    ],
)
def test_a_function_may_allow_and_edit(answer: Any, output: str) -> None:
    assert asked_of(answer).output == output


def breaks(asked: Asked) -> bool:
    raise StopIteration


async def breaks_later(asked: Asked) -> bool:
    raise SystemExit


@pytest.mark.parametrize(
    "answer", [*(lambda asked, said=said: said for said in (False, None, 1, "yes", [True])), breaks, breaks_later]
)
def test_a_function_that_returns_anything_else_or_breaks_denies(answer: Any) -> None:
    assert asked_of(answer).status == "denied"


def test_not_now_suspends() -> None:
    assert asked_of(lambda asked: ask("later")).status == "suspended"
    result = Runner([pays()], guards=[ask_before_changes], approve=approval.later).run_sync(*PAY)
    assert result.status == "suspended" and result.pending is not None


@pytest.mark.parametrize(
    ("by", "status"),
    [
        *((by, "ok") for by in ("bob", "anne")),
        *((by, "denied") for by in ("ann", None, "", " ann", "ann\u200b", "\uff41nn")),
    ],
)
def test_a_principal_cannot_allow_its_own_calls_if_that_is_barred(by: str | None, status: str) -> None:
    assert asked_of(lambda asked: asked.approve(by=by), own=False).status == status
    assert asked_of(lambda asked: asked.approve(by=by)).status == "ok"
    assert asked_of(lambda asked: asked.deny("mine"), own=False).error == "Denied: mine. Nothing was run."


@pytest.mark.parametrize("principal", [None, ""])
def test_a_call_of_nobody_is_denied_if_own_calls_are_barred(principal: str | None) -> None:
    approve = approval.callback(lambda asked: asked.approve(by="bob"), own=False)
    made = Runner([pays()], guards=[ask_before_changes], approve=approve)
    result = made.run_sync(*PAY, principal=principal)
    assert result.status == "denied" and "principal of this call is unknown" in result.text


@pytest.mark.parametrize(
    "make",
    [
        lambda asked: lambda *question: asked.append(question) or True,
        lambda asked: approval.callback(lambda question: asked.append(question) or True),
        lambda asked: approval.remembered(lambda *question: asked.append(question) or True),
    ],
)
def test_no_approver_is_asked_about_a_call_whose_preview_finds_a_problem(make: Callable[[list[Any]], Any]) -> None:
    def preview(arguments: Any) -> str:
        raise ToolError(f"there is no {arguments['to']}")

    asked: list[Any] = []
    made = Runner([pays(preview=preview)], guards=[ask_before_changes], approve=make(asked))
    result = made.run_sync(*PAY, principal="ann")
    assert (result.status, result.executed, asked) == ("denied", False, []) and "there is no ada" in result.text


def test_a_preview_binds_private_parameters_only() -> None:
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
        *({"arguments": {"to": "ada", "euros": "5"}}, {"arguments": {"to": "\ud800", "euros": 5}}),
        *({"reason": "other"}, {"rule": "other"}, {"session": "s"}, {"working_directory": "/elsewhere"}),
        *({"principal": "bob"}, {"preview": ("x",)}, {"preview": "x"}, {"binds": {"expected": "x"}}),
    ],
)
def test_another_question_has_another_digest(changed: dict[str, Any]) -> None:
    assert question().digest == question().digest != question(**changed).digest
