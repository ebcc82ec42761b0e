"""`ferrule policy`, `ferrule decide` and `--policy`: what files of rules say, tell and decide on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ferrule.cli import main
from ferrule.cli.client_configs import format_configurations
from ferrule.policy import TrustedFiles

TOOLS = '''
from ferrule import Runner, ask, tool


@tool(read_only=True)
def find(order: int) -> str:
    """Find an order."""
    return f"order {order}"


@tool
def refund(order: int, amount: int) -> str:
    """Pay back."""
    return f"paid {amount} back"


def mine(call, context):
    return ask("I want to know") if context.tool.name == "find" else None


TOOLS = [find, refund]
runner = Runner(TOOLS, guards=[mine])
'''
POLICY = """allow = ["refund(amount<=100)"]

[[rule]]
decide = "deny"
tools = ["refund"]
arguments = { amount = { above = 1000 } }
reason = "offer a voucher instead"
match = [{ order = 1, amount = 1001 }]
no_match = [{ order = 1, amount = 1000 }]
"""
TESTS = """
[[test]]
call = "refund"
arguments = { order = 1, amount = 100 }
expect = "allow"

[[test]]
call = "refund"
arguments = { order = 1, amount = 500 }
expect = "ask"

[[test]]
call = "refund"
arguments = { order = 1, amount = 5000 }
expect = "deny"
rule = "voucher"

[[test]]
call = "find"
arguments = { order = 1 }
traits = ["read_only"]
expect = "allow"
"""

Ferrule = Callable[..., "tuple[int, str]"]


@pytest.fixture
def ferrule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ferrule:
    """Runs a command in a folder with tools.py and policy.toml; the exit code, and all that was said."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (here / "tools.py").write_text(TOOLS)
    (here / "policy.toml").write_text(POLICY + TESTS)

    def run(*words: str) -> tuple[int, str]:
        code = main(words)
        said = capsys.readouterr()
        return code, " ".join((said.out + said.err).split())

    return run


def written(place: str, text: str) -> Path:
    file = Path(place)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


REFUND = ("--tools", "tools.py:TOOLS")


# check


def test_check_says_what_happens_to_each_tool_and_which_rules_speak_of_it(ferrule: Ferrule) -> None:
    code, said = ferrule("policy", "check", "policy.toml", *REFUND)
    assert code == 0
    assert "find read-only allow none" in said
    assert "refund destructive ask policy.toml:1 allow refund(amount<=100)" in said
    assert "policy.toml:3 deny refund" in said and "No findings." in said


def test_check_tells_each_error_with_its_line_and_ends_with_1(ferrule: Ferrule) -> None:
    written("bad.toml", 'allow = ["refnd"]\nmood = "good"\n\n[[rule]]\ndecide = "perhaps"\ntools = ["refund"]\n')
    code, said = ferrule("policy", "check", "bad.toml", *REFUND)
    assert code == 1 and "bad.toml:2" in said and "'mood'" in said and "'perhaps'" in said
    assert "errors" in said


def test_check_says_that_nothing_is_asked_in_a_mode_that_denies(ferrule: Ferrule) -> None:
    written("strict.toml", 'mode = "never_ask"\n')
    said = ferrule("policy", "check", "strict.toml", *REFUND)[1]
    assert said.startswith("mode: never_ask") and "refund destructive deny none" in said


# test


@pytest.mark.parametrize("tools", [(), REFUND])
def test_the_tests_of_a_file_are_run_with_and_without_its_tools(ferrule: Ferrule, tools: tuple[str, ...]) -> None:
    code, said = ferrule("policy", "test", "policy.toml", *tools)
    assert (code, "4 tests passed; 2 examples of rules passed" in said) == (0, True), said


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ('call = "refund"\narguments = { order = 1, amount = 500 }\nexpect = "deny"', "expected deny"),
        (
            'call = "refund"\narguments = { order = 1, amount = 5000 }\nexpect = "deny"\nrule = "cash"',
            "expected a rule with 'cash'",
        ),
        ('call = "refund"\narguments = { order = 1 }\nexpect = "deny"', "Invalid arguments for refund"),
        ('call = "refnd"\narguments = { order = 1 }\nexpect = "ask"', "did you mean 'refund'?"),
    ],
)
def test_a_test_that_does_not_hold_fails_and_says_why(ferrule: Ferrule, wrong: str, told: str) -> None:
    written("wrong.toml", f"{POLICY}\n[[test]]\n{wrong}\n")
    code, said = ferrule("policy", "test", "wrong.toml", *REFUND)
    assert code == 1 and "FAILED wrong.toml:11" in said and told in said and "1 of 1 test failed" in said, said


def test_an_example_that_a_rule_does_not_match_fails(ferrule: Ferrule) -> None:
    written("wrong.toml", POLICY.replace("amount = 1001", "amount = 999"))
    code, said = ferrule("policy", "test", "wrong.toml")
    assert code == 1 and "999" in said


# decide


@pytest.mark.parametrize(
    ("amount", "code", "told"),
    [
        (100, 0, "rule: policy.toml:1 guard"),
        (101, 3, "a person would be asked"),
        (1001, 1, "the call would be denied reason: offer a voucher instead rule: policy.toml:3"),
    ],
)
def test_decide_says_what_would_happen_and_by_which_rule(ferrule: Ferrule, amount: int, code: int, told: str) -> None:
    got, said = ferrule("decide", "refund", "order=1", f"amount={amount}", "--policy", "policy.toml", *REFUND)
    assert got == code and told in said, said
    assert "within() no objection" in said and "policy.toml:3 deny" in said


def test_of_two_rules_in_one_line_that_one_is_told_that_spoke(ferrule: Ferrule) -> None:
    written(
        "two.toml",
        'ask = ["refund(amount>5)", "refund(amount<3)"]\n[[test]]\ncall = "refund"\n'
        'arguments = { amount = 9 }\nexpect = "ask"\n',
    )
    code, said = ferrule("policy", "test", "two.toml")
    assert code == 0 and "ask refund(amount>5)" in said and "amount<3" not in said


def test_decide_asks_every_guard_of_a_runner_and_the_policy_beside_it(ferrule: Ferrule) -> None:
    code, said = ferrule("decide", "find", "order=1", "--policy", "policy.toml", "--tools", "tools.py")
    assert code == 3 and "mine ask I want to know" in said, said


def test_decide_judges_for_the_principal_that_is_named(ferrule: Ferrule) -> None:
    written("people.toml", '[[rule]]\ndecide = "allow"\ntools = ["refund"]\nprincipals = ["ada"]\n')
    words = ("decide", "refund", "order=1", "amount=1", "--policy", "people.toml", *REFUND)
    assert [ferrule(*words, "--principal", name)[0] for name in ("ada", "eve")] == [0, 3]


def test_decide_says_of_rules_that_allow_a_line_together_that_they_do(ferrule: Ferrule) -> None:
    written("lines.py", "from ferrule import tool\n\n\n@tool\ndef shell(command: str) -> str: return command\n")
    written("lines.toml", 'allow = ["shell(git status)", "shell(pytest *)", "shell(ls)"]\n')
    line = "command=git status && pytest -q"
    code, said = ferrule("decide", "shell", line, "--policy", "lines.toml", "--tools", "lines.py")
    assert code == 0 and "rule: lines.toml:1 " in said
    assert "shell(git status) yes, with others" in said and "shell(pytest *) yes, with others" in said
    assert "shell(ls) no" in said


def test_decide_says_that_arguments_do_not_fit(ferrule: Ferrule) -> None:
    code, said = ferrule("decide", "refund", "order=1", *REFUND)
    assert code == 1 and "Invalid arguments for refund" in said


# --policy


def test_a_policy_takes_the_place_of_the_question_about_every_change(ferrule: Ferrule) -> None:
    def call(amount: int) -> tuple[int, str]:
        return ferrule("call", "refund", "order=1", f"amount={amount}", "--policy", "policy.toml", *REFUND)

    assert call(100) == (0, "paid 100 back")
    code, said = call(101)
    assert code == 1 and "nobody is there to ask" in said
    assert call(5000) == (1, "Denied: offer a voucher instead. Nothing was run.")


def test_a_policy_keeps_paths_in_the_working_directory(ferrule: Ferrule) -> None:
    written("open.toml", 'allow = ["*"]\n')
    code, said = ferrule("call", "read_file", "path=../x", "--policy", "open.toml")
    assert code == 1 and "outside the allowed paths" in said


def test_a_policy_stands_beside_the_guards_of_a_runner(ferrule: Ferrule) -> None:
    code, said = ferrule("call", "refund", "order=1", "amount=5000", "--policy", "policy.toml", "--tools", "tools.py")
    assert code == 1 and "offer a voucher instead" in said


def test_a_wrong_policy_runs_nothing_and_is_one_line(ferrule: Ferrule) -> None:
    written("bad.toml", 'allow = ["refund"]\nmood = "good"\n')
    code, said = ferrule("call", "refund", "order=1", "amount=1", "--policy", "bad.toml", *REFUND)
    assert code == 2 and said.startswith("ferrule: bad.toml:2: ")


def test_a_policy_file_that_is_not_there_runs_nothing(ferrule: Ferrule) -> None:
    code, said = ferrule("call", "find", "order=1", "--policy", "nowhere.toml", *REFUND)
    assert code == 2 and "nowhere.toml" in said


def test_the_policies_of_user_and_project_are_found(ferrule: Ferrule, tmp_path: Path) -> None:
    user = written("../config/ferrule/policy.toml", 'allow = ["refund"]\n')
    written(".ferrule/policy.toml", 'deny = ["refund(amount>10)"]\n')
    code, said = ferrule("call", "refund", "order=1", "amount=10", *REFUND)
    assert code == 1 and "have no effect, because nobody trusts this version" in said
    TrustedFiles().trust(user)
    assert ferrule("call", "refund", "order=1", "amount=10", *REFUND) == (0, "paid 10 back")
    code, said = ferrule("call", "refund", "order=1", "amount=11", *REFUND)
    assert code == 1 and "Denied" in said


def test_run_shows_the_rule_that_decided(ferrule: Ferrule) -> None:
    written(
        "steps.py",
        'steps = [[("refund", {"order": 1, "amount": 5}), ("refund", {"order": 1, "amount": 5000})], "Done."]',
    )
    code, said = ferrule("run", "x", "--model", "scripted:steps.py", "--policy", "policy.toml", *REFUND)
    assert code == 0 and "#1 refund allowed by policy.toml:1" in said and "#2 refund denied by policy.toml:3" in said


def test_run_tells_what_a_policy_in_shadow_would_have_decided_otherwise(ferrule: Ferrule) -> None:
    written("next.toml", 'deny = ["refund(amount>50)"]\n')
    calls = [("refund", {"order": 1, "amount": amount}) for amount in (5, 60, 70)]
    written("steps.py", f"steps = [{calls}, 'Done.']")
    words = ("run", "x", "--model", "scripted:steps.py", "--policy", "policy.toml", "--shadow", "next.toml", *REFUND)
    code, said = ferrule(*words)
    assert code == 0 and "3 refund ok yes" in said
    assert "2 calls of refund: allow, with the shadow policy deny (policy.toml:1; shadow: next.toml:1)" in said


def test_a_server_with_a_wrong_policy_does_not_start(ferrule: Ferrule) -> None:
    written("bad.toml", 'allow = "refund"\n')
    code, said = ferrule("serve", "tools.py:TOOLS", "--policy", "bad.toml")
    assert code == 2 and "bad.toml:1" in said


def test_an_installed_server_has_its_policy() -> None:
    written_text = format_configurations("a", ["tools.py"], [], [], Path("/srv"), None, ["policy.toml"])
    assert json.dumps(f"--policy={Path('/srv/policy.toml')}") in written_text


# trust


def test_the_allow_rules_of_a_project_count_once_it_is_trusted(ferrule: Ferrule) -> None:
    file = written(".ferrule/policy.toml", 'allow = ["refund"]\n')
    words = ("call", "refund", "order=1", "amount=1", *REFUND)
    code, said = ferrule(*words)
    assert code == 1 and f"ferrule policy trust {file.absolute()}" in said
    digest = TrustedFiles().trust(file)
    assert ferrule(*words) == (0, "paid 1 back")
    assert digest in ferrule("policy", "trust", "--list")[1]
    file.write_text('allow = ["*"]\n')
    code, said = ferrule(*words)
    assert code == 1 and "since it was trusted" in said
    file.unlink()
    code, said = ferrule(*words)
    assert code == 2 and f"ferrule policy trust --forget {file.absolute()}" in said


@pytest.mark.parametrize("trusted", [True, False])
def test_a_rule_for_a_tool_that_is_not_loaded_is_told_and_stops_nothing(trusted: bool, ferrule: Ferrule) -> None:
    text = 'allow = ["files__read(path within src)", "refund"]\ndeny = ["*(url host *.internal)", "shell(rm *)"]\n'
    file = written(".ferrule/policy.toml", text)
    if trusted:
        TrustedFiles().trust(file)
    code, said = ferrule("call", "find", "order=1", *REFUND)
    assert code == 0 and "ferrule: .ferrule/policy.toml:1: there is no tool 'files__read' (nor 'shell')" in said
    assert "correct the name if it is wrong" in said and said.count("ferrule: ") == 2 - trusted
    file.write_text('deny = ["refnd"]\n')
    code, said = ferrule("call", "find", "order=1", *REFUND)
    assert code == 2 and ".ferrule/policy.toml:1: there is no tool 'refnd': did you mean 'refund'?" in said


@pytest.mark.parametrize("words", [("policy", "trust"), ("policy", "trust", "--forget", ".ferrule/policy.toml")])
def test_without_a_terminal_nothing_is_trusted_or_forgotten(ferrule: Ferrule, words: tuple[str, ...]) -> None:
    file = written(".ferrule/policy.toml", 'allow = ["refund"]\n')
    TrustedFiles().trust(file)
    before = TrustedFiles().versions()
    file.write_text('allow = ["*"]\n')
    code, said = ferrule(*words)
    assert code == 1 and "A person at a terminal has to confirm this" in said
    assert TrustedFiles().versions() == before


def test_a_file_without_tests_is_no_success(ferrule: Ferrule) -> None:
    Path("bare.toml").write_text('allow = ["refund"]')
    code, said = ferrule("policy", "test", "bare.toml")
    assert code == 1 and "There are no tests: a [[test]]" in said


def test_a_file_with_an_error_is_not_trusted(ferrule: Ferrule) -> None:
    written(".ferrule/policy.toml", 'allow = ["refund"\n')
    code, said = ferrule("policy", "trust")
    assert code == 1 and "You cannot trust a file with errors." in said


# what cannot be meant


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("policy", "chek", "policy.toml"), "choose from 'check', 'test', 'trust'"),
        (("policy", "check"), "ferrule policy check FILE"),
        (("policy", "test"), "ferrule policy test FILE"),
        (("policy", "trust"), "ferrule policy trust FILE"),
        (("policy", "test", "policy.toml", "--list"), "is an option of ferrule policy trust"),
        (("decide", "refnd", "--tools", "tools.py:TOOLS"), "did you mean 'refund'?"),
        (("decide", "refund", "--amount", "1", "--tools", "tools.py:TOOLS"), "write amount=…"),
    ],
)
def test_what_cannot_be_meant_is_answered_with_what_would_be_right(
    ferrule: Ferrule, words: tuple[str, ...], told: str
) -> None:
    code, said = ferrule(*words)
    assert code == 2 and told in said, said
