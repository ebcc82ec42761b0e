"""The servers refuse what the APIs would: a history that worked, broken in one place, comes back as their own 400."""

from __future__ import annotations

import copy
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from tests.models.cases import Case, conversation, converse, each, serving
from tests.models.servers.serving import BOUND, Request, served
from tests.providers.apis import dicts_in

Body = dict[str, Any]
GROUPED = ("anthropic", "gemini", "vertex", "bedrock")
"""Those that want all results of a turn in one message."""
HISTORY = {"openai": "input", "gemini": "contents", "vertex": "contents"}
CONTENT = {"gemini": "parts", "vertex": "parts"}

pytestmark = pytest.mark.slow


def history(case: Case, body: Body) -> list[Body]:
    return body[HISTORY.get(case.name, "messages")]  # type: ignore[no-any-return]


def results(case: Case, body: Body) -> list[Body]:
    """The list that ends with the two results."""
    messages = history(case, body)
    return messages[-1][CONTENT.get(case.name, "content")] if case.name in GROUPED else messages


def without_one_result(case: Case, body: Body) -> None:
    results(case, body).pop()


def with_a_result_twice(case: Case, body: Body) -> None:
    results(case, body).append(copy.deepcopy(results(case, body)[-1]))


def with_words_between(case: Case, body: Body) -> None:
    messages = history(case, body)
    if case.name == "openai":  # it ties results to calls by their ids alone
        messages.insert(1, messages.pop())
    else:
        messages.insert(-1 if case.name in GROUPED else -2, copy.deepcopy(messages[0]))


def with_an_unknown_field(case: Case, body: Body) -> None:
    body["frobnicate"] = True


def with_an_invalid_name(case: Case, body: Body) -> None:
    places = [each for each in dicts_in(body["tools" if "tools" in body else "toolConfig"]) if "name" in each]
    places[0]["name"] = "a b!"


def with_results_apart(case: Case, body: Body) -> None:
    last = history(case, body)[-1]
    key = CONTENT.get(case.name, "content")
    history(case, body).append({**last, key: [last[key].pop()]})


def without_thoughts(case: Case, body: Body) -> None:
    if case.name in ("anthropic", "bedrock"):
        del history(case, body)[1]["content"][0]
    history(case, body)[:] = [item for item in history(case, body) if item.get("type") != "reasoning"]
    for part in dicts_in(body):
        for key in ("thoughtSignature", "thought_signature", "tool_plan"):
            part.pop(key, None)


def with_foreign_ids(case: Case, body: Body) -> None:
    for part in dicts_in(history(case, body)):
        for key in part.keys() & {"id", "tool_call_id", "toolUseId"}:
            part[key] = f"foreign id {part[key]}"


def without_tools(case: Case, body: Body) -> None:
    del body["tools" if "tools" in body else "toolConfig"]


BREAKS: list[tuple[Callable[[Case, Body], None], tuple[str, ...]]] = [
    (without_one_result, ()),
    (with_a_result_twice, ()),
    (with_words_between, ()),
    (with_an_unknown_field, ()),
    (with_an_invalid_name, ("anthropic", "openai", "compatible", "gemini", "bedrock", "mistral", "cohere")),
    (with_results_apart, ("anthropic", "gemini", "bedrock")),
    (without_thoughts, ("anthropic", "openai", "gemini", "bedrock", "cohere")),
    (without_tools, ("anthropic", "bedrock")),
    (with_foreign_ids, ("anthropic", "bedrock", "mistral")),
]
"""Each break of a rule, and the APIs that have it; all, if there are no names."""


def send(case: Case, request: Request) -> tuple[int, Any]:
    """The status and the body that come back for `request`, as the second one of a conversation."""
    api = case.api(conversation(case.ids))
    api.answered = 1
    headers = {name: value for name, value in request.headers.items() if name not in {"content-length", "host"}}
    with served(api) as address:
        data = json.dumps(request.body).encode()
        asked = urllib.request.Request(address + request.path, data, headers, method="POST")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(asked, timeout=BOUND) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


@each()
async def test_a_server_refuses_a_request_that_breaks_a_rule(case: Case) -> None:
    with serving(case) as (api, address):
        await converse(case, address)
    request = api.requests[1]  # with the results
    assert send(case, request)[0] == 200
    for broken, names in BREAKS:
        if not names or case.name in names:
            body = copy.deepcopy(request.body)
            broken(case, body)
            status, error = send(case, Request(request.path, request.headers, body))
            assert (status, set(error)) == (400, set(case.api([]).error_body(400, ""))), broken.__name__
    if case.name != "ollama":
        kept = {header: value for header, value in request.headers.items() if header != case.api.key[0]}
        assert send(case, Request(request.path, kept, request.body))[0] == 400  # nobody says who asks
