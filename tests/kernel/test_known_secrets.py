"""Values that are known to be secret are stars in every text that leaves a call that failed."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any
from urllib.parse import quote, quote_plus, urlencode

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
from watched import Watch, go

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
    if kind == "hidden":
        raise RuntimeError(said(kind))
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


def breaks(call: ToolCall, context: ToolContext) -> None:
    raise ZeroDivisionError(said("a guard"))


def denies(call: ToolCall, context: ToolContext) -> Any:
    return deny("x" * 490 + said("a guard")) if call.arguments["pin"] else None


async def wraps(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    await next(call, context)
    raise ToolError(said("a middleware"))


async def answers(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
    return ToolResult(error=said("a middleware"))


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in ("exposed", "long", "tool error", "hidden", "group", "caused", "result")},
    "late": ("late", {"timeout": 0.05}),
    "a guard that denies": ("", {"guards": [pin, denies]}),
    "a guard that raises": ("", {"guards": [pin, raises]}),
    "a guard that breaks": ("", {"guards": [pin, breaks]}),
    "a middleware that raises": ("", {"around": [wraps]}),
    "a middleware that raises inside": ("", {"inside": [wraps]}),
    "a middleware with a result of its own": ("", {"inside": [answers]}),
}


def leaked(text: str) -> list[str]:
    written = [TOKEN, KEY, PIN, repr(KEY)[1:-1], "4711-0815", "live", "another one"]
    return [one for one in written if one in text]


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_known_to_be_secret_is_stars_in_every_text_that_leaves(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "ferrule")
    kind, options = WAYS[way]
    watch, journal = Watch(), WatchedJournal()
    options = {"guards": [pin], "observers": [watch], "journal": journal, "secrets": SECRETS, **options}

    result = await Runner(tools, **options).run("raising", {"kind": kind})
    assert not result.success
    noted = [*watch.events, *journal.events]
    events = [str({**event.data, "exception": None, "result": None}) for event in noted]
    kept = [str(journal.intents), str(journal.outcomes)]
    left = [str(result.error), result.text, str(result.record()), caplog.text, *events, *kept]
    begun_and_ended = [what for what, *_ in journal.log]
    assert begun_and_ended == ([] if "guard" in way else ["begin", "end"])
    assert [leaked(text) for text in left] == [[]] * len(left)
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
async def test_what_is_known_to_be_secret_is_stars_in_all_that_who_decides_says(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "ferrule")
    watch, journal = Watch(), WatchedJournal()
    options = {"guards": [pin, says("ask")], **ANSWERS[way], "observers": [watch], "journal": journal}

    async def main() -> list[ToolResult]:
        runner = Runner(tools, secrets=SECRETS, **options)
        result = await runner.run("raising", {"kind": ""})
        if result.status != "suspended":
            return [result]
        by = said("who resumes")
        return [result, await runner.resume(result.record(), way != "an approver says deny", by=by)]

    results = await main()
    decided = [event.data["decision"] for event in watch.events if event.kind == "tool:decided"]
    assert STARS in str(decided), "nobody has said anything"
    noted = [*watch.events, *journal.events]
    left = [str(event.data) for event in noted] + [str(result.record()) for result in results]
    left += [caplog.text, str(journal.intents), str(journal.outcomes)]
    assert [leaked(text) for text in left] == [[]] * len(left)
    assert STARS in str(results[-1].record()["approved_by"]) or way.startswith("a guard")


async def test_the_log_of_a_guard_that_breaks_shows_no_secret_that_it_holds(caplog: pytest.LogCaptureFixture) -> None:
    class Checks:
        def __repr__(self) -> str:
            return f"Checks({TOKEN!r})"

        def check(self, call: ToolCall, context: ToolContext) -> None:
            raise ZeroDivisionError

    assert (await Runner(tools, guards=[Checks()], secrets=SECRETS).run("raising", {"kind": ""})).status == "denied"
    assert "Checks(" in caplog.text and leaked(caplog.text) == []


async def test_a_call_that_a_tool_makes_hides_what_the_one_above_knows() -> None:
    @tool
    async def below(text: str) -> None:
        raise Lookup(text)

    @tool
    async def above(context: ToolContext, api_key: str) -> str:
        return str((await context.run("below", {"text": api_key})).error)

    assert (await Runner(Toolset([above]).bind(api_key=KEY) + Toolset([below])).run("above", {})).output.count(
        STARS
    ) == 1


def test_short_values_are_stars_as_whole_words_and_shorter_ones_never() -> None:
    @tool
    async def fails(text: str) -> None:
        raise Lookup(text)

    def told(secret: Any, text: str) -> str:
        return str(go(Runner([fails], secrets={"one": secret}).run("fails", {"text": text})).error)

    assert "ready to ********** it, 'read'" not in told("read", "ready to read it, 'read'")
    assert f"ready to {STARS} it, {STARS}!" in told("read", "ready to read it, read!")
    assert f"a {STARS}s" in told("12345678", "a 12345678s")
    assert f"a {STARS}." in told(4711, "a 4711.")
    for before in "\\n", "%22", "\\x00", "\\u003c":  # an escape, and no letters of the word
        assert f"is{before}{STARS}" in told("k4711x", f"is{before}k4711x")
    assert "the pin 471" in told("471", "the pin 471")
    assert "a True one" in told(True, "a True one")
    assert f"the {STARS}." in told(Veiled("12345678"), "the 12345678.")


async def test_secrets_that_cannot_be_read_hide_the_whole_text() -> None:
    class Vault(dict[str, str]):
        def values(self) -> Any:
            raise OSError("the vault is closed")

    @tool
    async def fails() -> None:
        raise Lookup(TOKEN)

    result = await Runner([fails]).run("fails", {}, ToolContext(secrets=Vault(a="b")))
    assert TOKEN not in str(result.error)


async def test_what_an_isolated_tool_raises_hides_what_it_was_given(caplog: pytest.LogCaptureFixture) -> None:
    isolated = Tool(name="tells", description="x", handler=tells_its_secret, isolation="process")
    result = await Runner([isolated], secrets={"token": TOKEN}).run("tells", {})
    assert f"LookupError: refused {STARS}" in str(result.error)
    assert "LookupError" in caplog.text and leaked(caplog.text) == []


async def test_each_line_of_a_secret_is_one(caplog: pytest.LogCaptureFixture) -> None:
    lines = ["-----BEGIN KEY-----", "MIIEvQIBADANBg", "kqhkiG9w0BAQ"]

    @tool
    async def fails() -> None:
        raise ExceptionGroup("several", [ValueError("\n".join(lines))])

    await Runner([fails], secrets={"key": "\n".join(lines)}).run("fails", {})
    assert "ValueError" in caplog.text
    assert [line for line in lines if line in caplog.text] == []


async def test_what_a_handler_asks_is_told_and_recorded_without_what_is_known_to_be_secret() -> None:
    @tool
    async def asking(context: ToolContext) -> Any:
        return InputRequired(f"the code for {TOKEN}", {"type": "object"})

    events: list[Any] = []
    runner = Runner([asking], secrets=SECRETS, approve=lambda call, asked, context: ask(""), observers=[events.append])
    result = await runner.run("asking", {})
    told = [str(event.data) for event in events] + [str(result.record()), str(result.pending)]
    assert result.status == "suspended" and STARS in str(result.pending)
    assert not any(TOKEN in text for text in told)


@pytest.mark.parametrize("kind", ["asks", "middleware"])
async def test_no_half_of_what_is_known_to_be_secret_is_left_where_a_text_is_cut(kind: str) -> None:
    long = "x" * 400 + TOKEN * 8

    @tool
    async def asking(context: ToolContext) -> Any:
        return InputRequired(long, {"type": "object"})

    async def breaks(call: ToolCall, context: ToolContext, following: Any) -> ToolResult:
        raise ToolError(long)

    around = [breaks] if kind == "middleware" else []
    runner = Runner([asking], secrets=SECRETS, approve=lambda call, asked, context: ask(""), around=around)
    error = str((await runner.run("asking", {})).error)
    assert "xxx" in error and TOKEN[:3] not in error


def test_what_a_handler_asks_by_a_schema_is_shown_told_and_kept_without_what_is_known_to_be_secret() -> None:
    schema = {"type": "object", "description": TOKEN, "properties": {"code": {"type": "string", "title": TOKEN}}}
    shown: list[Any] = []

    @tool
    async def asking(kind: str, context: ToolContext) -> Any:
        wanted = InputRequired(f"the code for {TOKEN}", schema)
        return wanted if kind == "returned" else str(await context.ask(wanted))

    def approve(call: ToolCall, asked: Any, context: ToolContext) -> Any:
        shown.append((asked.reason, asked.schema))
        return ask("")

    events: list[Any] = []
    runner = Runner([asking], secrets=SECRETS, approve=approve, observers=[lambda event: events.append(event.data)])
    results = [asyncio.run(runner.run("asking", {"kind": kind})) for kind in ("returned", "asked")]
    told = str((shown, events, results[0].record(), results[0].pending))
    assert len(shown) == 2 and STARS in told and TOKEN not in told


def test_no_secret_changes_what_is_enforced_of_an_answer() -> None:
    schema = {"type": "object", "properties": {"account": {"type": "string", "pattern": "^acme-[0-9]+$"}}}

    @tool
    async def asking(context: ToolContext) -> Any:
        return InputRequired("which?", schema) if context.answer is None else dict(context.answer.value)

    def asked(given: str) -> ToolResult:
        approve = lambda call, asked, context: allow({"account": given})  # noqa: E731
        secrets = {"a": "pattern", "b": "string", "c": "acme"}
        return asyncio.run(Runner([asking], secrets=secrets, approve=approve).run("asking", {}))

    assert asked("; drop table").status == "denied"
    assert asked("acme-7").output == {"account": "acme-7"}


async def test_no_secret_changes_what_may_be_chosen() -> None:
    choice = {"title": "project-47110815", "id": 1}

    @tool
    async def asking(context: ToolContext) -> Any:
        schema = {"type": "object", "properties": {"pick": {"enum": [choice]}}, "required": ["pick"]}
        return InputRequired("which?", schema) if context.answer is None else context.answer.value["pick"]["title"]

    approve = lambda call, asked, context: allow({"pick": choice})  # noqa: E731
    runner = Runner([asking], secrets={"k": "47110815"}, approve=approve)
    assert (await runner.run("asking", {})).output == "project-47110815"


@pytest.mark.parametrize("kind", ["ask", "deny"])
async def test_only_a_decision_that_allows_has_arguments(kind: Any) -> None:
    guards = [lambda call, context: Decision(kind, "no", arguments={"kind": TOKEN})]
    runner = Runner([raising.bind(api_key=KEY)], guards=guards)
    assert (await runner.decide(ToolCall("", "raising", {"kind": "x"}))).arguments is None


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


async def test_what_decide_and_explain_give_holds_nothing_that_is_bound_or_private() -> None:
    refusing = Toolset([Tool("act", Refusing)]).bind(api=TOKEN)
    runner = Runner(refusing, guards=[lambda call, context: allow({**call.arguments, "amount": 2})])
    calls = [ToolCall("", "act", {"amount": amount}) for amount in (1, 9)]

    async def main() -> list[Any]:
        return [[await runner.decide(call), *await runner.explain(call)] for call in calls]

    allowed, denied = await main()
    assert [one.arguments["api"] for one in allowed] == [STARS, STARS]
    assert [one.kind for one in denied] == ["deny", "deny"] and STARS in denied[0].reason
    assert TOKEN not in str((allowed, denied))


async def test_what_a_guard_gives_for_a_private_parameter_is_not_in_the_log_where_it_is_refused(caplog: Any) -> None:
    private = Tool("act", Refusing, private=("api",))
    guards = [lambda call, context: allow({"api": TOKEN, "amount": 9})]
    result = await Runner([private], guards=guards).run("act", {})
    assert result.status == "denied" and STARS in caplog.text and TOKEN not in caplog.text + str(result.error)


async def test_the_log_of_a_tool_holds_nothing_that_is_bound_in_one_that_it_called(caplog: Any) -> None:
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


async def test_an_address_with_a_password_is_known_to_be_secret() -> None:
    address = PostgresDsn("postgresql://app:hushhush@db.example/main")

    @tool
    async def fails() -> None:
        raise ToolError(f"cannot reach {address}")

    error = str((await Runner([fails], secrets={"db": address}).run("fails", {})).error)
    assert STARS in error and "hushhush" not in error


async def test_no_half_of_a_secret_is_left_of_what_a_handler_says_of_its_progress() -> None:
    @tool
    async def works(context: ToolContext) -> None:
        context.progress(1, 2, "-" * 490 + TOKEN * 3)

    events: list[Any] = []
    runner = Runner([works], secrets=SECRETS, observers=[lambda event: events.append(event.data)])
    assert (await runner.run("works", {})).success
    said = [data["message"] for data in events if "message" in data]
    assert [len(text) for text in said] == [500] and TOKEN[:3] not in str(said)


@pytest.mark.parametrize(
    "secret", ["correct horse battery", "a/b c+d", 'Gänse "füße" sind süß', "line\none and two", "p%5Cass%255cword"]
)
@pytest.mark.parametrize(
    "write",
    [
        lambda text: urlencode({"q": text}),
        lambda text: "https://x.example/" + quote(text),
        lambda text: re.sub("%..", lambda found: found[0].lower(), quote(text, safe="")),
        lambda text: re.sub("%..", lambda found: found[0].lower(), quote_plus(text)),
        lambda text: json.dumps({"q": text}, ensure_ascii=False),
        lambda text: json.dumps({"q": text}),
        lambda text: json.dumps({"q": json.dumps({"q": text})}),
        lambda text: text.encode(),
        repr,
    ],
)
async def test_a_secret_is_stars_as_urls_and_json_write_it(secret: str, write: Any) -> None:
    @tool
    async def fails() -> None:
        raise ToolError(f"no answer from {write(secret)}")

    error = str((await Runner([fails], secrets={"password": secret}).run("fails", {})).error)
    assert STARS in error and secret.split()[0][-4:] not in error and secret.split()[-1] not in error


async def test_what_a_handler_returns_is_its_own() -> None:
    @tool
    async def echo(context: ToolContext) -> str:
        return str(context.secrets["token"])

    assert (await Runner([echo], secrets={"token": TOKEN}).run("echo", {})).text == TOKEN


async def test_the_log_keeps_the_exception_where_nothing_is_secret(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def fails() -> None:
        raise ZeroDivisionError("by zero")

    await Runner([fails]).run("fails", {})
    assert [record.exc_info is not None for record in caplog.records] == [True]
