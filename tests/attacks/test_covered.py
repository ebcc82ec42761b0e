"""Every table and every case of the sample has a test; a new one without fails here."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from sample import CASES, SAMPLE, rows

TESTS = Path(__file__).parent.parent
HERE = "attacks/test_attack_"

TABLES = {
    "paths": [f"{HERE}paths.py::test_a_row_of_paths_reaches_nothing_outside"],
    "urls": [
        "test_http.py::test_no_attack_reaches_what_is_not_public_and_the_controls_work",
        "guards/test_hosts.py::test_every_attack_is_denied_by_name_by_type_and_by_how_it_reads",
    ],
    "shell": [f"{HERE}commands.py::test_shell_lines_run_only_where_they_are_allowed"],
    "rules": [f"{HERE}rules.py::test_a_row_of_rules_is_decided_as_it_has_to_be"],
    "sanitise": [
        f"{HERE}outputs.py::test_a_row_of_what_is_sanitised_holds_wherever_it_stands",
        f"{HERE}outputs.py::test_a_row_of_what_is_sanitised_holds_in_what_an_mcp_server_says_of_its_tools",
    ],
    "secrets": [
        f"{HERE}outputs.py::test_a_row_of_secrets_is_redacted_wherever_it_stands_or_stays",
        f"{HERE}outputs.py::test_a_row_of_secrets_that_is_declared_secret_is_in_nothing_that_leaves",
    ],
    "names": [f"{HERE}names.py::test_a_row_of_names_is_taken_or_refused"],
}
"""The tests that run each row of a table."""

COVERED: dict[str, list[str]] = {
    "atk001": TABLES["paths"],
    "atk004": [f"{HERE}paths.py::test_a_handler_gets_the_very_path_that_was_judged"],
    "atk007": TABLES["urls"],
    "atk010": ["test_http.py::test_no_proxy_of_the_environment_hears_of_a_request"],
    "atk013": [f"{HERE}rules.py::test_a_text_that_begins_with_a_dash_is_no_address_of_a_program"],
    "atk016": ["kernel/test_workers.py::test_a_handler_does_not_read_the_programs_input"],
    "atk019": [
        f"{HERE}arguments.py::test_what_a_guard_returns_that_is_no_answer_denies",
        f"{HERE}arguments.py::test_a_guard_that_says_nothing_lifts_no_question",
    ],
    "atk022": [f"{HERE}arguments.py::test_a_value_of_another_type_is_refused_or_the_same_for_all_and_noted"],
    "atk025": [
        f"{HERE}arguments.py::test_what_is_too_much_is_refused_before_it_is_read",
        f"{HERE}arguments.py::test_ten_thousand_calls_in_a_batch_have_one_result_each",
    ],
    "atk028": [f"{HERE}arguments.py::test_a_pattern_that_ends_its_text_takes_no_line_break_after_it"],
    "atk031": [f"{HERE}arguments.py::test_a_key_that_is_no_parameter_is_refused_and_changes_nothing"],
    "atk034": [
        f"{HERE}definitions.py::test_a_call_whose_definition_is_swapped_after_it_was_approved_does_not_run",
        f"{HERE}definitions.py::test_a_call_that_runs_while_the_definition_is_swapped_ends_as_it_was_approved",
        f"{HERE}names.py::test_what_was_approved_of_another_definition_is_not_resumed",
    ],
    "atk037": [f"{HERE}definitions.py::test_nothing_follows_from_what_an_untrusted_server_says_of_its_harmlessness"],
    "atk040": [
        f"{HERE}definitions.py::test_no_schema_that_is_none_takes_anything_and_none_takes_the_other_tools_down",
        f"{HERE}names.py::test_a_schema_that_takes_anything_or_is_none_is_refused_when_the_tool_is_defined",
    ],
    "atk043": [f"{HERE}approvals.py::test_an_approval_that_is_used_many_times_at_once_runs_once"],
    "atk046": [
        f"{HERE}approvals.py::test_no_argument_approves_its_own_call",
        f"{HERE}approvals.py::test_neither_a_result_that_says_approved_nor_a_handler_approves_the_next_call",
    ],
    "atk049": [
        f"{HERE}approvals.py::test_of_two_answers_at_once_the_first_is_the_end",
        f"{HERE}approvals.py::test_an_approval_that_comes_after_the_end_of_its_call_runs_nothing",
        "kernel/test_pending.py::test_an_answer_that_comes_too_late_is_refused_and_told",
    ],
    "atk052": [f"{HERE}execution.py::test_a_call_that_waits_for_a_person_holds_no_slot_no_key_and_no_time"],
    "atk055": [f"{HERE}execution.py::test_a_thread_that_goes_on_after_its_deadline_is_told_of_and_keeps_its_slot"],
    "atk058": [
        "kernel/test_workers.py::test_a_kill_ends_the_whole_group",
        "kernel/test_workers.py::test_children_in_groups_and_sessions_of_their_own_end_too",
    ],
    "atk061": [f"{HERE}execution.py::test_a_time_out_of_its_own_is_told_from_that_of_the_runner"],
    "atk064": [
        f"{HERE}execution.py::test_what_unpacks_to_more_than_its_size_is_not_unpacked_by_the_file_tools",
        f"{HERE}execution.py::test_a_large_output_is_bounded_whatever_made_it",
    ],
    "atk067": [f"{HERE}execution.py::test_a_tool_with_a_limit_that_hangs_keeps_no_other_from_answering"],
    "atk070": ["kernel/test_workers.py::test_no_process_survives_a_program_that_is_killed"],
    "atk073": [f"{HERE}execution.py::test_only_what_the_host_calls_parallel_is_and_the_rest_keeps_its_order"],
    "atk076": [
        f"{HERE}outputs.py::test_no_output_leaves_its_envelope_though_it_knows_those_before",
        "middleware/test_untrusted.py::test_what_is_inside_is_had_back_exactly",
    ],
    "atk079": [f"{HERE}outputs.py::test_errors_are_output_too"],
    "atk082": TABLES["secrets"],
    "atk085": [f"{HERE}outputs.py::test_an_output_that_claims_to_be_the_runtime_is_enclosed_and_its_marks_are_none"],
    "atk088": [f"{HERE}records.py::test_one_call_is_one_line_that_gives_back_what_it_was"],
    "atk091": [f"{HERE}records.py::test_a_log_that_was_cut_at_any_byte_takes_lines_again_and_keeps_all_earlier_ones"],
    "atk094": [
        f"{HERE}records.py::test_what_is_declared_secret_is_nowhere_that_is_written_or_told",
        f"{HERE}records.py::test_a_credential_in_an_address_is_in_no_text_that_leaves_an_exception",
        f"{HERE}records.py::test_content_is_written_only_where_it_is_asked_for",
    ],
    "atk097": [
        f"{HERE}execution.py::test_a_call_that_is_delivered_twice_runs_once",
        "kernel/test_pending.py::test_a_journal_that_takes_makes_it_once_for_all_who_share_it",
    ],
    "atk100": ["kernel/test_workers.py::test_children_in_groups_and_sessions_of_their_own_end_too"],
    "atk103": [f"{HERE}rules.py::test_a_rule_that_says_nothing_is_an_error_or_a_finding_with_its_line"],
    "atk106": [
        f"{HERE}rules.py::test_an_allow_of_a_project_counts_for_nothing_until_somebody_trusts_it",
        f"{HERE}rules.py::test_no_tool_writes_the_policy_that_judges_it_and_no_other_file_becomes_one",
    ],
}
"""The tests that run each case."""

PROMISED_SO_FAR = {
    "atk016": "no tool here starts a shell; a handler in a worker process has no input of the program's",
    "atk064": "no tool here unpacks anything; what a handler gives back is bounded, and an archive is bytes",
    "atk067": "a tool without a limit of its own may take all threads: `concurrency=` on the tool is the limit",
    "atk070": "there is no journal that is kept; what is promised of a killed program is that nothing of it goes on",
    "atk091": "there is no journal that is kept; what is cut here is the log of calls",
    "atk094": "there are no spans and metrics yet; events, records, the log, errors and `repr` are looked at. "
    "An observer has the exception itself, too, as it was raised",
    "atk097": "within a batch, and of suspended calls in all processes that share a journal",
    "atk100": 'a handler has no sandbox, as SECURITY.md says under "What is not promised"; its processes end with it',
}
"""What a case wants beyond what is promised, and what is tested in its place."""


def named(table: str) -> set[tuple[str, str]]:
    return {tuple(one.split("::")) for one in TABLES[table]}  # type: ignore[misc]


def decorators(file: str, name: str) -> list[str]:
    """Those of a test function, which has to be there."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    [found] = [one for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == name]
    return [ast.unparse(one) for one in found.decorator_list]


def test_every_table_and_every_case_has_a_test() -> None:
    assert {*TABLES} == {*SAMPLE["tables"]}
    assert {*COVERED} == {*CASES}
    assert {*PROMISED_SO_FAR} <= {*CASES}
    for test in [test for tests in [*TABLES.values(), *COVERED.values()] for test in tests]:
        file, _, name = test.partition("::")
        assert not [one for one in decorators(file, name) if "skip" in one and "win" not in one and "nt" not in one]


@pytest.mark.parametrize("table", [table for table in TABLES if table != "urls"])
def test_the_test_of_a_table_is_run_for_each_of_its_rows(table: str) -> None:
    for file, name in named(table):
        assert any(one.startswith(f"pytest.mark.parametrize('row', rows('{table}')") for one in decorators(file, name))


def test_the_urls_of_the_sample_are_among_those_that_are_run() -> None:
    run = json.loads((TESTS / "data" / "url_attacks.json").read_text(encoding="utf-8"))
    kept = {(row["url"], row["expect"]) for row in run["rows"]}
    assert {(row["url"], row["expect"]) for row in rows("urls")} <= kept
    assert all(run["names"][name] == found for name, found in SAMPLE["fixtures"]["net1"]["names"].items())
    for file, name in named("urls"):
        assert any("ATTACKS['rows']" in one for one in decorators(file, name))
