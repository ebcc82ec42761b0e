"""The verdict of many rules: deny, then ask, then allow, in any order; nothing unknown is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule import Runner, ToolCall, ToolContext, Toolset, tool
from ferrule.errors import DefinitionError
from ferrule.policy import Policy, TrustedFiles
from ferrule.policy.conditions import Commands
from ferrule.policy.rule import JudgedCall, Rule
from ferrule.policy.verdict import Entry, ToolRules
from ferrule.values.decision import Decision
from policy.policies import decided, fetch, findings_of, move, policy_of, refund, rules_of, shell, write_file
from policy.strategies import CONDITIONS, VALUES, fitting

CONTEXT = ToolContext[Any]()


# -- tables ------------------------------------------------------------------------------------------------------------


def kind_of(policy: Any, made: Any, arguments: dict[str, Any], **context: Any) -> str:
    return decided(policy, made, arguments, **context).kind


POLICY = """
allow = ["refund(amount<=100)", "shell(pytest *)", "shell(git status)", "write_file(path within src)"]
ask = ["refund(currency=XAU)"]
deny = ["*(url host *.internal)", "shell(rm *)", "refund(note=*gift*)"]
"""


@pytest.mark.parametrize(
    ("made", "arguments", "kind"),
    [
        (refund, {"amount": 100}, "allow"),
        (refund, {"amount": 101}, "ask"),
        (refund, {"amount": 1, "currency": "XAU"}, "ask"),
        (refund, {"amount": 1, "note": "a gift card"}, "deny"),
        (fetch, {"url": "https://db.internal/"}, "deny"),
        (fetch, {"url": "https://db.internal\\@example.org/"}, "ask"),
        (shell, {"command": "pytest -q"}, "allow"),
        (shell, {"command": "pytest -q; git push"}, "ask"),
        (shell, {"command": "pytest $ARGS"}, "ask"),
        (shell, {"command": "pytest; rm -r x"}, "deny"),
        (shell, {"command": "pytest > src/out"}, "ask"),
        (write_file, {"path": "src/a"}, "allow"),
        (write_file, {"path": "src/../b"}, "ask"),
    ],
)
def test_deny_comes_before_ask_and_ask_before_allow(
    made: Any, arguments: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    assert kind_of(policy_of(tmp_path, POLICY), made, arguments, working_directory=tmp_path) == kind


@pytest.mark.parametrize(
    ("mode", "kinds"),
    [
        ("ask", ["allow", "ask", "allow"]),
        ("read_only", ["deny", "deny", "allow"]),
        ("never_ask", ["allow", "deny", "allow"]),
    ],
)
def test_a_mode_changes_the_verdict_of_the_rules(mode: str, kinds: list[str], tmp_path: Path) -> None:
    policy = policy_of(tmp_path, f'mode = "{mode}"\n{POLICY}')
    calls: Any = [(refund, {"amount": 1}), (refund, {"amount": 900}), (fetch, {"url": "https://a.org/"})]
    assert [kind_of(policy, made, arguments) for made, arguments in calls] == kinds


def test_the_modes_of_several_files_all_hold(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 'mode = "never_ask"', 'mode = "read_only"\nask = ["fetch"]')
    assert policy.modes == {"never_ask", "read_only"}
    assert kind_of(policy, fetch, {"url": "https://a.org/"}) == "deny"
    assert kind_of(policy, refund, {"amount": 1}) == "deny"


# -- order, and what is not known --------------------------------------------------------------------------------------

RULES = st.lists(
    st.builds(
        lambda decide, tools, arguments, line: Rule(
            decide, (tools,), arguments=fitting(decide, arguments), source="p", line=line
        ),
        st.sampled_from(["allow", "ask", "deny"]),
        st.sampled_from(["*", "t", "u", "t*"]),
        st.dictionaries(st.sampled_from(["a", "b"]), CONDITIONS, max_size=2),
        st.integers(1, 3),
    ),
    max_size=5,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["a", "b"]), VALUES)
MODES = st.sets(st.sampled_from(["read_only", "never_ask"])).map(lambda given: dict.fromkeys(given, "p:1"))


class Kind:
    """The traits of a tool, for a policy that is asked without a runner."""

    name, tags, destructive, recorded = "t", (), None, False

    def __init__(self, read_only: bool) -> None:
        self.read_only = read_only


def verdict(given: list[Rule], arguments: dict[str, Any], modes: Any = None, *, read_only: bool = False) -> str:
    made = ToolRules.from_entries(map(Entry, given))
    found = made.verdict(JudgedCall("t", arguments, CONTEXT, Kind(read_only)), modes or {})
    return "allow" if found is None else found.kind


RANKS = ["allow", "ask", "deny"]


@given(RULES, RULES, ARGUMENTS, MODES, st.booleans())
def test_a_further_ask_or_deny_never_widens(
    some: list[Rule], more: list[Rule], arguments: dict[str, Any], modes: Any, read_only: bool
) -> None:
    stricter = [rule for rule in more if rule.decide != "allow"]
    before = verdict(some, arguments, modes, read_only=read_only)
    after = verdict([*some, *stricter], arguments, modes, read_only=read_only)
    assert RANKS.index(after) >= RANKS.index(before)


@given(RULES, ARGUMENTS)
def test_an_allowed_call_matches_an_allow_and_surely_nothing_else(some: list[Rule], arguments: Any) -> None:
    judged = JudgedCall("t", arguments, CONTEXT, Kind(False))
    answers = [(rule.decide, rule.matches(judged)) for rule in some]
    nothing_else = all(answer is False for decide, answer in answers if decide != "allow")
    is_matched = ("allow", True) in answers
    # Of the commands of a line each may be allowed by another rule.
    lines = [rule for rule in some if any(isinstance(one, Commands) for one in rule.arguments.values())]
    found = verdict(some, arguments) == "allow"
    assert found is (nothing_else and is_matched) or (found and nothing_else and len(lines) > 1)


@settings(max_examples=20)
@given(
    st.permutations(
        ['allow = ["refund"]', 'ask = ["refund(amount>5)"]', 'mode = "never_ask"', 'deny = ["refund(amount>9)"]']
    ),
    st.lists(st.sampled_from(["managed", "user", "session"]), min_size=4, max_size=4),
)
def test_files_of_any_scope_in_any_order_are_the_same_policy(
    tmp_path_factory: Any, texts: list[str], scopes: Any
) -> None:
    folder = tmp_path_factory.mktemp("p")
    files = [folder / f"p{at}.toml" for at in range(4)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    policy = Policy(zip(scopes, files, strict=True), trusted=TrustedFiles(folder / "trusted.json"))
    assert [kind_of(policy, refund, {"amount": amount}) for amount in (1, 6, 10)] == ["allow", "deny", "deny"]


# -- forms -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("short", "table"),
    [
        ("refund(amount<=100)", 'tools = ["refund"]\narguments = { amount = { at_most = 100 } }'),
        ("refund(amount < 1.5)", 'tools = ["refund"]\narguments = { amount = { below = 1.5 } }'),
        ("refund(amount>=-1)", 'tools = ["refund"]\narguments = { amount = { at_least = -1 } }'),
        ("t(kind=refund)", 'tools = ["t"]\narguments = { kind = { equals = "refund" } }'),
        ("t(kind=re*)", 'tools = ["t"]\narguments = { kind = { glob = "re*" } }'),
        ('t(kind="5")', 'tools = ["t"]\narguments = { kind = { equals = "5" } }'),
        ("t(on=true)", 'tools = ["t"]\narguments = { on = { equals = true } }'),
        ("t(currency in EUR|USD)", 'tools = ["t"]\narguments = { currency = { one_of = ["EUR", "USD"] } }'),
        ("t(path within notes|src)", 'tools = ["t"]\narguments = { path = { within = ["notes", "src"] } }'),
        ("t(url host *.example.org)", 'tools = ["t"]\narguments = { url = { hosts = ["*.example.org"] } }'),
        ("t(cmd runs git log --x=%h,%s)", 'tools = ["t"]\narguments = { cmd = { commands = ["git log --x=%h,%s"] } }'),
        ("t(a=1, b=2)", 'tools = ["t"]\narguments = { b = { equals = 2 }, a = { equals = 1 } }'),
    ],
)
def test_a_short_form_and_its_table_are_one_rule(short: str, table: str) -> None:
    [one] = rules_of(f"ask = ['{short}']")
    [other] = rules_of(f'[[rule]]\ndecide = "ask"\n{table}')
    assert one == other


# -- what a rule speaks of ---------------------------------------------------------------------------------------------


def test_an_allow_needs_all_values_and_a_deny_one(tmp_path: Path) -> None:
    allows = policy_of(tmp_path, 'allow = ["move(files[].path within src)"]')
    denies = policy_of(tmp_path, 'allow = ["*"]\ndeny = ["move(files[].path within src)"]')
    inside, outside = {"path": "src/a"}, {"path": "b"}
    lists: list[list[dict[str, str]]] = [[inside], [inside, outside], [outside], [], [{"to": "src"}, inside]]
    for policy, kinds in ((allows, "allow ask ask ask ask"), (denies, "deny deny allow allow deny")):
        found = [kind_of(policy, move, {"files": files}, working_directory=tmp_path) for files in lists]
        assert found == kinds.split()


@pytest.mark.parametrize("place", ["commands", "jobs[].commands", "jobs[].commands[]"])
@pytest.mark.parametrize(
    ("beside", "answer"),
    [({"reason": "x"}, True), ({"note": "x"}, None), ({"cwd": "x"}, None), ({"args": ["x"]}, False)],
)
def test_options_beside_a_list_of_lines_count_for_each_line(
    place: str, beside: dict[str, Any], answer: bool | None
) -> None:
    job = {"commands": ["./run", "./run"], **beside}
    rule = Rule("allow", ("*",), arguments={place: Commands(("./run",))})
    arguments = {"jobs": [job]} if place.startswith("jobs") else job
    assert rule.matches(JudgedCall("t", arguments, CONTEXT)) is answer


def test_rules_match_tags_traits_and_principals(tmp_path: Path) -> None:
    made = refund.replace(tags=["money"], destructive=lambda arguments: arguments["amount"] > 10)
    text = '[[rule]]\ndecide = "{0}"\n{1} = ["{2}"]\n'
    tags = policy_of(tmp_path, text.format("deny", "tags", "money"))
    assert kind_of(tags, made, {"amount": 1}) == "deny" and kind_of(tags, refund, {"amount": 1}) == "ask"
    traits = policy_of(tmp_path, text.format("allow", "traits", "not destructive"))
    assert [kind_of(traits, made, {"amount": amount}) for amount in (1, 11)] == ["allow", "ask"]
    people = policy_of(tmp_path, text.format("deny", "principals", "eve*"), 'allow = ["*"]')
    kinds = [kind_of(people, refund, {"amount": 1}, principal=who) for who in ("eve2", "ada", None)]
    assert kinds == ["deny", "allow", "ask"]


@pytest.mark.parametrize(
    ("who", "kind"),
    [
        *((who, "deny") for who in ("josé", "team-1")),
        ("ada", "allow"),
        *((who, "ask") for who in ("José", "jose\u0301", "j\u043esé", " josé ", "Team-1", "", " ", None)),
    ],
)
def test_a_principal_that_may_be_a_denied_one_is_asked_about(who: str | None, kind: str, tmp_path: Path) -> None:
    text = 'allow = ["*"]\n[[rule]]\ndecide = "deny"\ntools = ["*"]\nprincipals = ["jos\\u00e9", "team-*"]'
    policy = policy_of(tmp_path, text)
    assert decided(policy, refund, {"amount": 1}, principal=who).kind == kind
    allowing = policy_of(tmp_path, text.replace('allow = ["*"]', "").replace('"deny"', '"allow"'))
    assert decided(allowing, refund, {"amount": 1}, principal=who).kind == ("allow" if kind == "deny" else "ask")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('allow = ["*"]\ndeny = ["refund"]', "deny"),
        ('allow = ["*"]\nask = ["ref*(amount>=1)"]', "ask"),
        ('allow = ["refund"]', "ask"),
        ('allow = ["shop_refund"]', "allow"),
    ],
)
@pytest.mark.parametrize("own", [True, False])
async def test_a_deny_holds_for_a_tool_mounted_under_another_name(
    text: str, kind: str, own: bool, tmp_path: Path
) -> None:
    policy = policy_of(tmp_path, text)
    shop = Runner([refund], guards=[policy] if own else [])
    outer = Runner(Toolset(shop.as_tools()).prefixed("shop_"), guards=[] if own else [policy])
    assert (await outer.decide(ToolCall("", "shop_refund", {"amount": 1}))).kind == kind
    found = findings_of(text, "session", tools=outer.tools)
    assert any("there is no tool 'refund'" in one.text for one in found) is ('allow = ["refund"]' in text)


def test_several_rules_may_allow_the_commands_of_one_line(tmp_path: Path) -> None:
    @tool
    async def run(command: str, cwd: str = ".") -> str:
        return "run"

    policy = policy_of(
        tmp_path,
        'allow = ["run(pytest *)", "run(ls *, cwd within src)"]\n[[rule]]\ndecide = "allow"\ntools = ["run"]\n'
        'arguments = { command = { commands = ["echo *"], within = ["out"] } }',
    )
    said = {"working_directory": tmp_path}
    both = {"command": "pytest && ls -l"}
    assert kind_of(policy, run, both, **said) == "ask"
    decision = decided(policy, run, {**both, "cwd": "src"}, **said)
    assert (decision.kind, decision.rule) == ("allow", "p0.toml:1")
    assert decision.reason == "the policy says: allow run(ls *, cwd within src); allow run(pytest *)"
    assert kind_of(policy, run, {"command": "pytest -q; echo ok > out/log"}, **said) == "allow"
    assert kind_of(policy, run, {"command": "pytest -q; echo ok > log"}, **said) == "ask"


def test_a_link_in_the_working_directory_widens_no_allow(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "REVIEW.md").symlink_to("src/prices.py")
    (tmp_path / "docs").symlink_to("src")
    allowing = policy_of(tmp_path, 'allow = ["write_file(path within REVIEW.md|docs/sub|notes)"]')
    for path, kind in (("REVIEW.md", "ask"), ("src/prices.py", "ask"), ("docs/sub/a", "ask"), ("notes/a", "allow")):
        assert decided(allowing, write_file, {"path": path}, working_directory=tmp_path).kind == kind
    absolute = policy_of(tmp_path, f'allow = ["write_file(path within {tmp_path}/docs)"]')
    assert decided(absolute, write_file, {"path": "docs/a"}, working_directory=tmp_path).kind == "allow"
    denying = policy_of(tmp_path, 'deny = ["write_file(path within docs)"]')
    assert decided(denying, write_file, {"path": "src/a"}, working_directory=tmp_path).kind == "deny"


def test_two_asks_show_both_reasons_and_may_ask_for_a_value(tmp_path: Path) -> None:
    rule = '[[rule]]\ndecide = "ask"\ntools = ["refund"]\nreason = "{0}"\n'
    policy = policy_of(tmp_path, rule.format("which note?") + 'into = "note"', rule.format("is it right?"))
    decision = decided(policy, refund, {"amount": 1})
    assert (decision.reason, decision.into) == ("which note?; is it right?", "note")
    assert decision.rule == "p0.toml:1; p1.toml:1"


def test_a_policy_lifts_no_other_guards_answer(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 'allow = ["*"]')

    def other(call: ToolCall, context: ToolContext[Any]) -> Decision:
        return Decision("ask", "really?")

    runner = Runner([refund], guards=[policy, other])
    assert runner.run_sync(ToolCall("c1", "refund", {"amount": 1})).status == "denied"


def test_a_condition_on_a_private_value_is_judged_but_not_shown(tmp_path: Path) -> None:
    @tool(private=["tenant"])
    async def pay(amount: int, tenant: str) -> str:
        return "paid"

    policy = policy_of(tmp_path, 'deny = ["pay(tenant=acme)"]')
    decision = decided(policy, pay.bind(tenant="acme"), {"amount": 1})
    assert (decision.kind, decision.reason) == ("deny", "the policy has a rule for this call")
    assert kind_of(policy, pay.bind(tenant="other"), {"amount": 1}) == "ask"


def test_a_decision_names_the_rules_and_their_answers(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, POLICY)
    found = policy.decide(ToolCall("c1", "refund", {"amount": 1, "currency": "XAU"}), CONTEXT, tool=refund)
    assert found.decision is not None and found.decision.kind == "ask"
    assert [rule.text for rule in found.deciding_rules] == ["ask refund(currency=XAU)"]
    said = {rule.text: answer for rule, answer in found.answers}
    assert said["allow refund(amount<=100)"] is True and said["deny shell(rm *)"] is False
    assert len(said) == len(policy.rules) == 8


@pytest.mark.parametrize(
    "given",
    [
        *({"decide": "maybe", "tools": ("t",)}, {"decide": "deny"}, {"decide": "deny", "tools": ("t?",)}),
        *({"decide": "deny", "tools": ("",)}, {"decide": "deny", "traits": ("harmless",)}),
        {"decide": "deny", "traits": ("read_only", "not read_only")},
        {"decide": "deny", "tools": ("t",), "into": "pin"},
    ],
)
def test_an_impossible_rule_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        Rule(**given)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (
            'tools = ["a", "b*"]\narguments = { n = { above = 1, at_most = 9 }, kind = { one_of = ["x", true] } }',
            "deny a, b*(kind is x or true, n above 1 and at most 9)",
        ),
        ('tags = ["money"]\ntraits = ["destructive"]', "deny * with tags money with traits destructive"),
        ('tools = ["t"]\narguments = { path = { within = ["a", "b"] } }', "deny t(path within a or b)"),
    ],
)
def test_a_rule_has_a_readable_text(table: str, text: str) -> None:
    [rule] = rules_of(f'[[rule]]\ndecide = "deny"\n{table}')
    assert rule.text == text


def test_the_question_names_the_unknown_part_of_a_line(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 'allow = ["shell(pytest *)"]\nask = ["shell(git push *)"]\ndeny = ["shell(rm *)"]\n')
    decision = decided(policy, shell, {"command": "pytest; git commit -m rm"})
    assert decision.kind == "ask" and decision.reason.endswith("; unknown is 'git commit -m rm'")
    decision = decided(policy, shell, {"command": "pytest $x"})
    assert "deny shell(rm *); ask shell(git push *)" in decision.reason and decision.rule == "p0.toml:3; p0.toml:2"
    on_one_line = policy_of(tmp_path, 'deny = ["shell(rm *)", "shell(git push *)"]\n')
    assert decided(on_one_line, shell, {"command": "pytest $x"}).rule == "p0.toml:1"
