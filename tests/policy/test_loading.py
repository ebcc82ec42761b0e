"""Loading is strict: every error of a file is reported with its line, and nothing is allowed by mistake."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypedDict

from ferrule import tool
from ferrule.errors import DefinitionError
from ferrule.guards import rules
from ferrule.policy import Policy, TrustedFiles
from ferrule.policy.checks import check_redundancy
from ferrule.policy.files import MAX_FILE_BYTES
from ferrule.policy.reading import MAX_RULES, read_document
from ferrule.policy.trust import TrustedVersion
from policy.policies import decided, fetch, findings_of, move, policy_of, refund, shell, write_file
from steps import steps

ROOT = Path(__file__).parent.parent.parent
TOOLS = [refund, shell, fetch, write_file, move]


DENY = '[[rule]]\ndecide = "deny"\ntools = ["t"]\n'


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("allow = [", 0, "it is not TOML"),
        ('\nallow = ["a"]\nmode = ask', 3, "it is not TOML"),
        ("x = " + "[" * 5000, 0, "it is not TOML"),
        ("\nx" + ".x" * 500 + " = 1", 2, "a key has at most 100 parts"),
        (DENY + "arguments = { a = { above = 0x" + "f" * 4000 + " } }", 1, "digits"),
        ('[[rule]]\ndecide = "deny"\ntags = [""]', 1, "'' is not a tag"),
        ('\nalow = ["a"]', 2, "a policy has no 'alow': did you mean 'allow'?"),
        ('allow = ["a", 5]', 1, "allow is a list"),
        ('mode = "strict"', 1, '"ask", "read_only" or "never_ask"'),
        ('allow = [\n  "a",\n  # no\n  "b(amount<=x)",\n]', 4, "compares with a number"),
        ('allow = ["a",\n"b("]', 2, "is not a rule"),
        ('allow = ["a(amount<=1,currency=EUR)"]', 1, "has a comma"),
        ('deny = ["a(currency=EUR|USD)"]', 1, "for several values write name in EUR|USD"),
        ('allow = ["read_?"]', 1, "the only wildcard is *"),
        ('[[rule]]\ndecide = "deny"\nprincipals = ["not hr"]', 1, "does not mean all others"),
        ('deny = ["Wirte(*)"]', 1, "pattern"),
        ('deny = ["t(cmd=ls)"]', 1, "write cmd runs …, or in a [[rule]] cmd = { commands"),
        ('deny = ["t(url=x)"]', 1, "write url host …, or in a [[rule]] url = { hosts"),
        ('[[rule]]\ndecide = "deny"', 1, "a rule needs tools"),
        ('[[rule]]\ntools = ["t"]', 1, "a rule needs decide"),
        ('\n[[rule]]\ndecide = "deny"\ntools = "t"', 2, "tools is a list of texts"),
        (f'{DENY}\n[[rule]]\ndecide = "deny"\ntool = ["t"]', 5, "did you mean 'tools'?"),
        (DENY + "reason = 5", 1, "reason is text"),
        (DENY + 'into = "pin"', 1, "into is only for"),
        (DENY + "match = [{ on = 2026-01-01 }]", 1, "is not JSON"),
        (DENY + "arguments = { a = 5 }", 1, "a: a condition is a table"),
        (DENY + "arguments.order.amount = { above = 5 }", 1, "in quotes"),
        (DENY + 'arguments = { "a..b" = { above = 5 } }', 1, "is not the place of an argument"),
        (DENY + 'arguments = { cmd = { commands = ["rm *"], within = ["x"] } }', 1, "within"),
        ('[[test]]\ncall = "t"', 1, "a test needs expect"),
        ('[[test]]\ncall = "t"\nexpect = "maybe"', 1, "expect is"),
    ],
)
def test_an_error_is_reported_with_its_line(text: str, line: int, said: str) -> None:
    found = findings_of(text)
    assert [(one.level, one.line) for one in found] == [("error", line)] and said in found[0].text


EXAMPLE = '[[rule]]\ndecide = "{0}"\ntools = [{1}]\narguments = {{ n = {{ above = 5 }} }}\n{2}'


@pytest.mark.parametrize(
    ("tools", "examples", "right"),
    [
        ('"t"', "match = [{ n = 6 }]\nno_match = [{ n = 5 }, {}]", True),
        ('"t"', 'match = [{ n = 6, tool = "an argument" }]', True),
        ('"t"', "match = [{ n = 5 }]", False),
        ('"t"', 'match = [{ n = "x" }]', False),
        ('"t*"', 'match = [{ tool = "t1", n = 6 }]\nno_match = [{ tool = "u", n = 6 }]', True),
        ('"t*"', 'match = [{ tool = "u", n = 6 }]', False),
    ],
)
def test_a_wrong_example_is_an_error(tools: str, examples: str, right: bool) -> None:
    found = findings_of(EXAMPLE.format("deny", tools, examples))
    assert [one.level for one in found] == ([] if right else ["error"])
    assert right or "is wrong" in found[0].text


@pytest.mark.parametrize(
    ("text", "level", "line", "said"),
    [
        ('deny = ["t*"]\nallow = ["t1"]', "warning", 2, "has no effect: policy.toml:1 ('deny t*') is stricter"),
        ('allow = ["t", "t"]', "warning", 1, "is a duplicate"),
        ('allow = [\n"t*",\n"t1"]', "warning", 3, "is redundant"),
        ('deny = ["t(n>5)"]\nallow = ["t(n>0)"]', None, 0, ""),
        ('allow = ["t*"]\nask = ["t1"]', None, 0, ""),
        ('[[rule]]\ndecide = "deny"\ntags = ["x"]\n[[rule]]\ndecide = "deny"\ntools = ["t"]', None, 0, ""),
        ('[[rule]]\ndecide = "deny"\nprincipals = ["ann"]\n[[rule]]\ndecide = "deny"\ntools = ["t"]', None, 0, ""),
        ('deny = ["t*"]\n[[rule]]\ndecide = "deny"\ntools = ["t1"]\nreason = "take t2"', None, 0, ""),
        ('ask = ["t*"]\n[[rule]]\ndecide = "ask"\ntools = ["t1"]\ninto = "pin"', None, 0, ""),
    ],
)
def test_a_rule_without_effect_is_reported(text: str, level: Any, line: int, said: str) -> None:
    found = findings_of(text)
    assert [(one.level, one.line) for one in found] == ([] if level is None else [(level, line)])
    assert level is None or said in found[0].text


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('alow = ["a"]\nask = ["b(n<=x)"]\n\n[[rule]]\ndecide = "no"\ntools = ["c"]\n')
    with pytest.raises(DefinitionError) as raised:
        rules(file, tmp_path / "gone.toml")
    lines = [line.partition(": ")[0] for line in str(raised.value).splitlines()]
    assert lines == [str(tmp_path / "gone.toml"), "policy.toml:1", "policy.toml:2", "policy.toml:4"]


def test_a_broken_policy_denies_every_call(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('allow = ["*"]\nallow2 = []')
    decision = decided(Policy([("managed", file)]), fetch, {"url": "https://a.org/"})
    assert (decision.kind, decision.reason) == ("deny", "the policy has errors, so nothing may run")


@pytest.mark.large
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a" * (MAX_FILE_BYTES + 1), "more than"),
        (b"\xff", "cannot be read"),
        (b"", "it is empty"),
        (b"allow = [" + b'"a",' * (MAX_RULES + 1) + b"]", f"at most {MAX_RULES} rules"),
    ],
)
def test_an_empty_or_oversized_file_is_refused(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_bytes(data)
    with pytest.raises(DefinitionError, match=said):
        rules(tmp_path / "policy.toml")


@pytest.mark.parametrize("rule", ["tool_{}(amount<=5)", "pay(to=person_{})"])
def test_comparing_rules_costs_no_quadratic_time(rule: str) -> None:
    def work(count: int) -> int:
        text = "allow = [" + ", ".join(f'"{rule.format(at)}"' for at in range(count)) + "]"
        made = [*read_document(text, "policy.toml", "managed").rules]
        assert len(made) == count
        return steps(lambda: list(check_redundancy(made)))

    assert work(400) < 3 * work(200)


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "policy.toml")
    with pytest.raises(DefinitionError, match="cannot be read"):
        rules(tmp_path / "policy.toml")


def test_a_policy_needs_a_file_and_each_only_once(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="takes policy files"):
        rules()
    (tmp_path / "policy.toml").write_text('ask = ["t"]')
    with pytest.raises(DefinitionError, match="passes this file twice"):
        rules(tmp_path / "policy.toml", user=tmp_path / "policy.toml")


# -- lines -------------------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(['"a"', "'b'", '"c\\"["', "'d]'", '"""e\n["""', "'''f\n\n#'''"])
GAPS = st.sampled_from([" ", "\n", "\n# [ \" '\n", "\n\n  "])


@given(
    st.lists(st.tuples(GAPS, WORDS), max_size=5), st.sampled_from(["", "# '\n", 'mode = "ask" # [\n', "deny = [\n]\n"])
)
def test_each_rule_has_the_line_of_its_text(items: list[tuple[str, str]], before: str) -> None:
    text, lines = f"{before}'allow' = [", []
    for gap, word in items:
        text += gap
        lines.append(text.count("\n") + 1)
        text += f"{word},"
    text += "\n]\n\n"
    table = text.count("\n") + 1
    text += '[[rule]]\ndecide = "deny"\ntools = ["["]\n[rule.arguments]\nx = { above = 1 }\n'
    document = read_document(text, "p", "managed")
    found = [one.line for one in (*document.rules, *document.findings)]
    assert sorted(found) == sorted([*lines, table])


# -- tools -------------------------------------------------------------------------------------------------------------


class Box(TypedDict):
    width: int


@tool
async def ship(kind: Literal["parcel", "letter"], weight: int, to: list[str], order: dict[str, int], box: Box) -> str:
    return "shipped"


@pytest.mark.parametrize(
    ("text", "scope", "level", "said"),
    [
        ('deny = ["refnd"]', "managed", "warning", "there is no tool 'refnd': did you mean 'refund'?"),
        ('deny = ["refnd"]', "project", "error", "there is no tool"),
        ('deny = ["files__read"]', "project", "warning", "The rule applies once its tool is loaded"),
        ('deny = ["refunds"]\nask = ["refund"]', "session", "warning", "among the loaded tools: did you mean"),
        ('[[rule]]\ndecide = "deny"\ntags = ["x"]', "session", "warning", "matches none of the loaded tools"),
        ('deny = ["*(recipient=ada)"]', "project", "warning", "matches none of the loaded tools"),
        ('ask = ["*(amonut>5)"]', "project", "error", "did you mean 'amount'?"),
        ('ask = ["refund(amonut>5)"]', "managed", "error", "refund has no argument 'amonut': did you mean 'amount'?"),
        ('ask = ["refund(git push)"]', "managed", "error", "refund has no shell line"),
        ('ask = ["refund(amount between 1 and 5)"]', "managed", "error", "reads as a command; conditions are name<=5"),
        ('[[rule]]\ndecide = "ask"\ntools = ["refund"]\ninto = "pin"', "managed", "error", "the value of into"),
        ('[[rule]]\ndecide = "ask"\ntools = ["refund"]\ninto = "note"', "managed", None, ""),
        ('ask = ["ship(kind=parcell)"]', "managed", "error", "kind is one of 'parcel', 'letter'"),
        ('ask = ["ship(to=ada)"]', "managed", "error", "for its items write to[]"),
        ('ask = ["ship(to[]=ada)"]', "managed", None, ""),
        ('ask = ["ship(box.widht>5)"]', "managed", "error", "has no argument 'box.widht'"),
        ('ask = ["move(files[].path within src)"]', "managed", None, ""),
        ('ask = ["resource:hours", "prompt:greet"]', "project", None, ""),
    ],
)
def test_a_rule_that_fits_no_loaded_tool_is_reported(text: str, scope: Any, level: Any, said: str) -> None:
    found = findings_of(text, scope, tools=[*TOOLS, ship])
    assert [one.level for one in found] == ([] if level is None else [level])
    assert level is None or said in found[0].text


@pytest.mark.parametrize(
    ("name", "is_slip"),
    [*((slip, True) for slip in ("rfund", "refuund", "rafund", "REFUND")), ("ship1", False), ("shop", False)],
)
def test_one_typing_error_is_a_slip_but_not_another_digit(name: str, is_slip: bool) -> None:
    tools = [refund, ship.replace(name="ship2"), ship.replace(name="chop")]
    [found] = findings_of(f'deny = ["{name}"]', "session", tools=tools)
    assert (found.level == "error") is is_slip


def test_a_path_or_url_type_takes_only_its_own_condition(tmp_path: Path) -> None:
    from pydantic import AnyUrl

    @tool
    async def copy(source: Path, origin: AnyUrl) -> str:
        return "copied"

    for name, said in (("source", "is a path"), ("origin", "is a URL")):
        [found] = findings_of(f'deny = ["copy({name}=x)"]', tools=[copy])
        assert (found.level, found.line) == ("error", 1) and said in found.text


@pytest.mark.parametrize("decide", ["allow", "ask", "deny"])
def test_a_rule_that_does_not_fit_a_tool_asks(decide: str, tmp_path: Path, caplog: Any) -> None:
    policy = policy_of(tmp_path, f'{decide} = ["refund(amonut>5)"]')
    with caplog.at_level(logging.WARNING, "ferrule"):
        decisions = [decided(policy, refund, {"amount": 1}) for _ in range(2)]
    assert [one.kind for one in decisions] == ["ask", "ask"]
    [record] = caplog.records
    assert record.getMessage().startswith("p0.toml:1: refund has no argument 'amonut': did you mean 'amount'?")
    assert decide == "allow" or "amonut" in decisions[0].reason


# -- again -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrustedFiles:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return TrustedFiles(tmp_path / "state" / "trusted.json")


def test_reloading_a_broken_file_keeps_the_old_rules(tmp_path: Path, trusted: TrustedFiles, caplog: Any) -> None:
    file = tmp_path / "p0.toml"
    policy = policy_of(tmp_path, 'deny = ["refund"]')
    file.write_text("deny = [")
    trusted.trust(file)
    with caplog.at_level(logging.ERROR, "ferrule"):
        [found] = policy.reload()
    assert found.level == "error" and "the rules loaded before stay" in caplog.text
    assert decided(policy, refund, {"amount": 1}).kind == "deny"
    file.write_text('allow = ["refund"]')
    trusted.trust(file)
    assert policy.reload() == policy.findings == ()
    assert decided(policy, refund, {"amount": 1}).kind == "allow"


def test_of_two_concurrent_reloads_the_last_reader_counts(tmp_path: Path, trusted: TrustedFiles) -> None:
    file = tmp_path / "p.toml"

    class Waiting(TrustedFiles):
        """Looks up what is trusted while another loads the file again, which has changed since it was read."""

        other: threading.Thread | None = None

        def versions(self) -> Mapping[str, TrustedVersion]:
            found = super().versions()
            if self.other is None and "it" in policies:
                self.other = threading.Thread(target=policies["it"].reload)
                file.write_text('allow = ["fetch"]\ndeny = ["refund"]')
                self.trust(file)
                self.other.start()
                self.other.join(0.1)
            return found

    policies: dict[str, Any] = {}
    file.write_text('allow = ["refund"]')
    trusted.trust(file)
    waiting = Waiting(trusted.path)
    policies["it"] = rules(project=file, trusted=waiting)
    policies["it"].reload()
    assert waiting.other is not None
    waiting.other.join(60)
    assert decided(policies["it"], refund, {"amount": 1}).kind == "deny"


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", (ROOT / "docs/policy.md").read_text(), re.DOTALL))
def test_the_examples_of_the_policy_page_are_valid(text: str) -> None:
    assert findings_of(text) == []


def test_files_of_the_same_name_are_distinguished(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.toml").write_text('deny = ["t"]' if name != "c" else 'ask = ["t(n>5)"]')
    policy = rules(tmp_path / "a/policy.toml", user=[tmp_path / "b/policy.toml", tmp_path / "c/policy.toml"])
    names = sorted(rule.name for rule in policy.rules)
    assert names == [f"{tmp_path}/b/policy.toml:1", f"{tmp_path}/c/policy.toml:1", "managed/policy.toml:1"]


@pytest.mark.parametrize(
    "rule",
    [
        *("refund(amount==5)", "refund(amount!=5)", "refund(amount != 5)", "refund(amount=>5)", "refund(amount=<5)"),
        *("refund(kind='gift')", "refund(kind=gift))", f"refund(amount<={'9' * 5000})", "refund(amount = = 5)"),
        *("*(path wihtin .git)", "*(path within )", "*(url hots *.internal)", "*(url host)", "*(command run rm *)"),
        *("read_a, read_b", "read_a|read_b", "read a", "'read_a'"),
    ],
    ids=lambda rule: rule[:40],
)
def test_an_ambiguous_rule_is_an_error(rule: str) -> None:
    for decide in ("allow", "deny"):
        [finding] = findings_of(f'{decide} = ["{rule}"]')
        assert (finding.level, finding.line) == ("error", 1)


def test_a_folder_may_be_quoted(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, """deny = ['*(path within "my (own) files"|x)']""")
    [condition] = policy.rules[0].arguments.values()
    assert condition.to_json() == {"within": ["my (own) files", "x"]}


@pytest.mark.parametrize("command", ["host example.org", "make CC=gcc", "npm run *", "docker run *", "command -v *"])
def test_a_bare_command_is_read_as_a_command(command: str) -> None:
    assert findings_of(f'deny = ["shell({command})"]') == []
