"""The official conformance suite of MCP, its scenarios about tools, resources and prompts, against `ferrule serve` and
the client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from peer_programs import ROOT, TOOLS, environment, serving

from needed import needed
from products import sampled

CLIENT = ROOT / "examples" / "mcp_client.py"
SECONDS = 120
BOTH = """
    tools-list tools-call-simple-text tools-call-image tools-call-audio tools-call-embedded-resource
    tools-call-mixed-content tools-call-error tools-call-with-progress json-schema-2020-12 dns-rebinding-protection
    server-sse-multiple-streams
    resources-list resources-read-text resources-read-binary resources-templates-read prompts-list prompts-get-simple
    prompts-get-with-args prompts-get-embedded-resource prompts-get-with-image completion-complete
"""
# Without those that want sampling, roots or log messages, which the revision of 2026 deprecates, subscriptions to a
# resource, and prompts that ask.
SERVER = {
    "2025-11-25": f"""{BOTH}
        server-initialize server-session-lifecycle ping tools-call-elicitation elicitation-sep1034-defaults
        elicitation-sep1330-enums
    """,
    "2026-07-28": f"""{BOTH}
        server-stateless caching http-header-validation http-custom-header-server-validation
        input-required-result-basic-elicitation input-required-result-request-state input-required-result-multi-round
        input-required-result-missing-input-response input-required-result-result-type
        input-required-result-unsupported-methods input-required-result-tampered-state
        input-required-result-ignore-extra-params input-required-result-validate-input sep-2164-resource-not-found
        tasks-lifecycle tasks-capability-negotiation tasks-wire-fields tasks-request-state-removal tasks-mrtr-input
        tasks-request-headers tasks-dispatch-and-envelope
    """,
}
# What these scenarios check besides, and this server does not do.
EXPECTED = {
    # It wants a tool that changes the list, which `ferrule serve` does not.
    "server-stateless": {"sep-2575-server-sends-tools-list-changed-on-subscription"},
}
CLIENTS = {
    "2025-11-25": "initialize tools_call elicitation-sep1034-client-defaults sse-retry",
    "2026-07-28": """
        tools_call request-metadata sep-2322-client-request-state http-standard-headers http-custom-headers
        http-invalid-tool-headers json-schema-ref-no-deref json-schema-2020-12-preservation
    """,
}

pytestmark = pytest.mark.slow


def list_scenarios(scenarios: dict[str, str]) -> list[tuple[str, str]]:
    return [(revision, scenario) for revision, names in scenarios.items() for scenario in names.split()]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("-m", "ferrule", "serve", str(TOOLS), "--http", "0") as address:
        yield address


def run(arguments: list[str], folder: Path) -> set[str]:
    """Run one scenario, and return the checks that it did not pass."""
    peers = needed("peers")
    command = [peers["node"], f"{peers['modules']}/conformance/dist/index.js", *arguments, "-o", str(folder)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    found = [json.loads(path.read_text()) for path in folder.glob("**/checks.json")]
    assert found, done.stdout + done.stderr
    failed = {check["id"] for checks in found for check in checks if check["status"] in ("FAILURE", "WARNING")}
    assert failed or done.returncode == 0, done.stdout + done.stderr
    return failed


@pytest.mark.parametrize(("revision", "scenario"), sampled(list_scenarios(SERVER), 5))
def test_a_served_runner_passes_the_suite(revision: str, scenario: str, url: str, tmp_path: Path) -> None:
    arguments = ["server", "--url", url, "--scenario", scenario, "--spec-version", revision]
    if scenario.startswith("tasks-"):  # an extension belongs to no revision
        arguments.append("--force")
    assert run(arguments, tmp_path) == EXPECTED.get(scenario, set())


@pytest.mark.large
def test_clients_hear_of_a_changed_list(tmp_path: Path) -> None:
    with serving(str(TOOLS)) as address:
        arguments = ["server", "--url", address, "--scenario", "server-stateless", "--spec-version", "2026-07-28"]
        assert run(arguments, tmp_path) == set()


@pytest.mark.parametrize(("revision", "scenario"), sampled(list_scenarios(CLIENTS), 5))
def test_the_client_passes_the_suite(revision: str, scenario: str, tmp_path: Path) -> None:
    command = f"{sys.executable} {CLIENT}"
    arguments = ["client", "--command", command, "--scenario", scenario, "--spec-version", revision]
    assert run([*arguments, "--timeout", "60000"], tmp_path) == set()
