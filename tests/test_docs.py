"""The pages agree with the code: named tests, files and functions exist, and tables match the modules."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest

import ferrule
from ferrule import (
    DefinitionError,
    Runner,
    ToolContext,
    ToolResult,
    Toolset,
    guards,
    loop,
    middleware,
    models,
    serve,
    sources,
    testing,
    tool,
)
from ferrule.adapters import adapter, chapter1
from ferrule.definition.options import OPTIONS
from ferrule.loop import Status
from ferrule.providers import NAMES, Stop

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "SECURITY.md"]
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
SOURCES = {
    file.relative_to(ROOT / "src" / "ferrule").as_posix(): file.read_text()
    for file in (ROOT / "src" / "ferrule").rglob("*.py")
}
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
THE_WAY = ARCHITECTURE.partition("## The way of one call")[2].partition("\n## ")[0]
MODELS = (ROOT / "docs" / "models.md").read_text()
NAMED = [(p.name, name) for p in PAGES for name in re.findall(r"`(tests/[\w/.]+\.py(?:::\w+)?)`", p.read_text())]


@pytest.mark.parametrize(("page", "name"), NAMED)
def test_a_test_that_a_page_names_exists(page: str, name: str) -> None:
    path, _, function = name.partition("::")
    text = (ROOT / path).read_text()
    assert not function or re.search(rf"^(async )?def {function}\(", text, re.MULTILINE)


def test_each_promise_names_one_test_that_exists() -> None:
    text = (ROOT / "docs" / "promises.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|") and not line.startswith(("| Promise", "|---"))]
    defined = Counter(re.findall(r"(?m)^ *(?:async )?def (test_\w+)", "\n".join(file.read_text() for file in TESTS)))
    assert len(rows) > 100
    for row in rows:
        named = re.findall(r"`(tests/[^`]+|test_\w+)`", row)
        assert named and [name for name in named if name.startswith("test_") and defined[name] != 1] == [], row


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def table(head: str) -> list[list[str]]:
    """The cells of the table in docs/models.md whose first head is this one."""
    lines = MODELS.partition(f"\n| {head} |")[2].splitlines()[2:]
    rows = lines[: next(at for at, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


@tool
def add(a: int) -> int:
    """Add one."""
    return a + 1


REQUESTS = {tuple(quoted(row[0].partition(":")[0])): row[1:] for row in table("Module: the SDK's function")}
CHOICES: dict[str, dict[str, Any]] = {
    '`"required"`': {"choice": "required"},
    '`"none"`': {"choice": "none"},
    "a tool's name": {"choice": "add"},
    "`parallel=False`": {"parallel": False},
    "`only=`": {"only": ["add"]},
}


def module_of(api: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """A row's module, and what its functions are given besides."""
    return import_module(f"ferrule.providers.{api[0]}"), {"api": "interactions"} if len(api) > 1 else {}


def refused(function: Callable[..., Any], *given: Any, **more: Any) -> bool:
    try:
        function(*given, **more)
    except DefinitionError:
        return True
    return False


def test_the_page_on_models_has_a_row_for_each_api() -> None:
    assert sorted({name for name, *_ in REQUESTS}) == sorted(NAMES) and len(REQUESTS) == len(NAMES) + 1


@pytest.mark.parametrize("api", REQUESTS, ids=" ".join)
def test_each_row_names_what_its_api_cannot_say(api: tuple[str, ...]) -> None:
    module, more = module_of(api)
    found = [said for said, given in CHOICES.items() if refused(module.tool_choice, **given, **more)]
    found += ["`strict=`"] if refused(module.tools, Toolset([add]), strict=True, **more) else []
    listed = REQUESTS[api][-1]
    assert sorted(found) == sorted(listed.split(", ") if listed else [])


@pytest.mark.parametrize(("head", "words"), [("`stop`", Stop), ("`result.status`", Status)])
def test_each_word_has_exactly_one_row(head: str, words: Any) -> None:
    assert sorted(row[0] for row in table(head)) == sorted(f'`"{word}"`' for word in get_args(words))


def test_named_options_for_system_prompts_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "dummy")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    named = re.findall(r"^\| `(\w+)` \| the option `(\w+)=", MODELS, re.MULTILINE)
    assert len(named) == 4
    for model, option in named:
        getattr(models, model)("name", **{option: "Be brief."})


def test_files_named_on_the_architecture_page_exist() -> None:
    named = {word for words in quoted(ARCHITECTURE) for word in words.split() if word.endswith((".py", "/"))}
    assert len(named) > 30
    assert [word for word in named if not any((ROOT / top / word).exists() for top in ("", "src/ferrule"))] == []


def test_each_named_step_of_a_call_is_in_its_file() -> None:
    steps = re.findall(r"^ *- `(?:\w+\.)?(\w+)` in `([\w/]+\.py)`", THE_WAY, re.MULTILINE)
    assert len(steps) == THE_WAY.count("\n- ") + THE_WAY.count(" - ") > 10
    functions = {file: re.findall(r"\bdef (\w+)", source) for file, source in SOURCES.items()}
    assert [step for step in steps if step[0] not in functions.get(step[1], [])] == []


def test_the_drawing_of_a_call_follows_the_code() -> None:
    tree = ast.parse(SOURCES["kernel/path.py"])
    drawn = re.findall(r"^ +[├└] (\w+)  ", ast.get_docstring(tree) or "", re.MULTILINE)[1:]  # without `run_core`
    (steps,) = [node for node in tree.body if getattr(node, "name", "") == "_run_steps"]
    calls = sorted((node.lineno, ast.unparse(node.func)) for node in ast.walk(steps) if isinstance(node, ast.Call))
    places = [next(number for number, (_, name) in enumerate(calls) if step in name) for step in drawn]
    assert len(places) > 5 and places == sorted(places)


def test_every_name_in_the_way_of_a_call_is_defined() -> None:
    words = [word for word in quoted(THE_WAY) if not word.endswith(".py") and re.fullmatch(r"[\w.]+", word)]
    names = {name for word in words for name in word.split(".")}
    everything = "\n".join(SOURCES.values())
    assert len(names) > 20
    assert [name for name in names if not re.search(rf"\b(def|class) {name}\b|\b{name}: ", everything)] == []


COMING_FROM = (ROOT / "docs" / "coming-from.md").read_text()
HERE = [line.strip("| ").split(" | ")[1] for line in COMING_FROM.splitlines() if line.count(" | ") == 1]


def test_our_names_on_the_migration_page_exist() -> None:
    places = (
        *(ferrule, Runner, Toolset, ToolContext, ToolResult, middleware, guards, loop, models, serve, sources, testing),
        *(loop.LoopResult, *map(importlib.import_module, ("ferrule.mcp", "ferrule.adapters.afk"))),
        *(chapter1, chapter1.ToolRegistry, chapter1.RegisteredTool, adapter, adapter.Adapter),
    )
    called = Runner, loop.run, adapter.Adapter
    takes = {*OPTIONS, *(name for one in called for name in inspect.signature(one).parameters)}
    known = takes.union(*map(dir, places), ["name", "into", "output", "content", "openai_responses", "strict"])
    spans = [span for cell in HERE for span in quoted(cell) if not span.startswith(("ferrule ", "--", "async def"))]
    plain = " ".join(re.sub(r'"[^"]*"', "", span) for span in spans)
    words = set(re.findall(r"[A-Za-z_]\w*(?=[(=])|(?<=\.)[A-Za-z_]\w*", plain))
    assert len(HERE) > 40 and len(words) > 40
    assert words - known == set()
