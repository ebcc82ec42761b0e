"""Each model has one name in `ferrule.models`, and is imported when it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from ferrule import DefinitionError, Toolset, models

NAMES = ["Anthropic", "Bedrock", "Cohere", "Gemini", "Mistral", "Ollama", "OpenAI", "Scripted"]


@pytest.mark.parametrize("name", NAMES)
def test_each_model_is_a_class_under_one_name(name: str) -> None:
    found = getattr(models, name)
    assert inspect.isclass(found) and found.__name__ == name and found is getattr(models, name)


def test_the_names_are_listed() -> None:
    assert list(models.NAMES) == NAMES
    assert {*NAMES, "Reply", "Model"} <= {*dir(models)} and {*NAMES} <= {*models.__all__}


@pytest.mark.parametrize("name", ["Claude", "anthropic", "openai", "scripted"])
def test_a_name_that_is_wrong_is_an_error_that_has_those_that_there_are(name: str) -> None:
    with pytest.raises(AttributeError) as found:
        getattr(models, name)
    assert str(found.value) == f"ferrule.models has no {name!r}; the models in it are {', '.join(NAMES)}"


def test_a_model_may_be_named_by_a_text_with_the_options_of_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("ANTHROPIC_API_KEY", "MISTRAL_API_KEY", "CO_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(key, "dummy")
    for name in ("anthropic:m", "openai:m:v2", "gemini:m", "mistral:m", "cohere:m", "ollama:m:8b"):
        model = models.model_from_name(name, base_url="http://127.0.0.1:9", stream=False)
        assert type(model).__name__.lower() == name.partition(":")[0] and not model.stream
        assert model.request([], Toolset(), {}, None)["model"] == name.partition(":")[2]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("openia:x", "'openia:x' is not PROVIDER:NAME; did you mean 'openai:x'?"),
        ("openai", "did you mean 'openai:NAME'?"),
        ("openai:", "did you mean 'openai:NAME'?"),
        ("zzz:x", "NAME; The providers are anthropic, bedrock, cohere, gemini, mistral, ollama, openai"),
        ("scripted:steps.py", "The providers are"),
        (None, "The providers are"),
    ],
)
def test_a_text_that_names_no_model_is_an_error_that_has_the_right_form(name: str, said: str) -> None:
    with pytest.raises(DefinitionError) as found:
        models.model_from_name(name)
    assert said in str(found.value)


def test_no_model_is_imported_before_it_is_used() -> None:
    program = (
        "import sys; from ferrule import models; assert 'ferrule.models._openai' not in sys.modules; "
        "models.OpenAI; assert 'ferrule.models._openai' in sys.modules; "
        "assert not {'openai', 'anthropic', 'ferrule.models._gemini'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
