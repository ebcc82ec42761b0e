"""What users write between a provider module and the official SDK of its API, without a cast.

mypy and pyright must find nothing, both in strict mode. It is checked and never run.
What pyright is told to ignore is in google-genai's and ollama's own signatures: types of packages that are not
installed (Pillow, mcp), and a bare `Callable`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, assert_type

from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import MessageParam, ToolUnionParam
from cohere import AsyncClientV2, ClientV2
from google import genai
from google.genai.interactions import Interaction, StepParam
from google.genai.types import ContentDict
from mistralai.client import Mistral
from mistralai.client.models import ChatCompletionRequestMessageTypedDict
from ollama import AsyncClient, Client
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam, ToolParam

from ferrule import Runner, ToolCall, ToolResult, Toolset, allow, models
from ferrule.loop import LoopResult, resume, run
from ferrule.models import ContextTooLong, Message, Model, ModelError, Overloaded, RateLimited, Reply
from ferrule.providers import Stop, anthropic, bedrock, cohere, gemini, mistral, ollama, openai_chat, openai_responses


async def ask_anthropic(client: AsyncAnthropic, runner: Runner, question: str) -> Stop:
    """A turn, its results and the next turn."""
    messages: list[MessageParam] = [{"role": "user", "content": question}]
    reply = await client.messages.create(
        model="m",
        max_tokens=1_000,
        messages=messages,
        tools=anthropic.tools(runner.tools, strict=["add"], cache=True),
        **anthropic.tool_choice("required", parallel=False),
    )
    assert_type(anthropic.calls(reply), list[ToolCall])
    messages += anthropic.turn(reply)
    messages += anthropic.results(await runner.run_all(anthropic.calls(reply)))
    reply = await client.messages.create(model="m", max_tokens=1_000, messages=messages, **anthropic.state(reply))
    assert_type(anthropic.text(reply), str)
    assert_type(anthropic.reason(reply), str | None)
    return anthropic.stop(reply)


def stream_anthropic(client: Anthropic, runner: Runner, messages: list[MessageParam]) -> list[ToolCall]:
    """Both ways to stream, beside a tool of the API's own."""
    tools: list[ToolUnionParam] = [
        *anthropic.tools(runner.tools),
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    stream = anthropic.Stream()
    for event in client.messages.create(model="m", max_tokens=9, messages=messages, tools=tools, stream=True):
        stream.feed(event)
    messages += stream.turn()
    with client.messages.stream(model="m", max_tokens=9, messages=messages, tools=tools) as events:
        for parsed in events:
            stream.feed(parsed)
    assert_type((stream.stop, stream.reason, stream.error), tuple[Stop, str | None, str | None])
    assert_type(anthropic.text(stream.partial()), str)
    client.messages.create(model="m", max_tokens=9, messages=messages, tools=tools, **stream.state())
    return stream.calls()


async def ask_openai(client: AsyncOpenAI, runner: Runner, question: str) -> Stop:
    """The Responses API."""
    items: list[ResponseInputItemParam] = [{"role": "user", "content": question}]
    reply = await client.responses.create(
        model="m",
        input=items,
        tools=openai_responses.tools(runner.tools, deferred=("add",)),
        **openai_responses.tool_choice("auto", only=["add"]),
    )
    items += openai_responses.turn(reply)
    items += openai_responses.results(await runner.run_all(openai_responses.calls(reply)))
    return openai_responses.stop(reply)


def stream_openai(client: OpenAI, runner: Runner, items: list[ResponseInputItemParam]) -> str | None:
    """The Responses API, streamed."""
    stream = openai_responses.Stream()
    tools: list[ToolParam] = [*openai_responses.tools(runner.tools), {"type": "web_search"}]
    for event in client.responses.create(model="m", input=items, tools=tools, stream=True):
        stream.feed(event)
    items += stream.turn()
    with client.responses.stream(model="m", input=items, tools=openai_responses.tools(runner.tools)) as events:
        for parsed in events:
            stream.feed(parsed)
    return stream.reason


async def ask_openai_chat(client: AsyncOpenAI, runner: Runner, question: str) -> Stop:
    """Chat Completions."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    reply = await client.chat.completions.create(
        model="m",
        messages=messages,
        tools=openai_chat.tools(runner.tools),
        **openai_chat.tool_choice("add", parallel=False),
    )
    messages += openai_chat.turn(reply)
    messages += openai_chat.results(await runner.run_all(openai_chat.calls(reply)))
    read = openai_chat.with_text_calls(reply)
    assert_type(openai_chat.calls(read), list[ToolCall])
    messages += openai_chat.turn(read)
    return openai_chat.stop(reply)


def stream_openai_chat(client: OpenAI, runner: Runner, messages: list[ChatCompletionMessageParam]) -> None:
    """Chat Completions, streamed."""
    stream = openai_chat.Stream()
    for chunk in client.chat.completions.create(
        model="m", messages=messages, tools=openai_chat.tools(runner.tools), stream=True
    ):
        stream.feed(chunk)
    messages += openai_chat.turn(openai_chat.with_text_calls(stream.partial()))


async def ask_gemini(client: genai.Client, runner: Runner, question: str) -> Stop:
    """generateContent."""
    contents: list[ContentDict] = [{"role": "user", "parts": [{"text": question}]}]
    reply = await client.aio.models.generate_content(  # pyright: ignore[reportUnknownMemberType]
        model="m",
        contents=contents,
        config={"tools": gemini.tools(runner.tools), **gemini.tool_choice("required")},
    )
    contents += gemini.turn(reply)
    contents += gemini.results(await runner.run_all(gemini.calls(reply)))
    await client.aio.models.generate_content(  # pyright: ignore[reportUnknownMemberType]
        model="m", contents=contents, config={"tools": gemini.tools(runner.tools), **gemini.state(reply)}
    )
    return gemini.stop(reply)


def stream_gemini(client: genai.Client, runner: Runner, contents: list[ContentDict]) -> None:
    """generateContent, streamed and at once."""
    stream = gemini.Stream()
    for chunk in client.models.generate_content_stream(  # pyright: ignore[reportUnknownMemberType]
        model="m", contents=contents, config={"tools": gemini.tools(runner.tools)}
    ):
        stream.feed(chunk)
    contents += stream.turn()
    reply = client.models.generate_content(  # pyright: ignore[reportUnknownMemberType]
        model="m", contents=[*contents, *stream.turn()], config={"tools": gemini.tools(runner.tools)}
    )
    assert_type(gemini.turn(reply), list[ContentDict])


async def ask_interactions(client: genai.Client, runner: Runner, steps: list[StepParam]) -> Stop:
    """Interactions, at once and streamed."""
    reply = await client.aio.interactions.create(
        model="m",
        input=steps,
        tools=gemini.tools(runner.tools, api="interactions"),
        **gemini.tool_choice("auto", api="interactions"),
    )
    assert isinstance(reply, Interaction)  # the SDK gives it or a stream
    steps += gemini.turn(reply)
    steps += gemini.results(await runner.run_all(gemini.calls(reply)))
    stream = gemini.Stream()
    events = await client.aio.interactions.create(
        model="m", input=steps, tools=gemini.tools(runner.tools, api="interactions"), stream=True
    )
    assert not isinstance(events, Interaction)
    async for event in events:
        stream.feed(event)
    steps += stream.turn()
    assert_type((gemini.text(reply), gemini.reason(reply)), tuple[str, str | None])
    await client.aio.interactions.create(model="m", **gemini.state(reply))
    return gemini.stop(reply)


async def ask_mistral(client: Mistral, runner: Runner, question: str) -> Stop:
    """At once and streamed."""
    messages: list[ChatCompletionRequestMessageTypedDict] = [{"role": "user", "content": question}]
    reply = await client.chat.complete_async(
        model="m",
        messages=messages,
        tools=mistral.tools(runner.tools),
        **mistral.tool_choice("required", parallel=False),
    )
    messages += mistral.turn(reply)
    messages += mistral.results(await runner.run_all(mistral.calls(reply)))
    stream = mistral.Stream()
    for event in client.chat.stream(model="m", messages=messages, tools=mistral.tools(runner.tools)):
        stream.feed(event)
    messages += stream.turn()
    return mistral.stop(reply)


async def ask_cohere(client: AsyncClientV2, runner: Runner, messages: list[Any]) -> Stop:
    """Its client takes dicts; its types know its classes alone."""
    reply = await client.chat(
        model="m", messages=messages, tools=cohere.tools(runner.tools), **cohere.tool_choice("required")
    )
    messages += cohere.turn(reply)
    messages += cohere.results(await runner.run_all(cohere.calls(reply)))
    return cohere.stop(reply)


def stream_cohere(client: ClientV2, runner: Runner, messages: list[Any]) -> None:
    """Streamed."""
    stream = cohere.Stream()
    for event in client.chat_stream(model="m", messages=messages, tools=cohere.tools(runner.tools)):
        stream.feed(event)
    messages += stream.turn()


async def ask_ollama(client: AsyncClient, runner: Runner, question: str) -> Stop:
    """At once."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    reply = await client.chat(  # pyright: ignore[reportUnknownMemberType]
        model="m", messages=messages, tools=ollama.tools(runner.tools)
    )
    messages += ollama.turn(reply)
    messages += ollama.results(await runner.run_all(ollama.calls(reply)))
    assert_type(ollama.calls(ollama.with_text_calls(reply)), list[ToolCall])
    return ollama.stop(reply)


def stream_ollama(client: Client, runner: Runner, messages: list[dict[str, Any]]) -> None:
    """Streamed."""
    stream = ollama.Stream()
    for line in client.chat(  # pyright: ignore[reportUnknownMemberType]
        model="m", messages=messages, tools=ollama.tools(runner.tools), stream=True
    ):
        stream.feed(line)
    messages += stream.turn()


async def ask_bedrock(client: Any, runner: Runner, question: str) -> Stop:
    """boto3 makes its clients while it runs, so they have no types of their own."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"text": question}]}]
    config = bedrock.tools(runner.tools)
    assert config is not None
    reply: dict[str, Any] = client.converse(
        modelId="m", messages=messages, toolConfig=config | bedrock.tool_choice("required")
    )
    messages += bedrock.turn(reply)
    messages += bedrock.results(await runner.run_all(bedrock.calls(reply)), status=False)
    return bedrock.stop(reply)


class Claude:
    """A model of one's own, for the loop; it need not know of a state."""

    def __init__(self, client: AsyncAnthropic) -> None:
        self.client = client

    async def __call__(
        self, messages: Sequence[MessageParam], toolset: Toolset, /, *, state: Mapping[str, Any] | None = None
    ) -> Reply:
        """One turn."""
        reply = await self.client.messages.create(
            model="m",
            max_tokens=9,
            messages=messages,
            tools=anthropic.tools(toolset),
            stream=False,  # a state is a dict, of which pyright does not know that it says nothing of this
            **(state or {}),
        )
        return Reply(
            anthropic.text(reply),
            anthropic.calls(reply),
            anthropic.turn(reply),
            anthropic.stop(reply),
            reason=anthropic.reason(reply),
            state=anthropic.state(reply),
            raw=reply,
        )

    def results(self, results: Iterable[ToolResult], /) -> list[Message]:
        """The messages that answer the calls."""
        return [*anthropic.results(results)]


class Forgetful(Claude):
    """A model that needs no state."""

    async def __call__(self, messages: Sequence[MessageParam], toolset: Toolset, /) -> Reply:  # type: ignore[override]
        """One turn."""
        return await super().__call__(messages, toolset)


async def converse(model: Model, runner: Runner, messages: list[Message]) -> LoopResult:
    """A run, and another that goes on with its messages and its state, whatever the API takes."""
    going = run(model, messages, runner)
    try:
        result = await going
    except (RateLimited, Overloaded) as error:
        assert_type(error.retry_after, float | None)
        await asyncio.sleep(error.retry_after or 5)
        result = await run(model, going.messages, runner)
    except ContextTooLong:
        result = await run(model, messages[-1:], runner)
    except ModelError as error:
        raise SystemExit(str(error)) from error.__cause__
    assert_type(result.state, Mapping[str, Any])
    return await run(model, result.messages, runner, state=result.state)


async def both(client: AsyncAnthropic, runner: Runner) -> None:
    """One's own model and one over an SDK, in the same loop."""
    await converse(Claude(client), runner, [])
    async with models.OpenAI("m", base_url="http://localhost", stream=False, text_calls=True) as model:
        await converse(model, runner, model.user("Hello"))
        reply = await model([], runner.tools, state={}, on_text=print)
        assert_type(reply.state, Mapping[str, Any])


async def wait(model: models.Anthropic | models.Gemini, runner: Runner) -> LoopResult:
    """A run that waits, and goes on."""
    result = await run(model, model.user("Hello"), runner)
    if result.suspended is None:
        return result
    assert_type(result.suspended, dict[str, Any])
    await resume(result.suspended, {"call_1": True}, model, runner, by="eve")
    return await resume(result.suspended, {"call_1": allow({"to": "ada"}), "call_2": False}, model, runner)


def mistakes(stream: anthropic.Stream) -> None:
    """What is no response is found before it runs."""
    anthropic.calls(3)  # type: ignore[arg-type]
    openai_responses.turn("text")  # type: ignore[arg-type]
    gemini.stop([])  # type: ignore[arg-type]
    stream.feed("text")  # type: ignore[arg-type]
    anthropic.tool_choice(["add"])  # type: ignore[arg-type]
