"""Model APIs: one module each, with pure functions that write tools and results and read calls in the form of that API.

A provider module has

    tools(toolset, *, strict=False, cache=False, deferred=())    the definitions, for the request
    tool_choice(choice, *, parallel=True, only=None)             options to add to the request
    calls(response)                                              the `ToolCall`s, in order
    text(response)                                               the model's text
    turn(response)                                               the assistant's turn, for the history
    stop(response, tools=())                                     why the model stopped, in one of seven words; with the
                                                                 tools, JSON in the text that calls one is malformed
    reason(response, tools=())                                   the same in the API's own words, if the answer is
                                                                 missing or incomplete
    state(response)                                              data for the next request besides the messages
    results(results)                                             the messages that answer the calls
    Stream()                                                     the same from a stream: `.feed(event)`, then
                                                                 `.calls()`, `.turn()`, `.state()`, `.partial()` (the
                                                                 whole response), and `.stop`, `.reason`, `.error`

and knows neither an SDK nor a network: SDK objects and plain dicts go in, plain dicts come out. docs/models.md shows
their places in each API's request. The smallest module, for an API that wants a name and a schema, answers with
`{"name", "arguments"}` or `{"text"}`, and does not stream:

    def tools(toolset, *, strict=False, cache=False, deferred=()):
        return [{"name": tool.wire_name, "schema": tool.input_schema} for tool in toolset]

    def tool_choice(choice="auto", *, parallel=True, only=None):
        return {"mode": choice}

    def calls(response):
        return [ToolCall(response["id"], response["name"], response["arguments"])] if "name" in response else []

    def text(response):
        return response.get("text", "")

    def turn(response):
        return [response]

    def stop(response, tools=()):
        return "calls" if "name" in response else "end"

    def reason(response, tools=()):
        return None

    def state(response):
        return {}

    def results(results):
        return [{"id": result.call_id, "text": result.error or result.text} for result in results]

If messages store the tools found by a search tool, a module also has `find_referred_tools(messages)`: the names of
those tools.

The messages in the history always have that API's own form; Ferrule does not translate between two APIs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

from ferrule.definition.options import PROVIDERS

NAMES = PROVIDERS
"""The provider modules in this package. See docs/models.md."""

Stop: TypeAlias = Literal["end", "calls", "pause", "cut", "malformed", "refused", "other"]
"""Why a model stopped. `"pause"`: send the turn back unchanged; `"cut"`: stopped by a limit; `"malformed"`: it wrote no
valid call. See docs/models.md."""

Strict: TypeAlias = bool | Literal["where possible"] | Collection[str]
"""The tools for which the API holds the model to the schema: all, none, those of these names, or all that can be strict
within the limits of one request (`ferrule.providers.lint.not_strict` lists the others). See docs/models.md."""

WHERE_POSSIBLE: Literal["where possible"] = "where possible"
"""A `Strict` by itself. See docs/models.md."""
