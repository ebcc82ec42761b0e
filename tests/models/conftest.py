"""Dummy credentials in the environment, so that an SDK can be asked without an account."""

from __future__ import annotations

import pytest
from tests.models.cases import BY_NAME


@pytest.fixture(autouse=True)
def credentials(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the test's case, or of all but Vertex AI, which excludes Gemini's own."""
    callspec = getattr(request.node, "callspec", None)
    case = callspec and callspec.params.get("case")
    chosen = (
        [BY_NAME[case] if isinstance(case, str) else case]
        if case
        else [one for one in BY_NAME.values() if one.name != "vertex"]
    )
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for one in chosen:
        for name, value in one.environment.items():
            monkeypatch.setenv(name, value)
