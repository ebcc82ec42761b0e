"""`ferrule run --model PROVIDER:NAME`, in processes of its own, against the servers that play the APIs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.models.cases import CASES, Case, serving
from tests.models.servers.containers import WithContainer
from tests.models.servers.serving import Asked, Turn, served

import preloaded
from products import sampled
from waits import BOUND

PROGRAM = [sys.executable, "-m", "ferrule"]
TOOLS = '''
from typing import Any

from ferrule import tool


@tool(read_only=True)
def weigh(item: str, scale: dict[str, Any]) -> str:
    """Weigh an item."""
    return f"{item}: 12 {scale['unit']}"


@tool(read_only=True)
def look(path: str) -> str:
    """Look at a file."""
    raise LookupError(f"there is no {path!r}")
'''
KEYS = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "bedrock": "AWS_ACCESS_KEY_ID",
    "mistral": "MISTRAL_API_KEY",
    "cohere": "CO_API_KEY",
}
PACKAGES = {
    "anthropic": "anthropic",
    "openai": "openai",
    "gemini": "google.genai",
    "bedrock": "boto3",
    "mistral": "mistralai.client",
    "cohere": "cohere",
    "ollama": "ollama",
}
WITHOUT = (
    "import sys; package = sys.argv.pop(1); sys.modules[package] = None; from ferrule.cli import main; sys.exit(main())"
)

pytestmark = pytest.mark.slow


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS, encoding="utf-8")
    return tmp_path


def known(here: Path, **environment: str) -> dict[str, str]:
    """An environment with nobody's credentials but those of `environment`."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "SYSTEMROOT") if name in os.environ}
    nobody = {"HOME": str(here), "NO_PROXY": "127.0.0.1", "AWS_EC2_METADATA_DISABLED": "true"}
    return {**kept, **nobody, "PYTHONIOENCODING": "utf-8", **environment}


def ferrule(here: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return preloaded.run([*PROGRAM, *words], cwd=here, timeout=BOUND, env=known(here, **environment))


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of what cannot be meant."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("ferrule: ")
    return done.stderr


def task(model: str, *more: str) -> tuple[str, ...]:
    return ("run", "How heavy is it?", "--tools", "tools.py", "--model", model, *more)


KINDS = {"compatible": "openai", "vertex": "gemini"}
NAMED = [case for case in CASES if case.name != "interactions"]
"""All but the API that has no model of ours."""


@pytest.mark.parametrize("case", sampled(NAMED[::-1], one_in=4), ids=lambda case: case.name)
def test_a_task_runs_on_a_named_model(here: Path, case: Case) -> None:
    kind = KINDS.get(case.name, case.name)
    address_is_enough = "openai" if case.name == "openai" else ""
    with serving(case) as (api, address):
        more = () if address_is_enough else ("--base-url", address)
        environment = {**case.environment, **({"OPENAI_BASE_URL": address} if address_is_enough else {})}
        done = ferrule(here, *task(f"{kind}:model-1:v2", *more), **environment)
    assert done.returncode == 0, done.stderr
    assert api.refusals == []
    assert "model-1" in str(api.requests[0])
    assert "It weighs 12 oz." in done.stdout
    assert "SCRIPTED" not in done.stdout
    assert done.stderr == ""


def test_a_compatible_address_needs_no_key(here: Path) -> None:
    (case,) = [case for case in CASES if case.name == "compatible"]
    with serving(case) as (_, address):
        done = ferrule(here, *task("openai:model-1", "--base-url", address))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", sampled([*KEYS][::-1], one_in=5))
def test_without_a_key_one_line_says_what_to_set(here: Path, kind: str) -> None:
    line = refused(ferrule(here, *task(f"{kind}:model-1")))
    assert f"{kind}:model-1" in line
    assert f"set {KEYS[kind]}" in line


def test_without_a_region_one_line_says_what_to_set(here: Path) -> None:
    line = refused(ferrule(here, *task("bedrock:model-1"), AWS_ACCESS_KEY_ID="dummy", AWS_SECRET_ACCESS_KEY="dummy"))
    assert "set AWS_DEFAULT_REGION" in line


@pytest.mark.parametrize("kind", sampled(PACKAGES, 3))
def test_without_the_sdk_one_line_says_what_to_install(here: Path, kind: str) -> None:
    command = [sys.executable, "-c", WITHOUT, PACKAGES[kind], *task(f"{kind}:m")]
    given = {"cwd": here, "env": known(here), "stdin": subprocess.DEVNULL, "timeout": BOUND}
    line = refused(subprocess.run(command, capture_output=True, encoding="utf-8", check=False, **given))
    assert f'pip install "ferrule[{kind}]"' in line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["antropic:x"], ["'antropic:x'", "'anthropic:NAME'"]),
        (["gpt-7"], ["'gpt-7'", "openai:NAME", "scripted:FILE"]),
        (["openai:"], ["'openai:'", "openai:NAME"]),
        (["scripted:steps.py", "--base-url", "http://127.0.0.1:1"], ["--base-url"]),
    ],
)
def test_a_model_that_cannot_be_meant_is_refused_in_one_line(here: Path, words: list[str], says: list[str]) -> None:
    line = refused(ferrule(here, *task(*words)))
    assert [word for word in says if word not in line] == []


def test_a_server_that_is_not_there_fails_the_run(here: Path) -> None:
    done = ferrule(here, *task("ollama:m", "--base-url", "http://127.0.0.1:9"))
    assert done.returncode == 1
    assert done.stderr.startswith("ferrule: the model failed: cannot reach it at http")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("early", ["", "error"])
def test_what_the_api_refuses_fails_the_run_and_is_told_in_one_line(here: Path, early: str) -> None:
    (case,) = [case for case in CASES if case.name == "cohere"]
    with serving(case, busy=0 if early else 1, early=early) as (_, address):
        done = ferrule(here, *task("cohere:m", "--base-url", address), CO_API_KEY="dummy")
    assert done.returncode == 1
    assert done.stderr.startswith(f"ferrule: the model failed: {'Overloaded' if early else 'RateLimited'}: ")
    assert done.stderr.count("\n") == 1


def test_the_state_of_a_turn_reaches_a_named_model_in_the_next(here: Path) -> None:
    (case,) = [case for case in CASES if case.name == "anthropic"]
    api = WithContainer([Turn("", [Asked("toolu_1", "look", {"path": "b"})]), Turn("It weighs 12 oz.")])
    with served(api) as address:
        done = ferrule(here, *task("anthropic:m", "--base-url", address), **case.environment)
    assert (api.refusals, done.returncode, done.stderr) == ([], 0, "")


AWS = {"AWS_ACCESS_KEY_ID": "dummy", "AWS_SECRET_ACCESS_KEY": "dummy"}


@pytest.mark.parametrize(
    ("kind", "address", "environment", "says"),
    [
        ("bedrock", None, {"AWS_PROFILE": "nope"}, "nope"),
        ("bedrock", None, {**AWS, "AWS_DEFAULT_REGION": "bad region"}, "bad region"),
        ("bedrock", "notaurl", {**AWS, "AWS_DEFAULT_REGION": "us-east-1"}, "notaurl"),
        ("ollama", "http://[bad", {}, "Invalid IPv6 URL"),
        ("ollama", "http://127.0.0.1:99999", {}, "Port out of range"),
        ("ollama", None, {"OLLAMA_HOST": "http://127.0.0.1:99999"}, "Port out of range"),
        ("gemini", None, {"GOOGLE_GENAI_USE_VERTEXAI": "true", "NO_GCE_CHECK": "true"}, "credentials were not found"),
    ],
)
def test_what_an_sdk_cannot_use_is_told_in_its_words_in_one_line(
    here: Path, kind: str, address: str | None, environment: dict[str, str], says: str
) -> None:
    more = () if address is None else ("--base-url", address)
    line = refused(ferrule(here, *task(f"{kind}:model-1", *more), **environment))
    assert f"{kind}:model-1" in line
    assert says in line
