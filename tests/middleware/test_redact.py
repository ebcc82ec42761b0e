"""`redact` masks every credential in a result, and nothing else."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ferrule import (
    DefinitionError,
    Event,
    Journal,
    Media,
    Runner,
    Text,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResult,
    Toolset,
    tool,
)
from ferrule.approval import later
from ferrule.journal import events, memory
from ferrule.middleware import limit_output, redact, sanitize, trace
from ferrule.security.masking import mask_certain_credentials
from ferrule.testing import cassette
from products import sampled

RANDOM = "aB3dE5gH7jK9mN1pQ2sT4vW6xY8zA0cD"
"""Where a credential has it, it is this that must not leave."""
CREDENTIALS = [
    *(f"AKIA{RANDOM.upper()[:16]}", f"sk-{RANDOM}", f"sk-proj-ab_{RANDOM}", f"sk-ant-api03-{RANDOM}-_x"),
    f"ghp_{RANDOM}",
    *(f"github_pat_11AB_{RANDOM}", f"gho_{RANDOM}", f"glpat-{RANDOM}", f"xoxb-12-34-{RANDOM}", f"xapp-1-{RANDOM}"),
    *(f"AIza{RANDOM}-_x", f"sk_live_{RANDOM}", f"rk_test_{RANDOM}", f"whsec_{RANDOM}", f"hf_{RANDOM}", f"npm_{RANDOM}"),
    *(f"https://hooks.slack.com/services/T00/B00/{RANDOM}", f"ya29.{RANDOM}", f"SG.{RANDOM}.{RANDOM}", f"gsk_{RANDOM}"),
    *(f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{RANDOM}", f"postgres://u:{RANDOM}@h/db", f"https://{RANDOM}@h/x.git"),
    *(f"Authorization: Basic {RANDOM}==", f"curl -H 'authorization: Bearer {RANDOM}'", f"Bearer {RANDOM}"),
    *(f"export DB_PASSWORD={RANDOM}", f"API_KEY='{RANDOM}'", f"a=1\nTOKEN={RANDOM}\nb=2"),
    f"aws_secret_access_key = {RANDOM}",
    *(f'"client_secret": "{RANDOM}"', f"password: {RANDOM}", f"?access_token={RANDOM}&a=1"),
    f"-----BEGIN RSA PRIVATE KEY-----\n{RANDOM}\n-----END RSA PRIVATE KEY-----",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{RANDOM}",
]  # fmt: skip


def secret_of(credential: str) -> str:
    return RANDOM if RANDOM in credential else credential


def redacted(output: Any, *outside: Any) -> ToolResult:
    @tool(read_only=True)
    def fetch() -> Any:
        if isinstance(output, Exception):
            raise output
        return output

    return asyncio.run(Runner([fetch], around=[*outside, redact()]).run("fetch"))


def redacted_stream(*pieces: str) -> ToolResult:
    @tool(read_only=True)
    async def stream() -> AsyncIterator[str]:
        for piece in pieces:
            yield piece

    return asyncio.run(Runner([stream], around=[redact()]).run("stream"))


@pytest.mark.parametrize("credential", CREDENTIALS)
async def test_a_credential_is_masked_everywhere(credential: str, tmp_path: Path) -> None:
    secret = secret_of(credential)

    @tool(read_only=True)
    async def fetch(kind: str) -> Any:
        if kind == "error":
            raise ToolError(f"no: {credential}")
        if kind == "exposed":
            raise LookupError(f"no: {credential}")
        given = {
            "text": f"it is\n{credential}\nthere",
            "nested": {"a": [{"b": credential}]},
            "key": {credential: 1},
            "json": json.dumps({"k": credential, "n": 1}),
            "bytes": credential.encode(),
            "result": ToolResult(f"{credential}", metadata={"m": credential}, content=[Text(credential)]),
            "base64": b64encode(credential.encode()).decode(),
            "base64 of a URL": urlsafe_b64encode(f"x {credential}".encode()).decode().rstrip("="),
        }
        return given[kind]

    kinds = ("text", "nested", "key", "json", "bytes", "result", "error", "exposed", "base64", "base64 of a URL")
    file = tmp_path / "log"
    with events.to_file(file, include=["output", "error", "metadata"]) as log:
        runner = Runner([fetch], around=[redact()], observers=[log])
        for kind in kinds:
            result = await runner.run("fetch", {"kind": kind})
            told = (result.text, result.error, result.output, result.record(), repr(result), result.metadata)
            assert secret not in str(told) and "***" in str(told), kind
            if kind.startswith("base64"):
                assert result.text == "***"
            if kind == "json":
                json.loads(result.text)
    assert secret not in file.read_text()


@pytest.mark.parametrize("credential", [one for one in CREDENTIALS if "/" in one])
def test_escaped_slashes_hide_no_credential(credential: str) -> None:
    text = json.dumps([{"a": credential, "b": "a/b"}]).replace("/", r"\/")
    shown = redacted(text).text
    assert secret_of(credential) not in shown and json.loads(shown)[0]["b"] == "a/b"


@pytest.mark.parametrize("credential", sampled(CREDENTIALS, one_in=3))
def test_a_split_credential_is_masked(credential: str) -> None:
    secret = secret_of(credential)
    for place in range(1, len(credential)):
        result = redacted_stream(credential[:place], credential[place:])
        assert secret not in result.text + str(result.record())
    half = len(credential) // 2
    blocks = redacted([Text(credential[:half]), Text(credential[half:])])
    assert secret not in "".join(block.text for block in blocks.content if isinstance(block, Text))


@pytest.mark.parametrize("order", [[redact(), sanitize()], [sanitize(), redact()]])
async def test_invisible_characters_hide_no_credential(order: list[Any]) -> None:
    @tool(read_only=True)
    def fetch() -> str:
        return f"sk-\u200bproj-{RANDOM[:8]}\u2060{RANDOM[8:]}"

    assert (await Runner([fetch], around=order).run("fetch")).text == "***"


@pytest.mark.parametrize(
    "text",
    [
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "sk-circle-fade-dot sk-learn risk-management task_manager",
        "https://example.org:80/a?mail=bob@example.org and ssh://git@github.com/a/b",
        '{"a": "http://x.test:8080", "mail": "bob@example.org"}',
        "token = tokens[i2]; password = get_password2(); secret: str = Field(); api_key=os.environ['KEY2']",
        "TOKEN=$(cat x)\nPWD=/home/x1\nMAX_TOKENS=3000\nSORT_KEY=name\nKEYBOARD=us",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        "The bearer of authentication-schemes. A secret: nobody knows. authorization: see page 3",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert redacted(text).text == redacted(text).output == text
    assert redacted({text: [text]}).output == {text: [text]}


def test_a_number_is_masked() -> None:
    result = redacted({"card": 4111111111111111, "of": [4111111111111111.0, 4111111111111112, 1.5, True]})
    assert result.output == {"card": "***", "of": ["***", 4111111111111112, 1.5, True]}
    assert "4111111111111111" not in result.text


@pytest.mark.parametrize(
    ("data", "mime_type"),
    [
        (b"\xfc sk-%b", "text/plain"),
        (b"<a>sk-%b</a>", "application/xml"),
        ("sk-%s".encode("utf-16").replace(b"%\x00s\x00", b"%b"), "text/csv;charset=utf-16"),
        (b"x", "application/pdf;name=sk-%b"),
    ],
)
def test_media_that_a_model_reads_as_text_are_masked(data: bytes, mime_type: str) -> None:
    secret = RANDOM.encode("utf-16-le" if "utf-16" in mime_type else "utf-8")
    given = Media("file", data.replace(b"%b", secret), mime_type.replace("%b", RANDOM))
    [block] = redacted(given).content
    assert isinstance(block, Media) and RANDOM not in block.mime_type and secret not in (block.data or b"")


def test_bytes_that_are_no_text_stay() -> None:
    image = Media("image", b"\x89PNG\r\n sk-" + RANDOM.encode(), "image/png")
    assert redacted(image).content == (image,)


def test_a_value_is_masked_by_its_key() -> None:
    result = redacted({"password": "Tr0ub4dor33x", "of": [{"api_key": RANDOM, "name": RANDOM}], "DB_PASSWORD": "hush"})
    assert result.output == {"password": "***", "of": [{"api_key": "***", "name": RANDOM}], "DB_PASSWORD": "***"}
    assert json.loads(result.text) == result.output


def test_a_secret_of_any_length_is_found_under_its_name() -> None:
    for length in (9, 199, 200, 201, 5_000):
        assert redacted(f"api_key: {RANDOM * 200}"[: 9 + length]).text == "api_key: ***"


def test_a_secret_is_found_before_the_output_is_cut() -> None:
    text = redacted(f"{'x ' * 500}sk-proj-{RANDOM}{' x' * 500}", limit_output(1000)).text
    assert RANDOM[:8] not in text and RANDOM[-8:] not in text


async def test_one_object_redacts_every_place(tmp_path: Path) -> None:
    secret, mail = f"sk-proj-{RANDOM}", "ada@example.org"
    hide = redact(also=["email"])
    seen: list[Any] = []

    @tool
    async def stream(text: str) -> AsyncIterator[str]:
        for piece in (text[:9], text[9:], f"\nand {mail}", "\n"):
            yield piece
        raise LookupError(f"no {text} of {mail}")

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    inner = Journal.open(tmp_path / "calls.db")
    with (
        events.to_file(tmp_path / "log", include=["input", "output", "error"]) as log,
        cassette(tmp_path / "recorded.json", "record", redact=hide) as recorded,
    ):
        runner = Runner(
            [stream],
            around=[trace(content=True, redact=hide, tracer_provider=provider), hide],
            inside=[recorded],
            journal=hide.journal(inner),
            observers=[hide.events(log), hide.events(seen.append)],
        )
        result = await runner.run("stream", {"text": secret}, session="s")
    await inner.flush()
    inner.close()
    chunks = [event.data["chunk"] for event in seen if event.kind == "tool:progress"]
    assert "".join(chunks) == "***\nand ***\n" and seen[-1].data["exception"] is None
    told: list[Any] = [(result.text, result.output), exporter.get_finished_spans()[0].to_json()]
    told += [(event.call, dict(event.data), "result" in event.data and event.data["result"].record()) for event in seen]
    told += [file.read_bytes() for file in sorted(tmp_path.iterdir()) if file.is_file()]
    assert len(told) >= 10
    for place in told:
        assert RANDOM not in repr(place) and RANDOM[1:] not in repr(place) and mail not in repr(place)


async def test_the_secrets_of_a_call_leave_nowhere(tmp_path: Path) -> None:
    known, hide, seen, inner = "zebra-crossing-11", redact(), [], Journal.open(tmp_path / "calls.db")

    @tool(read_only=True)
    def look() -> str:
        return "nothing"

    @tool
    async def show(context: ToolContext) -> Any:
        await runner.run("look", {}, ToolContext(session="other"))
        key = context.secrets["key"]
        return ToolResult([{key: f"the key is {key}"}, b64encode(key.encode()).decode()], metadata={"by": key})

    runner = Runner([look, show], around=[hide], journal=hide.journal(inner), observers=[seen.append])
    calls = [ToolCall("1", "show", {}), ToolCall("1", "show", {}), ToolCall("2", "show", {})]
    context = ToolContext(session="s", secrets={"key": known})
    first, again, other = [await runner.run(call, context) for call in calls]
    bare = await runner.run("show", {}, ToolContext(secrets={"key": "another-word"}))
    await inner.flush()
    inner.close()
    assert again.is_replayed and "the key is ***" in first.text and "another-word" not in bare.text
    told: list[Any] = [(result.output, result.text, result.record()) for result in (first, again, other)]
    told += [event.data["result"].record() for event in seen if event.kind == "tool:post"]
    told += [file.read_bytes() for file in tmp_path.iterdir()]
    for place in told:
        assert known not in repr(place) and b64encode(known.encode()).decode() not in repr(place)
    assert hide.text(known) == known  # only within a call


@pytest.mark.parametrize("by_runner", [False, True])
async def test_events_and_journal_hide_the_secrets_of_a_call_in_its_arguments(by_runner: bool, tmp_path: Path) -> None:
    known, hide, seen, inner = "zebra-crossing-11", redact(), list[Event](), Journal.open(tmp_path / "calls.db")

    @tool
    def inside(text: str) -> str:
        return text

    @tool(background=True)
    def later_on(text: str) -> str:
        return text

    @tool
    async def note(text: str, context: ToolContext) -> str:
        context.progress(1, 2, text)
        await context.run("inside", {"text": text})
        return text

    secrets = {"key": known}
    runner = Runner(
        [note, inside, later_on],
        guards=[lambda call, context: None],
        journal=hide.journal(inner),
        observers=[hide.events(seen.append)],
        secrets=secrets if by_runner else None,
    )
    context = ToolContext(session="s", secrets=None if by_runner else secrets)
    async with runner:
        result = await runner.run("note", {"text": f"it is {known}"}, context)
        await runner.run("note", {"text": 5, "known": known}, context)
        await runner.run("later_on", {"text": known}, context)
        await runner.run("invented", {"text": known}, context)
    await inner.flush()
    inner.close()
    assert result.text == f"it is {known}"  # the caller has not chosen `around=[hide]`
    kinds = [event.kind for event in seen if event.call.name == "note"]
    assert kinds[:4] == ["tool:pre", "tool:decided", "tool:started", "tool:progress"] and kinds[-1] == "tool:error"
    told: list[Any] = [(event, event.call, dict(event.data)) for event in seen]
    told += [event.data["result"].record() for event in seen if "result" in event.data]
    told += [file.read_bytes() for file in tmp_path.iterdir()]
    assert "it is ***" in repr(told)
    for place in told:
        assert known not in repr(place)


async def test_a_recovered_call_hides_the_secrets_of_its_runner() -> None:
    known, hide, seen, inner = "zebra-crossing-11", redact(), list[Event](), memory()

    @tool(reconcile=lambda call, context: ToolResult(f"paid by {known}"))
    async def pay() -> None:
        started.set()
        await asyncio.Event().wait()

    started, observers = asyncio.Event(), [hide.events(seen.append)]
    runner = Runner([pay], journal=hide.journal(inner), observers=observers, secrets={"key": known})
    running = asyncio.create_task(runner.run(ToolCall("1", "pay", {}), session="s"))
    await started.wait()
    inner.cut_off()
    await runner.recover()
    again = await runner.run(ToolCall("1", "pay", {}), session="s")
    running.cancel()
    assert again.is_replayed and again.text == "paid by **********"
    assert [event.data["result"].text for event in seen if event.kind == "tool:post"] == [again.text] * 2


async def test_hidden_values_are_stars_in_results() -> None:
    hide, seen = redact(), list[Event]()

    @tool(private=("pin",))
    def show(key: str, pin: str = "") -> dict[str, str]:
        return {"key": f"the key is {key}", "pin": pin}

    @tool(read_only=True)
    async def ask_other(place: str, context: ToolContext) -> str:
        return str((await context.run("read", {"text": place})).output == place)

    @tool(read_only=True)
    def read(text: str) -> str:
        return text

    tools = [*Toolset([show]).bind(key="zebra-crossing-11"), *Toolset([ask_other]).bind(place="Utrecht"), read]

    def fill(call: ToolCall, context: ToolContext) -> Any:
        return {**call.arguments, "pin": "pin-0815"} if call.name == "show" else None

    observers, journal = [hide.events(seen.append)], hide.journal(memory())
    runner = Runner(tools, around=[hide], guards=[fill], observers=observers, journal=journal)
    call = ToolCall("1", "show", {})
    first, again = [await runner.run(call, session="s") for _ in range(2)]
    assert first.output == again.output == {"key": "the key is **********", "pin": "**********"} and again.is_replayed
    assert not any("zebra" in str(event.data["result"].record()) for event in seen if "result" in event.data)
    assert (await runner.run("ask_other")).text == "True"  # a handler gets the results of its own calls as they are


async def test_a_replayed_call_has_the_redacted_outcome_with_its_form() -> None:
    @tool
    def give(text: str) -> bytes:
        return text.encode()

    runner = Runner([give], journal=redact().journal(memory()))
    call = ToolCall("1", "give", {"text": f"a sk-proj-{RANDOM}"})
    first, again = [await runner.run(call, session="s") for _ in range(2)]
    assert again.is_replayed and (first.output, again.output) == (f"a sk-proj-{RANDOM}".encode(), b"a ***")


async def test_a_call_that_waits_can_be_resumed_from_a_redacted_journal() -> None:
    @tool(ask=True)
    def pay(key: str) -> str:
        return "paid"

    runner = Runner([pay], journal=redact().journal(memory()), approve=later)
    waiting = await runner.run("pay", {"key": f"sk-proj-{RANDOM}"}, session="s")
    assert (await runner.resume(waiting, True)).success


def test_detectors_are_chosen_by_name() -> None:
    text = f"ada@example.org CH93 0076 2011 6238 5295 7 E-4711 sk-proj-{RANDOM}"
    assert redact().text(text) == "ada@example.org *** E-4711 ***"
    chosen = redact(also=["email"], without=["iban", "openai"], patterns={"employee": r"E-\d+"})
    assert chosen.text(text) == f"*** CH93 0076 2011 6238 5295 7 *** sk-proj-{RANDOM}"
    assert [one.detector for one in chosen.find(text)] == ["email", "employee"]
    assert chosen.value({"a": [4111111111111111, "ada@example.org"]}) == {"a": ["**********", "***"]}
    for options in (
        {"also": ["mail"]},
        {"without": "x"},
        {"patterns": {"x": "("}},
        {"patterns": ["x"]},
        {"patterns": {"x": 1}},
    ):
        with pytest.raises(DefinitionError):
            redact(**options)


@pytest.mark.parametrize("wrong", ["calls.csv", redact(), trace(), None])
def test_events_and_journal_wrap_an_observer_and_a_journal_alone(wrong: Any) -> None:
    for wrap in (redact().events, redact().journal):
        with pytest.raises(DefinitionError):
            wrap(wrong)


def test_middleware_among_the_observers_says_how_to_observe() -> None:
    for middleware, remedy in ((trace(), "tracing.observe"), (redact(), "hide.events")):
        with pytest.raises(DefinitionError, match=remedy):
            Runner([], observers=[middleware])  # type: ignore[list-item]


@pytest.mark.parametrize("place", ["around", "inside"])
@pytest.mark.parametrize("middleware", [redact, sanitize])
def test_the_function_itself_is_no_middleware(middleware: Any, place: str) -> None:
    with pytest.raises(DefinitionError, match=f"each of {place}.*{middleware.__name__}"):
        Runner([tool(lambda: "", name="x", description="x")], **{place: [middleware]})


PIECES = ["A_", "eyJ", "a.", "://a:", "-----BEGIN ", "sk-proj-", "password=1", "\\n", "aB1+", "bearer a", '"export ']
PIECES += ["SECRET_", "SG.", "xoxb-", "AKIA", "KEY=", " ", "\n", "@", "PRIVATE KEY-----", "authorization: basic ", "'"]
PIECES += ["=password", "password=a1", "://[", "(", "{"]
SEVERAL = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)


@given(SEVERAL, SEVERAL)
def test_a_text_of_few_pieces_is_searched_to_its_end(pieces: str, end: str) -> None:
    # Whatever goes back once for each character takes minutes for this length.
    mask_certain_credentials(pieces * (100_000 // len(pieces)) + end)
