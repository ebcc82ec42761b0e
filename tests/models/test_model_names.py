"""Each model has one name in `ferrule.models`, and is imported when it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from ferrule import models

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


def test_no_model_is_imported_before_it_is_used() -> None:
    program = (
        "import sys; from ferrule import models; assert 'ferrule.models._openai' not in sys.modules; "
        "models.OpenAI; assert 'ferrule.models._openai' in sys.modules; "
        "assert not {'openai', 'anthropic', 'ferrule.models._gemini'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
