"""The programs of docs/providers are run as they stand, each against the server that plays its API; they know of it
by the environment alone."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import re
import runpy
import sys
import warnings
from collections.abc import Mapping
from functools import partialmethod
from pathlib import Path

import cohere
import pytest
from mistralai.client.sdkconfiguration import SERVERS
from pages import find_programs
from tests.models.cases import BY_NAME, Case
from tests.models.servers.serving import Answer, Api, Asked, Request, Turn, served

from products import sampled

ROOT = Path(__file__).parent.parent.parent
PAGES = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "providers").glob("*.md")}
ADDRESS = {
    "anthropic": "ANTHROPIC_BASE_URL",
    "openai": "OPENAI_BASE_URL",
    "compatible": "OPENAI_BASE_URL",
    "gemini": "GOOGLE_GEMINI_BASE_URL",
    "bedrock": "AWS_ENDPOINT_URL_BEDROCK_RUNTIME",
    "mistral": "MISTRAL_SERVER",
    "cohere": "CO_API_URL",
    "ollama": "OLLAMA_HOST",
}
"""What the SDK of each case reads its address from."""
RESULT = {
    "anthropic": '{"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "ITS"}]}',
    "openai": '{"type": "function_call_output", "call_id": "call_1", "output": "ITS"}',
    "compatible": '{"role": "tool", "tool_call_id": "call_1", "content": "ITS"}',
    "gemini": '{"functionResponse": {"id": "call_1", "name": "weigh", "response": {"output": "ITS"}}}',
    "bedrock": '{"toolResult": {"toolUseId": "call_1", "content": [{"text": "ITS"}]}}',
    "mistral": '{"content": "ITS", "role": "tool", "tool_call_id": "D681PevKs", "name": "weigh"}',
    "cohere": '{"type": "document", "document": {"data": {"output": "ITS"}}}',
    "ollama": '{"role": "tool", "tool_name": "weigh", "content": "ITS"}',
}
"""How a result goes back; what the server refuses besides is in tests/models/servers."""

OWN = {
    "anthropic": "anthropic",
    "openai-responses": "openai",
    "openai-chat": "compatible",
    "gemini": "gemini",
    "bedrock": "bedrock",
    "mistral": "mistral",
    "cohere": "cohere",
    "ollama": "ollama",
}
"""The case of each page, which has a program over the loop and one over the SDK."""

pytestmark = pytest.mark.slow


class InTurn(Api):
    """Several servers of one API at one address: each answers until it has said all."""

    def __init__(self, *apis: Api) -> None:
        super().__init__([])
        self.apis = apis
        self.path = apis[0].path  # type: ignore[misc]

    def answer(self, request: Request) -> Answer:
        return next(api for api in self.apis if api.answered < len(api.turns)).answer(request)


CONVERSE = "async def converse("


def programs(page: str) -> list[str]:
    """The programs of a page that a reader starts."""
    return [program.block.text for program in find_programs(PAGES[page]) if program.module != "stock"]


def over_sdk(page: str) -> list[str]:
    return [program for program in programs(page) if CONVERSE in program]


def ran(sources: list[str], stock: str, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """What the programs over the tools in `stock` print, and how each ends, with nothing in the environment but what is
    given. They run in this process, which has the SDKs imported: that is a second for each."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as changed, contextlib.redirect_stdout(said), contextlib.chdir(folder):
        for name in {*os.environ} - {"PATH", "SYSTEMROOT", "SSL_CERT_FILE"}:
            changed.delenv(name)
        for name, value in {"NO_PROXY": "127.0.0.1", **environment}.items():
            changed.setenv(name, value)
        if "MISTRAL_SERVER" in environment:  # its SDK takes its address from this table alone
            changed.setitem(SERVERS, "global", environment["MISTRAL_SERVER"])
        if "CO_API_URL" in environment:  # its SDK has read it when it was imported
            own = partialmethod(cohere.AsyncClientV2.__init__, base_url=environment["CO_API_URL"])
            changed.setattr(cohere.AsyncClientV2, "__init__", own)
        folder.joinpath("stock.py").write_text(stock, encoding="utf-8")
        changed.syspath_prepend(folder)
        changed.delitem(sys.modules, "stock", raising=False)
        for place, source in enumerate(sources):
            program, end = folder / str(place), "ran"
            program.write_text(source, encoding="utf-8")
            try:
                runpy.run_path(os.fspath(program), run_name="__main__")
            except SystemExit as left:
                end = str(left.code)
            except Exception as error:  # an SDK's own, which ends a program
                end = f"no answer: {error}"
            collect_open_sockets()
            print(f"\n{place} {end}")
    return said.getvalue().splitlines()


def collect_open_sockets() -> None:
    """Close the sockets of a program that an error has ended, without a warning: the end of its process would do it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def conversation(case: Case, *names: str, early: str = "") -> Api:
    """The named tools are called, in one turn; then comes the answer."""
    calls = [Asked(id, name, {"item": "anvil"}) for id, name in zip(case.ids, names, strict=False)]
    return case.api([Turn("Let me see: ", calls), Turn("12 kg.")], early=early)


def check(case: Case, own: str, stock: str, folder: Path, loop: str) -> None:
    """Whether a program over an SDK and one over the loop run the calls, answer them and show the text; and whether
    the first runs nothing of a stream that breaks off or ends in an error, and says why."""
    whole = [conversation(case, "weigh", "weigh"), conversation(case, "weigh")]
    error = conversation(case, "weigh", "weigh", early="error")
    error.turns.pop()  # so that it is done with after one request
    early = [error, conversation(case, "weigh", "weigh", early="quietly")]
    with served(InTurn(*whole, *early)) as address:
        environment = {**case.environment, ADDRESS[case.name]: address + case.home}
        found = ran([own, loop, own, own], stock, folder, environment)

    said = ["Let me see: 12 kg.", "0 ran", "12 kg.", "", "1 ran"]
    assert found[: len(said)] == said
    for api in whole:
        assert api.refusals == [] and len(api.requests) == 2
        assert RESULT[case.name].replace("ITS", "anvil: 12 kg") in json.dumps(api.requests[1].body)
    assert json.dumps(whole[0].requests[1].body).count("anvil: 12 kg") == 2

    why = ["error" if case.name == "mistral" else "overloaded today", "the turn has no end yet"]
    ends = [f"{len(whole) + place} no answer: .*{reason}.*" for place, reason in enumerate(why)]
    left = found[len(said) :]
    assert left[::2] == ["Let me see: "] * 2 and all(map(re.fullmatch, ends, left[1::2]))
    assert [len(api.requests) for api in early] == [1, 1]


def stock_of(page: str) -> str:
    [module] = [program for program in find_programs(PAGES[page]) if program.module == "stock"]
    return module.source


@pytest.mark.parametrize(("page", "name"), sampled(OWN.items(), 4))
def test_the_programs_of_a_page_run_as_they_stand(page: str, name: str, tmp_path: Path) -> None:
    [loop] = [source for source in programs(page) if "from ferrule.loop import" in source]
    check(BY_NAME[name], over_sdk(page)[0], stock_of(page), tmp_path, loop)


def test_every_program_of_the_pages_is_tried() -> None:
    assert sorted(PAGES) == sorted(OWN)
    assert sum(len(programs(page)) for page in PAGES) == 2 * len(OWN)
