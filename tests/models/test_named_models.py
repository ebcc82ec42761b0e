"""Models by name, in Python and as `ferrule run --model PROVIDER:NAME`, against the servers that play the APIs."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.models.cases import BY_NAME, Case, each, serving
from tests.models.servers.containers import WithContainer
from tests.models.servers.serving import Asked, Turn, served

import preloaded
from ferrule import DefinitionError, Toolset, models
from ferrule.cli.models import make_model
from ferrule.cli.usage import UsageError
from waits import BOUND

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
NAMES = ["Anthropic", "Bedrock", "Cohere", "Gemini", "Mistral", "Ollama", "OpenAI", "Scripted"]
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

pytestmark = pytest.mark.slow


# In Python


def test_each_model_is_a_class_under_one_name() -> None:
    assert list(models.NAMES) == NAMES
    assert {*NAMES, "Reply", "Model"} <= {*dir(models)} and {*NAMES} <= {*models.__all__}
    for name in NAMES:
        found = getattr(models, name)
        assert inspect.isclass(found) and found.__name__ == name and found is getattr(models, name)
    for wrong in ("Claude", "anthropic"):
        with pytest.raises(AttributeError, match=f"no '{wrong}'; the models in it are {', '.join(NAMES)}"):
            getattr(models, wrong)


def test_a_model_may_be_named_by_a_text_with_the_options_of_its_class() -> None:
    for name in ("anthropic:m", "openai:m:v2", "gemini:m", "mistral:m", "cohere:m", "ollama:m:8b"):
        model = models.model_from_name(name, base_url="http://127.0.0.1:9", stream=False)
        assert type(model).__name__.lower() == name.partition(":")[0] and not model.stream
        assert model.request([], Toolset(), {}, None)["model"] == name.partition(":")[2]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("openia:x", "'openia:x' is not PROVIDER:NAME. Did you mean 'openai:x'? The providers are"),
        ("openai:", "Did you mean 'openai:NAME'?"),
        ("zzz:x", "NAME. The providers are anthropic, bedrock, cohere, gemini, mistral, ollama, openai"),
        ("scripted:steps.py", "The providers are"),
        (None, "The providers are"),
    ],
)
def test_a_text_that_names_no_model_is_an_error_with_the_right_form(name: str, said: str) -> None:
    with pytest.raises(DefinitionError) as found:
        models.model_from_name(name)
    assert said in str(found.value)


@pytest.mark.parametrize("kind", KEYS)
def test_without_a_key_the_error_says_what_to_set(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.endswith("_API_KEY") or name.startswith(("AWS_", "GOOGLE_", "CO_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", os.devnull)
    with pytest.raises(DefinitionError, match=f"set {KEYS[kind]}"):
        models.model_from_name(f"{kind}:model-1")
    if kind == "bedrock":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "dummy")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "dummy")
        with pytest.raises(DefinitionError, match="set AWS_DEFAULT_REGION"):
            models.model_from_name("bedrock:model-1")


def test_an_sdk_is_imported_when_it_is_used_and_named_if_it_is_missing() -> None:
    program = f"""
import sys
from ferrule import models
assert not {{"openai", "anthropic", "ferrule.models._openai"}} & {{*sys.modules}}
for kind, package in {PACKAGES}.items():
    sys.modules[package] = None
    try:
        models.model_from_name(kind + ":m")
    except models.DefinitionError as error:
        assert f'pip install "ferrule[{{kind}}]"' in str(error), error
    else:
        raise AssertionError(kind)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=BOUND)


@pytest.mark.parametrize(
    ("kind", "address", "environment", "says"),
    [
        ("bedrock", None, {"AWS_PROFILE": "nope"}, "nope"),
        ("bedrock", None, {"AWS_DEFAULT_REGION": "bad region"}, "bad region"),
        ("bedrock", "notaurl", {}, "notaurl"),
        ("ollama", "http://[bad", {}, "Invalid IPv6 URL"),
        ("ollama", None, {"OLLAMA_HOST": "http://127.0.0.1:99999"}, "Port out of range"),
        ("gemini", None, {"GOOGLE_GENAI_USE_VERTEXAI": "true", "NO_GCE_CHECK": "true"}, "credentials were not found"),
    ],
)
def test_a_setting_that_an_sdk_cannot_use_is_told_in_its_words(
    kind: str, address: str | None, environment: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GEMINI_API_KEY")
    monkeypatch.setenv("HOME", os.devnull)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"cannot create the model '{kind}:model-1': .*{says}"):
        make_model(f"{kind}:model-1", address)


# On the command line


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS, encoding="utf-8")
    return tmp_path


def ferrule(here: Path, model: str, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a task, with nobody's credentials but those of `environment`."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "SYSTEMROOT") if name in os.environ}
    nobody = {"HOME": str(here), "NO_PROXY": "127.0.0.1", "AWS_EC2_METADATA_DISABLED": "true"}
    words = ["run", "How heavy is it?", "--tools", "tools.py", "--model", model, *more]
    environment = {**kept, **nobody, "PYTHONIOENCODING": "utf-8", **environment}
    return preloaded.run([sys.executable, "-m", "ferrule", *words], cwd=here, timeout=BOUND, env=environment)


@each("openai", "vertex", "bedrock")
def test_a_task_runs_on_a_named_model(here: Path, case: Case) -> None:
    kind = {"vertex": "gemini"}.get(case.name, case.name)
    with serving(case) as (api, address):
        if case.name == "openai":
            done = ferrule(here, f"{kind}:model-1:v2", **case.environment, OPENAI_BASE_URL=address)
        else:
            done = ferrule(here, f"{kind}:model-1:v2", "--base-url", address, **case.environment)
    assert (done.returncode, done.stderr, api.refusals) == (0, "", [])
    assert "model-1" in str(api.requests[0])
    assert "It weighs 12 oz." in done.stdout and "SCRIPTED" not in done.stdout


def test_a_compatible_address_needs_no_key(here: Path) -> None:
    with serving(BY_NAME["compatible"]) as (_, address):
        done = ferrule(here, "openai:model-1", "--base-url", address)
    assert done.returncode == 0, done.stderr


def test_the_state_of_a_turn_reaches_a_named_model_in_the_next(here: Path) -> None:
    api = WithContainer([Turn("", [Asked("toolu_1", "look", {"path": "b"})]), Turn("It weighs 12 oz.")])
    with served(api) as address:
        done = ferrule(here, "anthropic:m", "--base-url", address, **BY_NAME["anthropic"].environment)
    assert (api.refusals, done.returncode, done.stderr) == ([], 0, "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["antropic:x"], ["'antropic:x'", "'anthropic:NAME'"]),
        (["gpt-7"], ["'gpt-7'", "openai:NAME", "scripted:FILE"]),
        (["cohere:m"], ["cohere:m", "set CO_API_KEY"]),
        (["scripted:steps.py", "--base-url", "http://127.0.0.1:1"], ["--base-url"]),
    ],
)
def test_a_model_that_cannot_be_made_is_refused_in_one_line(here: Path, words: list[str], says: list[str]) -> None:
    done = ferrule(here, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("ferrule: ") and [word for word in says if word not in done.stderr] == []


@pytest.mark.parametrize("why", ["RateLimited", "Overloaded", "cannot reach it at http"])
def test_a_model_that_fails_ends_the_run_with_one_line(here: Path, why: str) -> None:
    with serving(BY_NAME["cohere"], busy=why == "RateLimited", early="error") as (_, address):
        reached = "http://127.0.0.1:9" if why.startswith("cannot") else address
        done = ferrule(here, "cohere:m", "--base-url", reached, CO_API_KEY="dummy")
    assert done.returncode == 1
    assert done.stderr.startswith(f"ferrule: the model failed: {why}") and done.stderr.count("\n") == 1
