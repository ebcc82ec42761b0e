"""A stored result is restored unchanged, and no secret in it is written."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, Literal
from urllib.parse import quote, quote_plus, unquote
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AnyUrl, BaseModel, SecretStr

from ferrule import Journal, Media, Runner, Text, ToolCall, ToolContext, ToolError, ToolResult, tool
from ferrule.executors.process.transfer import pack, unpack
from ferrule.journal import memory
from ferrule.testing import cassette
from ferrule.types import Middleware
from ferrule.values.journal_entry import outcome_from_result, result_from_outcome

SECRET = 's3cr3t/"val"=9\u00e9f8e7d'
PLAIN_SECRET = "plain-secret-0123"
NUMBER = 471100224711

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
any_texts = st.text(st.characters(categories=["Cs", "Ll"]), max_size=8)
"""With lone surrogates, which UTF-8 cannot hold."""
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
media = st.builds(
    Media,
    st.sampled_from(["image", "audio", "file"]),
    st.binary(max_size=8),
    st.just("image/png"),
    uri=st.none() | texts,
    name=st.none() | texts,
)
blocks = st.builds(Text, texts) | media
outputs = json_values | st.binary(max_size=8) | blocks | st.lists(blocks, min_size=1, max_size=3)
results = st.builds(
    ToolResult,
    outputs,
    st.none() | texts.filter(bool),
    st.dictionaries(texts, json_values, max_size=2),
    st.none() | st.lists(blocks, max_size=3),
    executed=st.sampled_from([True, False, None]),
    retryable=st.sampled_from([True, False, None]),
)


def parts(result: ToolResult) -> tuple[Any, ...]:
    metadata = {name: value for name, value in result.metadata.items() if name not in ("cassette", "replayed")}
    return result.status, result.output, result.error, result.content, result.retryable, metadata


@given(results)
def test_a_stored_result_is_restored_as_it_was(result: ToolResult) -> None:
    written = json.loads(json.dumps(outcome_from_result(result)))
    again = result_from_outcome(written, ToolCall("1", "act"), "act")
    assert (parts(again), again.executed) == (parts(result), result.executed)


@given(results)
def test_a_result_survives_packing_and_copying(result: ToolResult) -> None:
    for again in (unpack(pack(result, "json"), "json"), unpack(pack(result, "pickle"), "pickle"), result.replace()):
        assert isinstance(again, ToolResult) and again.executed is result.executed
        assert again.record()["retryable"] is result.retryable


def run_twice(given: object, behind: Iterable[Middleware] = (), **options: Any) -> tuple[ToolResult, ToolResult, str]:
    """Return the result that a cassette recorded, with middleware behind it, the one that it replayed, and its file."""

    @tool(read_only=True)
    async def act() -> object:
        """Act."""
        if isinstance(given, Exception):
            raise given
        return given

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "calls.json")

        def run(mode: Literal["record", "replay"]) -> ToolResult:
            with cassette(path, mode) as taped:
                return Runner([act], inside=[taped, *behind], **options).run_sync("act", {})

        return run("record"), run("replay"), path.read_text(encoding="utf-8", errors="surrogatepass")


raw = any_texts | st.builds(ToolResult, any_texts, metadata=st.dictionaries(any_texts | st.just("cassette"), any_texts))


@given(results | raw | any_texts.map(ToolError))
def test_a_cassette_replays_recorded_results(given: Any) -> None:
    recorded, replayed, _ = run_twice(given)
    assert parts(replayed) == parts(recorded)
    assert replayed.metadata["cassette"] == recorded.metadata.get("cassette", "replayed")


@given(st.dictionaries(any_texts, any_texts | json_values | st.decimals() | st.tuples(any_texts), max_size=2))
def test_a_journal_replays_middleware_metadata(added: dict[str, Any]) -> None:
    @tool
    async def act() -> str:
        """Act."""
        return "done"

    async def adds(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        return (await next(call, context)).replace(metadata=added)

    async def main() -> list[ToolResult]:
        runner = Runner([act], journal=memory(), inside=[adds])
        return [await runner.run(ToolCall("1", "act", {}), ToolContext(session="s")) for _ in range(2)]

    first, again = asyncio.run(main())
    assert parts(again) == parts(first) and again.metadata["replayed"] is True


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


WAYS: list[Callable[[str], Any]] = [
    lambda secret: secret,
    lambda secret: {"key": [secret, {secret: 1}]},
    lambda secret: json.dumps({"key": secret}, ensure_ascii=False),
    lambda secret: Text(f"token={secret}"),
    lambda secret: Media("file", f"token={secret}".encode(), "text/plain", name=f"{secret}.txt"),
    lambda secret: [Text("a"), Media("image", secret.encode(), "image/png", uri=f"file:///{secret}")],
    lambda secret: f"data:text/plain;base64,{encoded(f'x{secret}y')}",
    lambda secret: {"mail": json.dumps(base64.encodebytes(f"{'x' * 50}{secret}".encode()).decode())},
    lambda secret: secret.encode().hex(),
    lambda secret: Media("file", f"x{secret}".encode("utf-16-be"), "text/plain"),
    lambda secret: {"command": base64.b64encode(f"x{secret}".encode("utf-16-le")).decode()},
    lambda secret: base64.urlsafe_b64encode(f"??>{secret}".encode()).decode(),
    lambda secret: Media("file", b"x", f"text/plain; token={secret}" if secret.isascii() else "text/plain"),
    lambda secret: quote(base64.encodebytes(f"{'>' * 50}{secret}".encode())),
    lambda secret: json.dumps(encoded(f"?>{secret}?>")).replace("+", "\\u002b"),
    lambda secret: ToolResult("ok", metadata={"by": secret}, content=[Text(secret)]),
    lambda secret: ToolError(f"no: {secret} {encoded(secret)}"),
]


def go_json(text: str) -> str:
    return json.dumps(text).translate({ord(char): f"\\u{ord(char):04x}" for char in "&<>"})


def markdown(text: str) -> str:
    return text.replace("_", "\\_")


ESCAPES: list[Callable[[str], str]] = [json.dumps, go_json, repr, quote, quote_plus, html.escape]
ESCAPES += [lambda text: json.dumps(text, ensure_ascii=False), lambda text: quote(text, safe="")]
any_secrets = st.text(st.sampled_from("ab7_.-~/\\\"'&<> +%;\n\t\x00\x85\xe9\u65e5\U0001f600"), min_size=4, max_size=9)


@given(any_secrets, st.lists(st.sampled_from(ESCAPES), max_size=3), st.sampled_from([str, markdown]))
def test_an_escaped_secret_is_masked(
    secret: str, escapes: list[Callable[[str], str]], last: Callable[[str], str]
) -> None:
    secret = written = f"k1{secret}2k"
    for escape in escapes:
        written = escape(written)

    @tool(read_only=True)
    async def act() -> str:
        """Act."""
        raise ToolError(f"x{last(written)}x")

    text = Runner([act], secrets={"key": secret}).run_sync("act", {}).error
    assert text is not None and text.count("***") and not re.search("k1|2k", text), text


def leaks(written: str, secret: str) -> bool:
    """Whether the secret stands in a JSON text, in any form or base64 of it."""
    written += re.sub(r"\\+u002b", "+", unquote(written))
    if secret in written or json.dumps(secret)[1:-1] in written or json.dumps(json.dumps(secret))[2:-2] in written:
        return True
    unbroken = re.sub(r"\s|\\+[nr]", "", written)
    runs = [
        *base64_runs(written),
        *base64_runs(unbroken),
        *map(bytes.fromhex, re.findall("(?:[0-9a-fA-F]{2})+", unbroken)),
    ]
    encodings = ("utf-8", "utf-16-le", "utf-16-be")
    return any(secret.encode(encoding) in decoded for decoded in runs for encoding in encodings)


def base64_runs(text: str) -> list[bytes]:
    found, run = [], ""
    for character in f"{text}\n":
        if character.isascii() and (character.isalnum() or character in "+/-_"):
            run += character
            continue
        run = run.replace("-", "+").replace("_", "/")
        for start in range(min(4, len(run))):
            part = run[start : start + (len(run) - start) // 4 * 4]
            rest = run[start + len(part) :]
            found.append(base64.b64decode(part + (rest + "=" * (4 - len(rest)) if len(rest) > 1 else "")))
        run = ""
    return found


def test_a_secret_in_a_definition_is_written_nowhere() -> None:
    secret = PLAIN_SECRET

    def act(user: str = secret, level: Literal["low", "plain-secret-0123"] = "low") -> str:
        return "done"

    tools = [tool(act, description=f"Signs in with {secret}.", examples=[{"user": f"x{secret}"}])]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "calls.json")
        for mode in "record", "strict":
            with cassette(path, mode) as taped:
                assert Runner(tools, inside=[taped], secrets={"key": secret}).run_sync("act", {}).output == "done"
        assert secret not in path.read_text("utf-8") and "Signs in with ***" in path.read_text("utf-8")
        taped = cassette(path)
        changed = tool(act, description=f"Signs up with {secret}.")
        Runner([changed], inside=[taped], secrets={"key": secret}).run_sync("act", {})
        assert "Signs up with ***" in taped.misses[0] and secret not in taped.misses[0]


@pytest.mark.parametrize(
    ("secret", "number"),
    [("00471147", 471147), ("+471147471147", 471147471147), (b"0471147.50", 471147.5), ("4711.00", 4711)],
)
def test_a_secret_as_a_number_is_masked(secret: Any, number: float) -> None:
    _, replayed, written = run_twice({"number": number, "text": f"is {number}", "count": 5}, secrets={"key": secret})
    assert str(number) not in written and replayed.output["count"] == 5


def test_a_secret_is_written_nowhere_in_a_cassette() -> None:
    for way in WAYS:
        for secret in SECRET, PLAIN_SECRET:
            _, replayed, written = run_twice(way(secret), secrets={"key": secret})
            assert not leaks(written, secret), written
            assert replayed.content, "the file can be read"
    _, _, written = run_twice(ToolResult({"account": NUMBER, "also": float(NUMBER)}), secrets={"key": str(NUMBER)})
    assert str(NUMBER) not in written


@pytest.mark.parametrize("secret", [bytearray(b"\xff\xfebinary secret"), 12345.678901, b"\xacsecret bytes\xe2"])
def test_a_secret_of_any_type_is_written_nowhere(secret: Any) -> None:
    data = bytes(secret) if isinstance(secret, bytes | bytearray) else str(secret).encode()
    data = b"\xe2\x82" + data + b"\x82\xac"  # with the ends of the bytes they make characters
    values = {"text": str(secret), "number": secret if isinstance(secret, float) else 0, "hex": data.hex()}
    _, replayed, written = run_twice(
        ToolResult(values, content=[Media("file", data, "text/plain")]), secrets={"k": secret}
    )
    assert str(secret) not in written or isinstance(secret, bytes | bytearray)
    assert base64.b64encode(data).decode() not in written and replayed.content[0] != Media("file", data, "text/plain")


@dataclass
class Login:
    user: str
    others: tuple[object, ...] = ()


class Account(BaseModel, extra="allow"):
    password: SecretStr
    _token: str = "private-token"


class Level(Enum):
    TOP = "enum-secret-01"


class Pin(int, Enum):
    HOME = 4711471147


def test_secrets_inside_of_other_objects_are_found() -> None:
    account = Account.model_validate({"password": "model-secret-1", "more": "extra-secret-1"})
    login = Login("field-secret-1", (PurePath("/path/secret-1"), Level.TOP, Pin.HOME, memoryview(b"bytes-secret-1")))
    secrets = ["model-secret-1", "extra-secret-1", "private-token", "field-secret-1", "/path/secret-1"]
    secrets += ["enum-secret-01", "4711471147", "bytes-secret-1"]
    text = f"password, user, TOP: {', '.join(secrets)}"
    _, _, written = run_twice(text, secrets={"login": login, "account": [account]})
    assert not any(secret in written for secret in secrets) and "password, user, TOP: " in written


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        (UUID(int=2**100), UUID(int=2**100).hex),
        (b"kqzx12\n", "kqzx12"),
        ("Bearer header-secret-1", "header-secret-1"),
        ("postgres://app:pass%40word-1@db/shop", "pass@word-1"),
        (AnyUrl("https://app:pass%40word-1@shop.example"), "https://app:pass%40word-1@shop.example"),
    ],
)
def test_secret_parts_of_a_secret_are_found(secret: Any, shown: str) -> None:
    _, _, written = run_twice(f"<{shown}>", secrets={"k": secret})
    assert shown not in written and "***" in written


def test_common_text_is_no_secret() -> None:
    text = json.dumps({"a": {"b": {"c": {}}}}, indent=4) + f"\n{'-' * 20}\n{'#' * 20}\n    "
    secret = f"user: me\n{text}\n{' ' * 12}"
    recorded, replayed, _ = run_twice(text, secrets={"file": secret, "indent": " " * 4, "blanks": b"\n" * 9})
    assert replayed.output == recorded.output == text
    recorded, replayed, _ = run_twice(ToolResult([10**400, 2**1024, 1e308]), secrets={"key": SECRET})
    assert replayed.output == recorded.output == [10**400, 2**1024, 1e308]


@pytest.mark.parametrize(
    "given",
    [
        PurePath("/home", PLAIN_SECRET),
        [Login(PLAIN_SECRET, (Level.TOP,))],
        {"account": Account.model_validate({"password": "p", "more": PLAIN_SECRET})},
        {"error": ValueError(PLAIN_SECRET)},
        10**5_000,
    ],
    ids=lambda given: type(given).__name__,
)
@pytest.mark.parametrize("place", ["output", "metadata"])
def test_middleware_results_are_stored_without_secrets(place: str, given: Any) -> None:
    async def gives(call: ToolCall, context: ToolContext, next: Any) -> ToolResult:
        changes = {"output": given} if place == "output" else {"metadata": {"given": given}}
        return (await next(call, context)).replace(**changes)

    _, replayed, written = run_twice("done", [gives], secrets={"key": PLAIN_SECRET})
    assert not leaks(written, PLAIN_SECRET) and PLAIN_SECRET not in f"{replayed.output}{replayed.metadata}"
    recorded, replayed, _ = run_twice("done", [gives])
    assert parts(replayed) == parts(recorded)


@pytest.mark.parametrize("error", ["no {}", None])
@pytest.mark.parametrize("secret", [SECRET, PLAIN_SECRET])
async def test_a_failed_result_leaks_no_secret(secret: str, error: str | None, tmp_path: Path) -> None:
    seen: list[ToolResult] = []

    @tool
    async def act() -> object:
        """Act."""
        content = [Text(secret), Media("file", secret.encode(), "text/plain")]
        output = {"by": [secret, encoded(secret)]}
        return ToolResult(output, error and error.format(secret), {"by": secret}, content, status="failed")

    journal = Journal.open(tmp_path / "calls.db")
    observers = [lambda event: seen.append(event.data["result"]) if "result" in event.data else None]
    async with Runner([act], journal=journal, observers=observers, secrets={"key": secret}) as runner:
        result, again = [await runner.run(ToolCall("1", "act", {}), session="s") for _ in range(2)]
    journal.close()
    assert parts(again) == parts(result) and len(seen) == 2
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir()).decode("utf-8", "replace")
    told = [json.dumps([one.record(), outcome_from_result(one)]) for one in (result, *seen)]
    assert [text for text in (written, *told) if leaks(text, secret)] == []
