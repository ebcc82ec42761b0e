"""The servers refuse what the APIs would: a history that worked, broken in one place, comes back as their own 400."""

from __future__ import annotations

import asyncio
import copy
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from tests.models.cases import CASES, Case, conversation, serving, told
from tests.models.servers.serving import BOUND, Request, served

from products import sampled

Body = dict[str, Any]
BY_NAME = {case.name: case for case in CASES}
GROUPED = ("anthropic", "gemini", "vertex", "bedrock")
"""Those that want all results of a turn in one message."""
HISTORY = {"openai": "input", "interactions": "input", "gemini": "contents", "vertex": "contents"}
CONTENT = {"gemini": "parts", "vertex": "parts"}

pytestmark = pytest.mark.slow


def history(case: Case, body: Body) -> list[Body]:
    found: list[Body] = body[HISTORY.get(case.name, "messages")]
    return found


def results(case: Case, body: Body) -> list[Body]:
    """The list that ends with the two results."""
    messages = history(case, body)
    found: list[Body] = messages[-1][CONTENT.get(case.name, "content")] if case.name in GROUPED else messages
    return found


def without_one_result(case: Case, body: Body) -> None:
    results(case, body).pop()


def with_a_result_twice(case: Case, body: Body) -> None:
    results(case, body).append(copy.deepcopy(results(case, body)[-1]))


def without_any_results(case: Case, body: Body) -> None:
    del history(case, body)[-1 if case.name in GROUPED else -2 :]


def with_words_between(case: Case, body: Body) -> None:
    messages = history(case, body)
    if case.name not in {"openai", "interactions"}:  # which tie results to calls by their ids alone
        messages.insert(-1 if case.name in GROUPED else -2, copy.deepcopy(messages[0]))
    else:
        messages.insert(1, messages.pop())


def with_an_unknown_field(case: Case, body: Body) -> None:
    body["frobnicate"] = True


def with_a_name_that_no_tool_may_have(case: Case, body: Body) -> None:
    places = [each for each in every_dict(body["tools" if "tools" in body else "toolConfig"]) if "name" in each]
    places[0]["name"] = "a b!"


def with_a_message_of_nobody(case: Case, body: Body) -> None:
    history(case, body)[0]["type" if case.name == "interactions" else "role"] = "nobody"


EVERYWHERE = [
    without_one_result,
    with_a_result_twice,
    without_any_results,
    with_words_between,
    with_an_unknown_field,
    with_a_name_that_no_tool_may_have,
    with_a_message_of_nobody,
]
# Ollama's server takes any name.
BREAKS = [
    (case, broken)
    for case in CASES
    for broken in EVERYWHERE
    if not (case.name == "ollama" and broken is with_a_name_that_no_tool_may_have)
]


def results_apart(case: Case, body: Body) -> None:
    last = history(case, body)[-1]
    key = CONTENT.get(case.name, "content")
    history(case, body).append({**last, key: [last[key].pop()]})


def first_of_the_turn_gone(case: Case, body: Body) -> None:
    del history(case, body)[1]["content"][0]


def reasoning_gone(case: Case, body: Body) -> None:
    history(case, body)[:] = [item for item in history(case, body) if item.get("type") != "reasoning"]


def signature_gone(case: Case, body: Body) -> None:
    for part in every_dict(body):
        part.pop("thoughtSignature", None)
        part.pop("thought_signature", None)


def thought_gone(case: Case, body: Body) -> None:
    history(case, body)[:] = [item for item in history(case, body) if item.get("type") != "thought"]


def plan_gone(case: Case, body: Body) -> None:
    history(case, body)[1].pop("tool_plan")


def foreign_ids(case: Case, body: Body) -> None:
    for part in every_dict(history(case, body)):
        for key in ("id", "tool_call_id", "toolUseId"):
            if key in part:
                part[key] = f"foreign id {part[key]}"


def results_in_another_order(case: Case, body: Body) -> None:
    history(case, body).append(history(case, body).pop(-2))


def empty_error(case: Case, body: Body) -> None:
    results(case, body)[-1]["content"] = []


def tools_gone(case: Case, body: Body) -> None:
    del body["tools" if "tools" in body else "toolConfig"]


BREAKS += [
    *((BY_NAME[name], results_apart) for name in GROUPED),
    *((BY_NAME[name], first_of_the_turn_gone) for name in ("anthropic", "bedrock")),
    *((BY_NAME[name], tools_gone) for name in ("anthropic", "bedrock")),
    *((BY_NAME[name], foreign_ids) for name in ("anthropic", "bedrock", "mistral")),
    (BY_NAME["openai"], reasoning_gone),
    (BY_NAME["interactions"], thought_gone),
    *((BY_NAME[name], signature_gone) for name in ("gemini", "vertex")),
    (BY_NAME["cohere"], plan_gone),
    (BY_NAME["ollama"], results_in_another_order),
    (BY_NAME["anthropic"], empty_error),
]


def every_dict(value: Any) -> list[Body]:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    here = [value] if isinstance(value, dict) else []
    return here + [found for item in inner for found in every_dict(item)]


def second_request(case: Case) -> Request:
    """What the model sends with the results, as the server took it."""

    async def main(address: str) -> None:
        async with case.model("model-1", base_url=address) as model:
            await told(model, [])

    with serving(case) as (api, address):
        asyncio.run(main(address))
    return api.requests[1]


def sent(case: Case, request: Request) -> tuple[int, Any]:
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


@pytest.fixture(autouse=True)
def credentials(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    case: Case = request.node.callspec.params["case"]
    for name, value in {"NO_PROXY": "127.0.0.1", **case.environment}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_the_model_sent_is_taken_again(case: Case) -> None:
    status, _ = sent(case, second_request(case))
    assert status == 200


@pytest.mark.parametrize(
    ("case", "broken"), sampled(BREAKS, one_in=3), ids=lambda what: getattr(what, "__name__", None) or what.name
)
def test_a_request_that_breaks_a_rule_is_refused(case: Case, broken: Callable[[Case, Body], None]) -> None:
    request = second_request(case)
    broken(case, request.body)
    status, body = sent(case, request)
    assert status == 400
    assert set(body) == set(case.api([]).error_body(400, ""))


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "ollama"], ids=lambda case: case.name)
def test_a_request_without_credentials_is_refused(case: Case) -> None:
    request = second_request(case)
    name, _ = case.api.key
    kept = {header: value for header, value in request.headers.items() if header != name}
    assert sent(case, Request(request.path, kept, request.body))[0] == 400
