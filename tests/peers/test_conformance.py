"""The official conformance suite of MCP, its scenarios about tools, against `ferrule serve` and the client."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from needed import needed
from products import sampled
from waits import BOUND

ROOT = Path(__file__).parent.parent.parent
TOOLS = Path(__file__).parent / "conformance_tools.py"
CLIENT = ROOT / "examples" / "mcp_client.py"
SECONDS = 120
BOTH = [
    "tools-list",
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-mixed-content",
    "tools-call-error",
    "tools-call-with-progress",
    "json-schema-2020-12",
    "dns-rebinding-protection",
    "server-sse-multiple-streams",
]
# Without those that want sampling, roots or log messages, which the revision of 2026 deprecates.
SERVER = {
    "2025-11-25": [
        *BOTH,
        "server-initialize",
        "server-session-lifecycle",
        "ping",
        "tools-call-elicitation",
        "elicitation-sep1034-defaults",
        "elicitation-sep1330-enums",
    ],
    "2026-07-28": [
        *BOTH,
        "server-stateless",
        "caching",
        "http-header-validation",
        "http-custom-header-server-validation",
        "input-required-result-basic-elicitation",
        "input-required-result-request-state",
        "input-required-result-multi-round",
        "input-required-result-missing-input-response",
        "input-required-result-result-type",
        "input-required-result-unsupported-methods",
        "input-required-result-tampered-state",
        "input-required-result-ignore-extra-params",
        "input-required-result-validate-input",
    ],
}
# What these scenarios check besides, and a server of tools alone does not do.
EXPECTED = {
    # It wants a tool that changes the list, which `ferrule serve` does not.
    "server-stateless": {"sep-2575-server-sends-tools-list-changed-on-subscription"},
    "caching": {
        "sep-2549-prompts-list-caching-hints",
        "sep-2549-resources-list-caching-hints",
        "sep-2549-resources-templates-list-caching-hints",
    },
}
CLIENTS = {
    "2025-11-25": ["initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"],
    "2026-07-28": [
        "tools_call",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
        "json-schema-2020-12-preservation",
    ],
}

pytestmark = pytest.mark.slow


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}


def of(scenarios: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(revision, scenario) for revision, names in scenarios.items() for scenario in names]


@contextlib.contextmanager
def serving(*command: str) -> Iterator[str]:
    """The address at which a program serves the tools, by what it says of itself."""
    started = [sys.executable, *command]
    with subprocess.Popen(
        started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as server:
        assert server.stdout is not None
        try:
            said = ""
            while not (found := re.search(r"http://\S+/mcp", said)):
                line = server.stdout.readline()
                assert line, f"the server ended: {said}"
                said += line
            yield found[0]
        finally:
            server.terminate()
            server.communicate(timeout=BOUND)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("-m", "ferrule", "serve", str(TOOLS), "--http", "0") as address:
        yield address


def run(arguments: list[str], folder: Path) -> set[str]:
    """Run one scenario; the checks that it did not pass."""
    peers = needed("peers")
    program = f"{peers['modules']}/conformance/dist/index.js"
    done = subprocess.run(
        [peers["node"], program, *arguments, "-o", str(folder)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    found = [json.loads(path.read_text()) for path in folder.glob("**/checks.json")]
    assert found, done.stdout + done.stderr
    failed = {check["id"] for checks in found for check in checks if check["status"] in ("FAILURE", "WARNING")}
    assert failed or done.returncode == 0, done.stdout + done.stderr
    return failed


@pytest.mark.parametrize(("revision", "scenario"), sampled(of(SERVER), 5))
def test_a_served_runner_does_what_the_suite_asks(revision: str, scenario: str, url: str, tmp_path: Path) -> None:
    arguments = ["server", "--url", url, "--scenario", scenario, "--spec-version", revision]
    assert run(arguments, tmp_path) == EXPECTED.get(scenario, set())


def test_clients_hear_of_a_list_that_changes(tmp_path: Path) -> None:
    with serving(str(TOOLS)) as address:
        arguments = ["server", "--url", address, "--scenario", "server-stateless", "--spec-version", "2026-07-28"]
        assert run(arguments, tmp_path) == set()


@pytest.mark.parametrize(("revision", "scenario"), sampled(of(CLIENTS), 5))
def test_the_client_does_what_the_suite_asks(revision: str, scenario: str, tmp_path: Path) -> None:
    command = f"{sys.executable} {CLIENT}"
    arguments = ["client", "--command", command, "--scenario", scenario, "--spec-version", revision]
    assert run(arguments, tmp_path) == set()
