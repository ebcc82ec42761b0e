"""What a tool may return is taken by each API, in the form in which its SDK sends it."""

from __future__ import annotations

import asyncio

import pytest
from tests.models.cases import CASES, Case, serving
from tests.models.servers.serving import BOUND, Asked, Turn
from tests.providers.test_provider_pages import OUTPUTS, weigh

from ferrule import Runner
from ferrule.loop import run

KINDS = [kind for kind in OUTPUTS if kind != "a suspended call"]
CALLS = [Asked(f"output{place:03}", "weigh", {"item": kind}) for place, kind in enumerate(KINDS)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_kind_of_output_is_taken(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NO_PROXY": "127.0.0.1", **case.environment}.items():
        monkeypatch.setenv(name, value)

    async def main(address: str) -> None:
        async with case.model("model-1", base_url=address) as model, asyncio.timeout(BOUND):
            result = await run(model, model.user("How heavy?"), Runner([weigh]))
            ends = ["failed" if kind == "a failed call" else "ok" for kind in KINDS]
            assert (result.status, [one.status for one in result.results]) == ("done", ends)

    with serving(case, [Turn("Let me see.", CALLS), Turn("12 kg.")]) as (api, address):
        asyncio.run(main(address))
    assert api.refusals == [] and len(api.requests) == 2
