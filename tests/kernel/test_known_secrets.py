"""Values that are known to be secret are stars in every text that leaves a call that failed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from isolated_tools import tells_its_secret
from journals import WatchedJournal
from pydantic import PostgresDsn, SecretStr, model_validator

from ferrule import (
    Decision,
    InputRequired,
    Runner,
    Text,
    Tool,
    ToolCall,
    ToolContext,
    ToolError,
    ToolHandler,
    ToolResult,
    Toolset,
    allow,
    ask,
    deny,
    tool,
)
from watched import Watch

TOKEN, KEY, PIN = "tok/en 4711-0815", "sk=live'99\n", "kqzx"
STARS = "**********"
SECRETS = {"service": {"token": TOKEN, "others": [SecretStr("another one")]}}


class Veiled(str):
    def __str__(self) -> str:
        return "***"


class Lookup(LookupError):
    """One that shows its text."""


def said(what: str) -> str:
    return f"refused {TOKEN} and {KEY} and {PIN} for {what}"


@tool(private=("pin",))
async def raising(kind: str, api_key: str, context: ToolContext, pin: str = "") -> Any:
    if kind == "exposed":
        raise Lookup(said(kind))
    if kind == "long":
        raise Lookup("x" * 490 + said(kind))
    if kind == "tool error":
        raise ToolError(said(kind))
    if kind == "group":
        raise ExceptionGroup("several", [ValueError(said(kind))])
    if kind == "caused":
        raise RuntimeError("no") from ValueError(said(kind))
    if kind == "result":
        return ToolResult(error=said(kind), content=[Text(said(kind)), Text("more")])
    if kind == "late":
        context.progress(message=said(kind))
        await asyncio.sleep(30)
    return "done"


tools = Toolset([raising]).bind(api_key=KEY)


def pin(call: ToolCall, context: ToolContext) -> dict[str, Any]:
    return {**call.arguments, "pin": PIN}


def raises(call: ToolCall, context: ToolContext) -> None:
    raise PermissionError(said("a guard"))


def denies(call: ToolCall, context: ToolContext) -> Any:
    return deny("x" * 490 + said("a guard")) if call.arguments["pin"] else None


async def wraps(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    await next(call, context)
    raise ToolError(said("a middleware"))


async def answers(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    return ToolResult(error=said("a middleware"))


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in ("exposed", "long", "tool error", "group", "caused", "result")},
    "late": ("late", {"timeout": 0.05}),
    "a guard that denies": ("", {"guards": [pin, denies]}),
    "a guard that raises": ("", {"guards": [pin, raises]}),
    "a middleware that raises": ("", {"around": [wraps]}),
    "a middleware with a result of its own": ("", {"inside": [answers]}),
}


def leaked(text: str) -> list[str]:
    written = [TOKEN, KEY, PIN, repr(KEY)[1:-1], "4711-0815", "live", "another one"]
    return [one for one in written if one in text]


@pytest.mark.parametrize("way", WAYS)
async def test_known_secrets_are_stars(way: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "ferrule")
    kind, options = WAYS[way]
    watch, journal = Watch(), WatchedJournal()
    options = {"guards": [pin], "observers": [watch], "journal": journal, "secrets": SECRETS, **options}
    result = await Runner(tools, **options).run("raising", {"kind": kind})
    assert not result.success
    events = [str({**event.data, "exception": None, "result": None}) for event in (*watch.events, *journal.events)]
    entries = [str(journal.intents), str(journal.outcomes)]
    texts = [str(result.error), result.text, str(result.record()), caplog.text, *events, *entries]
    assert [what for what, *_ in journal.log] == ([] if "guard" in way else ["begin", "end"])
    assert [leaked(text) for text in texts] == [[]] * len(texts)
    if way in {"exposed", "tool error", "result", "a guard that raises", "a middleware that raises"}:
        assert str(result.error).count(STARS) == 3
    assert "more" in result.text or kind != "result"


def spoken(kind: Any) -> Decision:
    """With a secret in each of its texts, also in those that `allow`, `ask` and `deny` do not take."""
    return Decision(kind, said("a decision"), by=said("who answers"), rule=said("a rule"))


def says(kind: str) -> Any:
    return lambda *_: spoken(kind)


ANSWERS: dict[str, dict[str, Any]] = {
    "a guard allows": {"guards": [pin, says("allow")]},
    "a guard denies": {"guards": [pin, says("deny")]},
    "a guard asks and nobody is there": {"guards": [pin, says("ask")]},
    **{f"an approver says {kind}": {"approve": says(kind)} for kind in ("allow", "ask", "deny")},
    "an approver gives the secret itself": {
        "approve": lambda *_: allow({"kind": "", "pin": PIN}, by=said("who answers"))
    },
}


@pytest.mark.parametrize("way", ANSWERS)
async def test_a_known_secret_is_stars_in_all_that_deciders_say(way: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "ferrule")
    watch, journal = Watch(), WatchedJournal()
    options = {"guards": [pin, says("ask")], **ANSWERS[way], "observers": [watch], "journal": journal}
    runner = Runner(tools, secrets=SECRETS, **options)
    results = [await runner.run("raising", {"kind": ""})]
    if results[0].status == "suspended":
        results.append(await runner.resume(results[0], way != "an approver says deny", by=said("who resumes")))
    decided = [event.data["decision"] for event in watch.events if event.kind == "tool:decided"]
    assert STARS in str(decided), "nobody has said anything"
    texts = [str(event.data) for event in (*watch.events, *journal.events)]
    texts += [str(result.record()) for result in results] + [caplog.text, str(journal.intents), str(journal.outcomes)]
    assert [leaked(text) for text in texts] == [[]] * len(texts)
    assert STARS in str(results[-1].record()["answered_by"]) or way.startswith("a guard")


async def test_a_nested_call_hides_the_secrets_of_its_parent() -> None:
    @tool
    async def below(text: str) -> None:
        raise Lookup(text)

    @tool
    async def above(context: ToolContext, api_key: str) -> str:
        return str((await context.run("below", {"text": api_key})).error)

    runner = Runner(Toolset([above]).bind(api_key=KEY) + Toolset([below]))
    assert (await runner.run("above", {})).output.count(STARS) == 1


async def shown_error(text: str, secret: Any = TOKEN) -> str:
    """Return the error of a call that raises this text while the secret is known."""

    @tool
    async def fails() -> None:
        raise Lookup(text)

    return str((await Runner([fails], secrets={"one": secret}).run("fails")).error)


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("read", "ready to read it, read! 'read'", f"ready to {STARS} it, {STARS}! '{STARS}'"),
        (4711, "a 4711.", f"a {STARS}."),
        # an escape, and no letters of the word
        *[("k4711x", f"is{before}k4711x", f"is{before}{STARS}") for before in ("\\n", "%22", "\\x00", "\\u003c")],
        ("471", "the pin 471", "the pin 471"),
        (True, "a True one", "a True one"),
        (Veiled("12345678"), "the 12345678s", f"the {STARS}s"),
        (PostgresDsn("postgresql://app:hushhush@db.example/main"), "postgresql://app:hushhush@db.example/main", STARS),
    ],
)
async def test_short_secrets_are_stars_as_whole_words_and_shorter_ones_never(
    secret: Any, text: str, shown: str
) -> None:
    assert f"Lookup: {shown}" in await shown_error(text, secret)


async def test_unreadable_secrets_hide_the_whole_text() -> None:
    class Vault(dict[str, str]):
        def values(self) -> Any:
            raise OSError("the vault is closed")

    @tool
    async def fails() -> None:
        raise Lookup(TOKEN)

    result = await Runner([fails]).run("fails", {}, ToolContext(secrets=Vault(a="b")))
    assert TOKEN not in str(result.error)


async def test_the_error_of_an_isolated_tool_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    isolated = Tool(name="tells", description="x", handler=tells_its_secret, isolation="process")
    result = await Runner([isolated], secrets={"token": TOKEN}).run("tells", {})
    assert f"LookupError: refused {STARS}" in str(result.error)
    assert "LookupError" in caplog.text and leaked(caplog.text) == []


async def test_a_cut_text_holds_no_part_of_a_secret() -> None:
    long = "x" * 490 + TOKEN * 8

    @tool
    async def speaks(context: ToolContext) -> Any:
        context.progress(1, 2, long)
        return InputRequired(long, {"type": "object"})

    watch = Watch()
    result = await Runner([speaks], secrets=SECRETS, approve=lambda *_: ask(""), observers=[watch]).run("speaks", {})
    [progress] = [event.data["message"] for event in watch.events if event.kind == "tool:progress"]
    for said in (str(result.error), progress):
        assert "xxx" in said and TOKEN[:3] not in said


async def test_the_question_and_schema_of_a_handler_show_no_known_secret() -> None:
    schema = {"type": "object", "description": TOKEN, "properties": {"code": {"type": "string", "title": TOKEN}}}
    shown: list[Any] = []

    @tool
    async def asking(kind: str, context: ToolContext) -> Any:
        wanted = InputRequired(f"the code for {TOKEN}", schema)
        return wanted if kind == "returned" else str(await context.ask(wanted))

    def approve(call: ToolCall, asked: Any, context: ToolContext) -> Any:
        shown.append((asked.reason, asked.schema))
        return ask("")

    watch = Watch()
    runner = Runner([asking], secrets=SECRETS, approve=approve, observers=[watch])
    results = [await runner.run("asking", {"kind": kind}) for kind in ("returned", "asked")]
    events = [event.data for event in watch.events]
    told = str((shown, events, results[0].record(), results[0].pending))
    assert len(shown) == 2 and STARS in str(results[0].pending) and TOKEN not in told


@pytest.mark.parametrize(("answer", "status"), [("; drop table", "denied"), ("acme-7", "ok")])
async def test_no_secret_changes_what_is_enforced_of_an_answer(answer: str, status: str) -> None:
    schema = {"type": "object", "properties": {"account": {"type": "string", "pattern": "^acme-[0-9]+$"}}}

    @tool
    async def asking(context: ToolContext) -> Any:
        return InputRequired("which?", schema) if context.answer is None else context.answer.value["account"]

    secrets = {"a": "pattern", "b": "string", "c": "acme"}
    result = await Runner([asking], secrets=secrets, approve=lambda *_: allow({"account": answer})).run("asking", {})
    assert (result.status, result.output) == (status, answer if status == "ok" else None)


class Refusing(ToolHandler):
    """Refuses, and quotes what is bound or private."""

    api: str = ""
    amount: int = 1

    @model_validator(mode="after")
    def refuse(self) -> Any:
        if self.amount > 5:
            raise ValueError(f"not with {self.api}")
        return self

    async def __call__(self) -> str:
        return "ran"


async def test_decide_and_explain_show_nothing_bound_or_private() -> None:
    refusing = Toolset([Tool("act", Refusing)]).bind(api=TOKEN)
    runner = Runner(refusing, guards=[lambda call, context: allow({**call.arguments, "amount": 2})])
    allowed, denied = [
        [await runner.decide(call), *await runner.explain(call)]
        for call in (ToolCall("", "act", {"amount": amount}) for amount in (1, 9))
    ]
    assert [one.arguments["api"] for one in allowed] == [STARS, STARS]
    assert [one.kind for one in denied] == ["deny", "deny"] and STARS in denied[0].reason
    assert TOKEN not in str((allowed, denied))


async def test_the_log_shows_no_bound_value_of_a_called_tool(caplog: Any) -> None:
    @tool
    async def inner(q: str, key: str) -> str:
        raise RuntimeError(f"no answer for {key}")

    bound = inner.bind(key=TOKEN)

    @tool
    async def outer(q: str) -> str:
        try:
            return str(await bound(q=q))
        except ToolError as error:
            raise LookupError("outer") from error

    assert (await Runner([outer]).run("outer", {"q": "a"})).status == "failed"
    assert "LookupError: outer" in caplog.text and STARS in caplog.text and TOKEN not in caplog.text
