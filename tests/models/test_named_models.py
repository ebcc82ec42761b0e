"""Models by name, in Python and as `ferrule run --model PROVIDER:NAME`, against the servers that play the APIs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.models.cases import BY_NAME, Case, each, serving

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
        (None, "The providers are anthropic, bedrock, cohere, gemini, mistral, ollama, openai"),
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


def test_a_setting_that_an_sdk_cannot_use_is_told_in_its_words() -> None:
    with pytest.raises(UsageError, match=r"cannot create the model 'ollama:model-1': .*Invalid IPv6 URL"):
        make_model("ollama:model-1", "http://[bad")


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


@each("compatible", "bedrock")
def test_a_task_runs_on_a_named_model(here: Path, case: Case) -> None:
    kind, keys = (case.name, case.environment) if case.name == "bedrock" else ("openai", {})  # which needs no key
    with serving(case) as (api, address):
        done = ferrule(here, f"{kind}:model-1:v2", "--base-url", address, **keys)
    assert (done.returncode, done.stderr, api.refusals) == (0, "", [])
    assert "model-1" in str(api.requests[0])
    assert "It weighs 12 oz." in done.stdout and "SCRIPTED" not in done.stdout


@pytest.mark.parametrize("why", ["RateLimited", "Overloaded", "cannot reach it at http"])
def test_a_model_that_fails_ends_the_run_with_one_line(here: Path, why: str) -> None:
    with serving(BY_NAME["cohere"], busy=why == "RateLimited", early="error") as (_, address):
        reached = "http://127.0.0.1:9" if why.startswith("cannot") else address
        done = ferrule(here, "cohere:m", "--base-url", reached, CO_API_KEY="dummy")
    assert done.returncode == 1
    assert done.stderr.startswith(f"ferrule: the model failed: {why}") and done.stderr.count("\n") == 1
