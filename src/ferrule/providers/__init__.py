"""Model APIs: one module each, with pure functions that write tools and results and read calls the way that API does.

A provider module has

    tools(toolset, *, strict=False, cache=False, deferred=())    the definitions, for the request
    tool_choice(choice, *, parallel=True, only=None)             keyword arguments of the request
    calls(response)                                              the `ToolCall`s, in order
    turn(response)                                               the assistant's turn, for the history
    stop(response)                                               why the model stopped, in one of seven words
    results(results)                                             the messages that answer the calls
    Stream()                                                     the same from a stream: `.feed(event)`, then
                                                                 `.calls()`, `.partial()`, `.turn()` and `.stop`;
                                                                 `.error` and `.reason` have the API's own words

and knows neither an SDK nor a network: SDK objects and plain dicts go in, plain dicts come out. The smallest one, for
an API that wants a name and a schema and answers with `{"name", "arguments"}`:

    def tools(toolset, *, strict=False, cache=False, deferred=()):
        return [{"name": tool.wire_name, "schema": tool.input_schema} for tool in toolset]

    def tool_choice(choice, *, parallel=True, only=None):
        return {"mode": choice}

    def calls(response):
        return [ToolCall(response["id"], response["name"], response["arguments"])] if "name" in response else []

    def turn(response):
        return [response]

    def stop(response):
        return "calls" if "name" in response else "end"

    def results(results):
        return [{"id": result.call_id, "text": result.error or result.text} for result in results]

    class Stream:
        def __init__(self):
            self.response = {}

        def feed(self, event):
            self.response |= event

        def calls(self):
            return calls(self.response)

The messages in the history are always that API's own; nothing is translated between two of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

NAMES = ("anthropic", "bedrock", "cohere", "gemini", "mistral", "ollama", "openai_chat", "openai_responses")
"""The provider modules in this package."""

Stop: TypeAlias = Literal["end", "calls", "pause", "cut", "malformed", "refused", "other"]
"""Why a model stopped. `"pause"`: send the turn back as it is; `"cut"`: a limit came in between; `"malformed"`: it
wrote no valid call."""

Strict: TypeAlias = bool | Collection[str]
"""Which tools the API holds the model to the schema of: all, none, or those of these names."""
