"""Providers whose streams have their own forms: each says what its response says, and runs nothing before its end."""

from __future__ import annotations

import copy
import json
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from apis_more import MORE, Asked
from asked import ADD, GREET, seen
from test_streams import places


@pytest.fixture(params=list(MORE))
def api(request: pytest.FixtureRequest) -> Any:
    return MORE[request.param]


@pytest.mark.parametrize("form", ["dict", "sdk"])
@pytest.mark.parametrize("asked", [[], [ADD], [ADD, GREET]])
def test_a_stream_says_what_the_response_says(api: Any, form: str, asked: list[Asked]) -> None:
    response = api.write("Let me see.", asked, "calls" if asked else "done")
    stream, whole = api.fed(api.events(response, list), form), api.read(response, form)
    assert seen(stream.calls()) == seen(api.module.calls(whole)) == seen(api.module.calls(stream.partial()))
    assert stream.turn() == api.module.turn(whole)
    assert stream.stop == api.module.stop(whole) == ("calls" if asked else "end")


@pytest.mark.parametrize("form", ["dict", "sdk"])
def test_a_stream_that_ends_early_runs_nothing(api: Any, form: str) -> None:
    events = list(api.events(api.write("Text.", [ADD, GREET], "calls"), list))
    stream, ended = api.module.Stream(), False
    for event in events:
        assert ended or all(call.problem and "Nothing was run" in call.problem for call in stream.calls())
        assert ended or stream.stop == "other"
        stream.feed(api.sdk_event(event) if form == "sdk" else event)
        ended = ended or stream.stop != "other"
    assert [call.problem for call in stream.calls()] == [None, None]


@pytest.mark.parametrize("missing", [None, "", "null"])
def test_missing_ids_are_derived_alike_with_and_without_a_stream(api: Any, missing: str | None) -> None:
    response = api.write("", [(missing, "add", {"a": 1}), (missing, "add", {"a": 1})], "calls")
    ids = [call.id for call in api.module.calls(response)]
    assert len(set(ids)) == 2 and all(ids)
    stream = api.fed(api.events(response, list))
    assert [call.id for call in stream.calls()] == [call.id for call in api.module.calls(stream.partial())] == ids
    assert api.ids(api.module.turn(response)) == api.ids(stream.turn()) == (ids if api.call_ids else [])


def test_a_cut_turn_runs_nothing(api: Any) -> None:
    response = api.write("", [ADD], "cut")
    for calls in (api.module.calls(response), api.fed(api.events(response)).calls()):
        assert [call.problem and "cut off" in call.problem for call in calls] == [True]
    assert api.module.stop(response) == "cut"


def test_what_is_no_event_is_passed_over(api: Any) -> None:
    stream = api.module.Stream()
    for junk in (
        None,
        1,
        "x",
        [],
        {},
        {"data": None},
        {"type": "?"},
        {"choices": [None]},
        {"message": 1},
        {"delta": []},
    ):
        stream.feed(junk)
    assert stream.calls() == [] and stream.turn() == [] and stream.stop == "other"


@pytest.mark.parametrize("junk", [0, [[1]], {}, {"type": "text"}], ids=repr)
def test_no_event_breaks_the_stream(api: Any, junk: Any) -> None:
    events = list(api.events(api.write("Some text.", [ADD], "calls"), lambda text: list(text[:3])))
    for number, event in enumerate(events):
        for place in places(event)[1:]:
            broken: Any = copy.deepcopy(event)
            reduce(getitem, place[:-1], broken)[place[-1]] = junk
            stream = api.fed([*events[:number], broken, *events[number + 1 :]])
            json.dumps([stream.stop, stream.partial(), stream.turn()])
            assert all(isinstance(call.id, str) and call.id for call in stream.calls())
