"""What a model's API may fetch by itself: what a developer said, and nothing that anybody else gave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel

from ferrule import Media, Runner, Text, Tool, ToolCall, ToolResult, tool
from ferrule.middleware import untrusted
from ferrule.providers import NAMES

KINDS = get_args(get_type_hints(Media)["kind"])
TYPES = ("image/png", "application/pdf", "video/mp4", "audio/wav", "application/msword", "text/plain", "x/y")
PLACE = "somewhere.example/x"
ADDRESSES = [
    *(f"{scheme}{PLACE}" for scheme in ("https://", "http://", "s3://", "gs://", "file:///", "ftp://", "data:,", "")),
    f"HTTPS://{PLACE}",
    f"https://{PLACE}\n\nhttps://{PLACE}",
]
APIS = [(name, data) for name in NAMES for data in ([None, {"type": "function_call"}] if name == "gemini" else [None])]
FETCHED = {
    "anthropic": {"https", "http"},
    "bedrock": set(),
    "cohere": set(),
    "gemini": {"https", "http", "gs"},
    "gemini function_call": {"https", "http"},
    "mistral": {"https", "http"},
    "ollama": set(),
    "openai_chat": set(),
    "openai_responses": {"https", "http"},
}
"""The schemes that each API resolves in a tool's result."""


def named(name: str, data: Any) -> str:
    return name if data is None else f"{name} {data['type']}"


def every_media(fetch: bool) -> list[Media]:
    return [
        Media(kind, None, mime_type, address, "x", fetch=fetch)
        for kind in KINDS
        for mime_type in TYPES
        for address in ADDRESSES
    ]


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_in(item)


def references(name: str, data: Any, content: list[Any], error: str | None = None) -> set[str]:
    """The texts with the address, and no words about it, in what the provider sends."""
    call = ToolCall("call_1", "look", {}, data=data)
    given = ToolResult(None, error, content=content, call=call, tool_name="look", status="failed" if error else "ok")
    sent = import_module(f"ferrule.providers.{name}").results([given])
    json.dumps(sent, default=repr)
    return {text for text in texts_in(sent) if PLACE in text and "it cannot be shown" not in text}


@pytest.mark.parametrize(("name", "data"), APIS, ids=[named(*api) for api in APIS])
def test_no_address_is_sent_that_nobody_allowed(name: str, data: Any) -> None:
    for media in every_media(fetch=False):
        assert references(name, data, [media]) == set(), media
        assert references(name, data, [Text("See:"), media, Text("{}")]) == set(), media
        assert references(name, data, [Text("no"), media], error="no") == set(), media


@pytest.mark.parametrize(("name", "data"), APIS, ids=[named(*api) for api in APIS])
def test_an_allowed_address_is_sent_if_the_api_takes_its_scheme(name: str, data: Any) -> None:
    found = {text for media in every_media(fetch=True) for text in references(name, data, [media])}
    assert {text.partition(":")[0] for text in found} == FETCHED[named(name, data)]


def test_only_true_allows_an_address() -> None:
    for fetch in (None, 1, "true"):
        with pytest.raises(TypeError, match="fetch of Media is True or False"):
            Media("image", None, "image/png", "https://a.example/x.png", fetch=fetch)


def test_words_about_media_are_bounded_and_on_one_line() -> None:
    media = Media("image", None, "image/png", "s3://bucket/\n" + "x" * 100_000, "\n" * 100_000)
    [message] = import_module("ferrule.providers.anthropic").results(
        [ToolResult(content=[media], call=ToolCall("c", "look", {}), status="ok")]
    )
    text = message["content"][0]["content"][0]["text"]
    assert len(text) < 5_000 and "\n" not in text and "s3://bucket/" in text


BY_HAND = Media("image", None, "image/png", "s3://bucket/secret.png", fetch=True)


@tool(read_only=True)
async def look() -> list[Media]:
    """Look."""
    return [BY_HAND]


@tool(read_only=True)
async def fail() -> ToolResult:
    """Fail."""
    return ToolResult(error="no", content=[Text("no"), BY_HAND])


async def fetches(of: Tool, **options: Any) -> list[bool]:
    result = await Runner([of], **options).run(of.name, {})
    return [block.fetch for block in result.content if isinstance(block, Media)]


@pytest.mark.parametrize("of", [look, fail], ids=lambda of: of.name)
async def test_a_tool_may_allow_an_address_and_untrusted_undoes_it(of: Tool) -> None:
    assert await fetches(of) == [True]
    assert await fetches(of, around=[untrusted]) == [False]


def test_no_data_can_allow_an_address() -> None:
    class Page(BaseModel):
        media: list[Media]

    @tool(read_only=True)
    def show(picture: Media) -> Page:
        return Page(media=[picture, Media("image", None, "image/png", "https://x.example", fetch=True)])

    runner = Runner([show])
    picture = {"kind": "image", "data": None, "mime_type": "image/png", "uri": "s3://accounts/all"}
    assert "'picture.fetch'" in str(runner.run_sync("show", {"picture": {**picture, "fetch": True}}).error)
    assert runner.run_sync("show", {"picture": picture}).success
    with pytest.raises(ValueError, match="fetch"):
        Page.model_validate({"media": [{**picture, "fetch": True}]})
