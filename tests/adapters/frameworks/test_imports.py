"""What importing an adapter loads: its framework, and of Ferrule what it needs."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys

FRAMEWORK = os.environ["FERRULE_FRAMEWORK"]
ADAPTER = f"ferrule.adapters.{FRAMEWORK}"
THEIRS = {
    "agent_framework": {"agent_framework"},
    "amplifier": {"amplifier_core"},
    "axio": {"axio"},
    "claude_agent": {"anyio", "claude_agent_sdk", "mcp", "mcp_types"},
    "fastmcp": {"anyio", "fastmcp", "mcp", "mcp_types"},
    "google_adk": {"google.adk", "google.genai"},
    "langchain": {"langchain_core", "langgraph"},
    "openai_agents": {"agents"},
    "pydantic_ai": {"pydantic_ai"},
    "strands": {"strands"},
}[FRAMEWORK]
"""The packages of others that its adapter may import: the framework, and what it cannot be without."""
OURS = {"ferrule", "pydantic", "pydantic_core", "jsonschema_rs"}


def loaded_by(*imports: str) -> set[str]:
    """The modules that are there after these statements, in a program of its own."""
    program = "\n".join([*imports, "import sys, json", "print(json.dumps(sorted(sys.modules)))"])
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert done.stdout, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def imports_of_the_adapter() -> dict[str, str]:
    """The modules of others that the adapter's own text imports, with the statement: some load a name on demand."""
    spec = importlib.util.find_spec(ADAPTER)
    assert spec is not None and spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name: ast.unparse(node) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found[node.module] = ast.unparse(node)
    own = {*sys.stdlib_module_names, "ferrule"}
    return {name: text for name, text in found.items() if name.partition(".")[0] not in own}


def test_an_adapter_imports_only_its_framework() -> None:
    named = imports_of_the_adapter()
    theirs = {name for name in named if any(f"{name}.".startswith(f"{package}.") for package in THEIRS)}
    assert {name.partition(".")[0] for name in named.keys() - theirs} <= OURS
    assert theirs, "it imports no framework"
    without = loaded_by("import ferrule, ferrule.journal", *(named[name] for name in theirs))
    beside = loaded_by(f"import {ADAPTER}") - without
    packages = {name.partition(".")[0] for name in beside} - set(sys.stdlib_module_names)
    assert packages <= OURS


def test_an_adapter_imports_no_other_adapter_and_no_cli() -> None:
    ours = {name for name in loaded_by(f"import {ADAPTER}") if name.startswith("ferrule.")}
    others = {name for name in ours if name.startswith("ferrule.adapters.") and name != ADAPTER}
    shared = {"adapter", "args_model", "checks", "definitions", "payload", "shapes"}
    assert {name.rpartition(".")[2] for name in others} <= shared
    assert not {name for name in ours if name.split(".")[1] in {"cli", "serve", "testing", "loop"}}
