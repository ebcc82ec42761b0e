"""`ferrule policy`, `ferrule decide` and `--policy`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
TESTS = "".join(
    f'\n[[test]]\ncall = "refund"\narguments = {{ order = 1, amount = {amount} }}\nexpect = "{expected}"\n'
    for amount, expected in ((100, "allow"), (500, "ask"), (5000, "deny"))
)
FIND = '\n[[test]]\ncall = "find"\narguments = { order = 1 }\ntraits = ["read_only"]\nexpect = "allow"\n'
VOUCHER = 'call = "refund"\narguments = { order = 1, amount = 5000 }\n'
REFUND = ("--tools", "tools.py:TOOLS")


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    write("tools.py", TOOLS)
    write("policy.toml", POLICY + TESTS + 'rule = "voucher"\n' + FIND)


def write(place: str, text: str) -> Path:
    file = Path(place).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def refund(amount: int) -> tuple[str, ...]:
    return ("refund", "order=1", f"amount={amount}", *REFUND)


# check and test


def test_check_shows_the_decision_and_the_rules_of_each_tool(ferrule: Any) -> None:
    done = ferrule("policy", "check", "policy.toml", *REFUND)
    assert done.code == 0 and "find read-only allow none" in done.text and "No findings." in done.text
    assert "refund destructive ask policy.toml:1 allow refund(amount<=100)" in done.text
    assert "policy.toml:3 deny refund" in done.text
    write("strict.toml", 'mode = "never_ask"\n')
    said = ferrule("policy", "check", "strict.toml", *REFUND).text
    assert said.startswith("mode: never_ask") and "refund destructive deny none" in said


def test_check_shows_the_rules_of_resources_and_prompts(ferrule: Any) -> None:
    write("served.toml", 'allow = ["refund"]\nask = ["resource:hours"]\ndeny = ["*:hours"]\n')
    done = ferrule("policy", "check", "served.toml", *REFUND)
    assert "resource:hours read-only allow served.toml:2 ask resource:hours served.toml:3 deny *:hours" in done.text


def test_check_names_each_error_with_its_line(ferrule: Any) -> None:
    write("bad.toml", 'allow = ["refnd"]\nmood = "good"\n\n[[rule]]\ndecide = "perhaps"\ntools = ["refund"]\n')
    done = ferrule("policy", "check", "bad.toml", *REFUND)
    assert done.code == 1
    assert all(word in done.text for word in ("bad.toml:2", "'mood'", "'perhaps'", "errors"))


@pytest.mark.parametrize("tools", [(), REFUND])
def test_the_tests_of_a_policy_run_with_and_without_tools(ferrule: Any, tools: tuple[str, ...]) -> None:
    done = ferrule("policy", "test", "policy.toml", *tools)
    assert done.code == 0 and "4 tests passed; 2 examples of rules passed" in done.text, done.text


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ('call = "refund"\narguments = { order = 1, amount = 500 }\nexpect = "deny"', "expected deny"),
        (f'{VOUCHER}expect = "deny"\nrule = "cash"', "expected a rule with 'cash'"),
        ('call = "refund"\narguments = { order = 1 }\nexpect = "deny"', "Invalid arguments for refund"),
    ],
)
def test_a_failing_test_says_why(ferrule: Any, wrong: str, error: str) -> None:
    write("wrong.toml", f"{POLICY}\n[[test]]\n{wrong}\n")
    done = ferrule("policy", "test", "wrong.toml", *REFUND)
    assert done.code == 1 and "FAILED wrong.toml:11" in done.text and error in done.text, done.text
    assert "1 of 1 test failed" in done.text


def test_a_wrong_example_and_a_file_without_tests_fail(ferrule: Any) -> None:
    write("wrong.toml", POLICY.replace("amount = 1001", "amount = 999"))
    write("bare.toml", 'allow = ["refund"]')
    for file, error in (("wrong.toml", "999"), ("bare.toml", "There are no tests: a [[test]]")):
        done = ferrule("policy", "test", file)
        assert done.code == 1 and error in done.text


TWICE = '{ call = "find" }, { call = "refund", ago = "2h" }, { call = "refund", ago = '
SESSIONS = """
[[rule]]
decide = "deny"
tools = ["refund"]
before = "find"
within = "1h"
[[rule]]
decide = "allow"
tools = ["refund"]
at_most = 2
per = "day"
during = "Mon-Fri 09:00-17:00"
"""


@pytest.mark.parametrize("tools", [(), REFUND])
@pytest.mark.parametrize(
    ("earlier", "at", "expect"),
    [
        ('{ call = "find", ago = "59m" }', "2026-11-30 10:00", "allow"),
        ('{ call = "find", ago = "61m" }', "2026-11-30 10:00", "deny"),
        ('{ call = "find" }', "2026-11-29 10:00", "ask"),
        (f'{TWICE}"3h" }}', "2026-11-30 12:30", "ask"),
        (f'{TWICE}"1d" }}', "2026-11-30 12:30", "allow"),
    ],
)
def test_a_test_has_a_time_and_earlier_calls(
    ferrule: Any, earlier: str, at: str, expect: str, tools: tuple[str, ...]
) -> None:
    call = 'call = "refund"\narguments = { order = 1, amount = 5 }'
    earlier = earlier.replace('"refund",', '"refund", arguments = { order = 1, amount = 5 },')
    write("s.toml", f'{SESSIONS}[[test]]\n{call}\nearlier = [{earlier}]\nat = "{at}"\nexpect = "{expect}"\n')
    done = ferrule("policy", "test", "s.toml", *tools)
    assert done.code == 0, done.text


# decide


@pytest.mark.parametrize(
    ("amount", "code", "said"),
    [
        (100, 0, "rule: policy.toml:1 guard"),
        (101, 3, "a person would be asked"),
        (1001, 1, "the call would be denied reason: offer a voucher instead rule: policy.toml:3"),
    ],
)
def test_decide_shows_the_decision_and_its_rule(ferrule: Any, amount: int, code: int, said: str) -> None:
    done = ferrule("decide", *refund(amount), "--policy", "policy.toml")
    assert done.code == code and said in done.text, done.text
    assert "within() no objection" in done.text and "policy.toml:3 deny" in done.text


def test_decide_asks_the_guards_of_the_runner_too(ferrule: Any) -> None:
    done = ferrule("decide", "find", "order=1", "--policy", "policy.toml", "--tools", "tools.py")
    assert done.code == 3 and "mine ask I want to know" in done.text
    done = ferrule("call", "refund", "order=1", "amount=5000", "--policy", "policy.toml", "--tools", "tools.py")
    assert done.code == 1 and "offer a voucher instead" in done.text


def test_decide_judges_for_the_named_principal(ferrule: Any) -> None:
    write("people.toml", '[[rule]]\ndecide = "allow"\ntools = ["refund"]\nprincipals = ["ada"]\n')
    words = ("decide", *refund(1), "--policy", "people.toml")
    assert [ferrule(*words, "--principal", name).code for name in ("ada", "eve")] == [0, 3]


def test_decide_shows_rules_that_allow_a_line_together(ferrule: Any) -> None:
    write("lines.py", "from ferrule import tool\n\n\n@tool\ndef shell(command: str) -> str: return command\n")
    write("lines.toml", 'allow = ["shell(git status)", "shell(pytest *)", "shell(ls)"]\n')
    words = ("command=git status && pytest -q", "--policy", "lines.toml", "--tools", "lines.py")
    done = ferrule("decide", "shell", *words)
    assert done.code == 0 and "rule: lines.toml:1 " in done.text and "shell(ls) no" in done.text
    assert "shell(git status) yes, with others" in done.text and "shell(pytest *) yes, with others" in done.text


# --policy


def test_a_policy_keeps_paths_in_the_working_directory(ferrule: Any) -> None:
    write("open.toml", 'allow = ["*"]\n')
    done = ferrule("call", "read_file", "path=../x", "--policy", "open.toml")
    assert done.code == 1 and "outside the allowed paths" in done.text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("call", *refund(1), "--policy", "bad.toml"), "ferrule: bad.toml:2: "),
        (("policy", "trust"), "ferrule policy trust FILE"),
        (("policy", "test", "policy.toml", "--list"), "is an option of ferrule policy trust"),
        (("decide", "refund", "--amount", "1", *REFUND), "write amount=…"),
    ],
)
def test_a_wrong_policy_or_command_runs_nothing(ferrule: Any, words: tuple[str, ...], error: str) -> None:
    write("bad.toml", 'allow = ["refund"]\nmood = "good"\n')
    done = ferrule(*words)
    assert done.code == 2 and error in done.err and not done.out, done.text


def test_run_shows_rules_and_shadow_decisions(ferrule: Any) -> None:
    write("next.toml", 'deny = ["refund(amount>50)"]\n')
    calls = [("refund", {"order": 1, "amount": amount}) for amount in (5, 60, 70, 5000)]
    write("steps.py", f"steps = [{calls}, 'Done.']")
    words = ("run", "x", "--model", "scripted:steps.py", "--policy", "policy.toml", "--shadow", "next.toml", *REFUND)
    done = ferrule(*words)
    assert done.code == 0 and "#1 refund allowed by policy.toml:1" in done.text and "3 refund ok yes" in done.text
    assert "#4 refund denied by policy.toml:3" in done.text
    assert "2 calls of refund: allow, with the shadow policy deny (policy.toml:1; shadow: next.toml:1)" in done.text


def test_an_installed_server_has_its_policy() -> None:
    text = format_configurations("a", ["tools.py"], [], [], Path("/srv"), None, ["policy.toml"])
    assert json.dumps(f"--policy={Path('/srv/policy.toml')}") in text


# trust


def test_allow_rules_count_only_once_their_file_is_trusted(ferrule: Any) -> None:
    user = write("../config/ferrule/policy.toml", 'allow = ["refund"]\n')
    project = write(".ferrule/policy.toml", 'deny = ["refund(amount>10)"]\nallow = ["refund(amount<5)"]\n')
    done = ferrule("call", *refund(10))
    assert done.code == 1 and "have no effect, because nobody trusts this version" in done.text
    assert f"ferrule policy trust {project}" in done.text
    digest = TrustedFiles().trust(user)
    assert ferrule("call", *refund(10)).out == "paid 10 back\n"
    assert "Denied" in ferrule("call", *refund(11)).text
    assert digest in ferrule("policy", "trust", "--list").text
    user.write_text('allow = ["*"]\n')
    done = ferrule("call", *refund(10))
    assert done.code == 1 and "since it was trusted" in done.text
    user.unlink()
    done = ferrule("call", *refund(10))
    assert done.code == 2 and f"ferrule policy trust --forget {user.resolve()}" in done.text


@pytest.mark.parametrize("trusted", [True, False])
def test_a_rule_for_a_tool_that_is_not_loaded_is_a_warning(trusted: bool, ferrule: Any) -> None:
    text = 'allow = ["files__read(path within src)", "refund"]\ndeny = ["*(url host *.internal)", "shell(rm *)"]\n'
    file = write(".ferrule/policy.toml", text)
    if trusted:
        TrustedFiles().trust(file)
    done = ferrule("call", "find", "order=1", *REFUND)
    assert done.code == 0 and done.text.count("ferrule: ") == 2 - trusted
    assert "ferrule: .ferrule/policy.toml:1: there is no tool 'files__read' (nor 'shell')" in done.text
    assert "correct the name if it is wrong" in done.text
    file.write_text('deny = ["refnd"]\n')
    done = ferrule("call", "find", "order=1", *REFUND)
    assert done.code == 2 and ".ferrule/policy.toml:1: there is no tool 'refnd': did you mean 'refund'?" in done.text


@pytest.mark.parametrize("words", [(), ("--forget", ".ferrule/policy.toml")])
def test_without_a_terminal_nothing_is_trusted_or_forgotten(ferrule: Any, words: tuple[str, ...]) -> None:
    file = write(".ferrule/policy.toml", 'allow = ["refund"]\n')
    TrustedFiles().trust(file)
    before = TrustedFiles().versions()
    file.write_text('allow = ["*"]\n')
    done = ferrule("policy", "trust", *words)
    assert done.code == 1 and "A person at a terminal has to confirm this" in done.text
    assert TrustedFiles().versions() == before
    file.write_text('allow = ["refund"\n')
    assert words or "You cannot trust a file with errors." in ferrule("policy", "trust").text
