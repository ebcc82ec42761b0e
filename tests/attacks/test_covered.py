"""Every table and every case of the sample has a test; a new one without fails here."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from sample import CASES, SAMPLE, rows

TESTS = Path(__file__).parent.parent


TABLES = {
    "paths": ["attacks/test_attack_paths.py::test_a_row_of_paths_reaches_nothing_outside"],
    "urls": [
        "security/test_http.py::test_no_attack_reaches_a_private_host",
        "guards/test_hosts.py::test_every_attack_is_denied_by_name_type_and_text",
        "tools/test_http_tool.py::test_no_attack_reaches_a_private_host",
    ],
    "shell": ["attacks/test_attack_rules.py::test_shell_lines_run_only_if_they_are_allowed"],
    "rules": ["attacks/test_attack_rules.py::test_a_row_of_rules_is_decided_as_expected"],
    "sanitise": [
        "attacks/test_attack_outputs.py::test_a_row_of_sanitise_holds_everywhere",
        "attacks/test_attack_outputs.py::test_a_row_of_sanitise_holds_in_tools_of_mcp_servers",
    ],
    "secrets": [
        "attacks/test_attack_outputs.py::test_a_row_of_secrets_is_redacted_everywhere_or_nowhere",
        "attacks/test_attack_outputs.py::test_a_declared_secret_is_in_nothing_that_leaves",
    ],
    "names": ["attacks/test_attack_names.py::test_a_row_of_names_is_taken_or_refused"],
}
"""The tests that run each row of a table."""

COVERED: dict[str, list[str]] = {
    "atk001": TABLES["paths"],
    "atk007": TABLES["urls"],
    "atk010": [
        "security/test_http.py::test_environment_proxies_are_ignored",
        "tools/test_http_tool.py::test_cookies_and_proxies_are_not_used",
    ],
    "atk016": ["kernel/test_workers.py::test_a_handler_does_not_read_the_programs_input"],
    "atk019": ["attacks/test_attack_arguments.py::test_a_guard_that_returns_no_answer_denies"],
    "atk028": ["attacks/test_attack_arguments.py::test_an_anchored_pattern_takes_no_trailing_line_break"],
    "atk049": ["attacks/test_attack_approvals.py::test_the_first_of_two_concurrent_answers_ends_the_call"],
    "atk052": ["attacks/test_attack_execution.py::test_a_waiting_call_holds_nothing"],
    "atk055": ["kernel/test_deadlines.py::test_an_abandoned_handler_keeps_its_slot"],
    "atk058": [
        "kernel/test_workers.py::test_a_kill_ends_the_whole_group",
        "kernel/test_workers.py::test_children_in_groups_and_sessions_of_their_own_end_too",
    ],
    "atk061": ["kernel/test_run.py::test_any_exception_of_a_handler_is_a_failed_result"],
    "atk064": ["attacks/test_attack_execution.py::test_the_file_tools_unpack_no_archive_bomb"],
    "atk070": ["kernel/test_workers.py::test_no_process_survives_a_program_that_is_killed"],
    "atk073": ["kernel/test_batch.py::test_a_call_that_is_not_parallel_runs_alone_and_in_its_place"],
    "atk079": ["attacks/test_attack_outputs.py::test_errors_are_output_too"],
    "atk082": TABLES["secrets"],
    "atk094": ["kernel/test_known_secrets.py::test_known_secrets_are_stars"],
    "atk100": ["kernel/test_workers.py::test_children_in_groups_and_sessions_of_their_own_end_too"],
    "atk103": ["attacks/test_attack_rules.py::test_a_rule_without_effect_is_a_finding"],
}
"""The tests of the cases that no test here names by its id."""

PROMISED_SO_FAR = {
    "atk016": "no tool here starts a shell; a handler in a worker process has no input of the program's",
    "atk064": "no tool here unpacks anything; what a handler returns is bounded, and an archive is bytes",
    "atk067": "a tool without a limit of its own may take all threads: `concurrency=` on the tool is the limit",
    "atk070": "what is promised of a killed program is that no process of it goes on",
    "atk091": "what is cut here is the log of calls; the journal has tests of its own",
    "atk094": "events, records, the log, errors and `repr` are looked at; an observer has the exception itself, too",
    "atk097": "within a batch, and of suspended calls in all processes that share a journal",
    "atk100": 'a handler has no sandbox, as SECURITY.md says under "What is not promised"; its processes end with it',
}
"""Cases that want more than is promised, and what is tested instead."""


def named(table: str) -> set[tuple[str, str]]:
    return {tuple(one.split("::")) for one in TABLES[table]}  # type: ignore[misc]


def decorators(file: str, name: str) -> list[str]:
    """The decorators of a test function, which must exist."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    [found] = [one for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == name]
    return [ast.unparse(one) for one in found.decorator_list]


def test_every_table_and_every_case_has_a_test() -> None:
    sources = "".join(file.read_text(encoding="utf-8") for file in (TESTS / "attacks").glob("test_attack_*.py"))
    assert {*TABLES} == {*SAMPLE["tables"]}
    assert {case for case in CASES if f'CASES["{case}"]' not in sources} == {*COVERED}
    assert {*PROMISED_SO_FAR} <= {*CASES}
    for test in [test for tests in [*TABLES.values(), *COVERED.values()] for test in tests]:
        file, _, name = test.partition("::")
        assert not [one for one in decorators(file, name) if "skip" in one and "win" not in one and "nt" not in one]


@pytest.mark.parametrize("table", [table for table in TABLES if table != "urls"])
def test_the_test_of_a_table_runs_for_each_row(table: str) -> None:
    for file, name in named(table):
        assert any(one.startswith(f"pytest.mark.parametrize('row', rows('{table}')") for one in decorators(file, name))


def test_the_urls_of_the_sample_are_among_those_that_run() -> None:
    run = json.loads((TESTS / "data" / "url_attacks.json").read_text(encoding="utf-8"))
    kept = {(row["url"], row["expect"]) for row in run["rows"]}
    assert {(row["url"], row["expect"]) for row in rows("urls")} <= kept
    assert all(run["names"][name] == found for name, found in SAMPLE["fixtures"]["net1"]["names"].items())
    for file, name in named("urls"):
        assert any("ATTACKS['rows']" in one for one in decorators(file, name))
