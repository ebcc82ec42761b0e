"""The one verdict over many rules: deny, ask, allow, whatever their order, and nothing that is not known is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from attacks.sample import rows
from ferrule import Runner, ToolCall, ToolContext, Toolset, tool
from ferrule.errors import DefinitionError
from ferrule.policy import Policy, TrustedFiles
from ferrule.policy.conditions import Commands
from ferrule.policy.rule import Rule
from ferrule.policy.verdict import Entry, ToolRules
from ferrule.values.decision import Decision
from policy.policies import decided, fetch, findings_of, move, policy_of, refund, rules_of, shell, write_file
from policy.strategies import CONDITIONS, VALUES, fitting

CONTEXT = ToolContext[Any]()


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows("rules"), ids=lambda row: f"{row['call']}: {row['why']}")
def test_the_rows_of_rules_in_the_sample(row: dict[str, Any], tmp_path: Path) -> None:
    kinds = [kind for kind in ("deny", "ask", "allow") if row[kind]]
    policy = policy_of(tmp_path, *(f"{kind} = {row[kind]}" for kind in kinds))
    made = refund.replace(name=row["call"])
    decision = decided(policy, made, {"amount": 1})
    expected = {"deny": {"deny"}, "ask_or_deny": {"ask", "deny"}, "documented": {"allow"}, "unknown": {"ask"}}
    assert decision.kind in expected[row["expect"]]


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
        (refund, {"amount": 1, "note": None}, "allow"),
        (fetch, {"url": "https://example.org/"}, "allow"),
        (fetch, {"url": "https://db.internal/"}, "deny"),
        (fetch, {"url": "https://db.internal\\@example.org/"}, "ask"),
        (shell, {"command": "pytest -q"}, "allow"),
        (shell, {"command": "pytest -q; git status"}, "allow"),
        (shell, {"command": "pytest -q; git push"}, "ask"),
        (shell, {"command": "pytest $ARGS"}, "ask"),
        (shell, {"command": "pytest; rm -r x"}, "deny"),
        (shell, {"command": "pytest > src/out"}, "ask"),
        (write_file, {"path": "src/a"}, "allow"),
        (write_file, {"path": "src/../b"}, "ask"),
    ],
)
def test_a_call_is_decided_by_deny_then_ask_then_allow_and_else_asked_about_where_it_changes_things(
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
def test_a_mode_comes_on_top_of_what_the_rules_say(mode: str, kinds: list[str], tmp_path: Path) -> None:
    policy = policy_of(tmp_path, f'mode = "{mode}"\n{POLICY}')
    calls: list[tuple[Any, dict[str, Any]]] = [
        (refund, {"amount": 1}),
        (refund, {"amount": 900}),
        (fetch, {"url": "https://a.org/"}),
    ]
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
    """What a tool is, for a policy that is asked without a runner."""

    def __init__(self, read_only: bool, tags: tuple[str, ...] = (), destructive: bool | None = None) -> None:
        self.name, self.tags, self.read_only, self.destructive = "t", tags, read_only, destructive


def verdict(given: list[Rule], arguments: dict[str, Any], modes: Any = None, *, read_only: bool = False) -> str:
    made = ToolRules.from_entries(map(Entry, given))
    found = made.verdict(ToolCall("c1", "t", arguments), CONTEXT, Kind(read_only), modes or {})
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


@given(RULES, RULES, ARGUMENTS)
def test_a_further_allow_changes_only_calls_that_no_other_rule_may_match(
    some: list[Rule], more: list[Rule], arguments: dict[str, Any]
) -> None:
    call = ToolCall("c1", "t", arguments)
    spoken_of = any(rule.decide != "allow" and rule.matches(call, CONTEXT, Kind(False)) is not False for rule in some)
    after = verdict([*some, *(rule for rule in more if rule.decide == "allow")], arguments)
    assert not spoken_of or after == verdict(some, arguments)


@given(RULES, ARGUMENTS, MODES, st.randoms())
def test_the_order_of_the_rules_changes_nothing(
    given_rules: list[Rule], arguments: Any, modes: Any, random: Any
) -> None:
    shuffled = random.sample(given_rules, len(given_rules))
    assert verdict(shuffled, arguments, modes) == verdict(given_rules, arguments, modes)


@given(RULES, ARGUMENTS)
def test_what_is_allowed_is_matched_by_an_allow_and_surely_by_nothing_else(some: list[Rule], arguments: Any) -> None:
    call = ToolCall("c1", "t", arguments)
    answers = [(rule.decide, rule.matches(call, CONTEXT, Kind(False))) for rule in some]
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
        ("read_*", 'tools = ["read_*"]'),
        ("refund(amount<=100)", 'tools = ["refund"]\narguments = { amount = { at_most = 100 } }'),
        ("refund(amount < 1.5)", 'tools = ["refund"]\narguments = { amount = { below = 1.5 } }'),
        ("refund(amount>=-1)", 'tools = ["refund"]\narguments = { amount = { at_least = -1 } }'),
        ("refund(amount>1)", 'tools = ["refund"]\narguments = { amount = { above = 1 } }'),
        ("t(kind=refund)", 'tools = ["t"]\narguments = { kind = { equals = "refund" } }'),
        ("t(kind=re*)", 'tools = ["t"]\narguments = { kind = { glob = "re*" } }'),
        ('t(kind="re*")', 'tools = ["t"]\narguments = { kind = { equals = "re*" } }'),
        ("t(kind=5)", 'tools = ["t"]\narguments = { kind = { equals = 5 } }'),
        ('t(kind="5")', 'tools = ["t"]\narguments = { kind = { equals = "5" } }'),
        ("t(on=true)", 'tools = ["t"]\narguments = { on = { equals = true } }'),
        ("t(currency in EUR|USD)", 'tools = ["t"]\narguments = { currency = { one_of = ["EUR", "USD"] } }'),
        ("t(path within notes|src)", 'tools = ["t"]\narguments = { path = { within = ["notes", "src"] } }'),
        ("t(url host *.example.org)", 'tools = ["t"]\narguments = { url = { hosts = ["*.example.org"] } }'),
        (
            "t(command runs git log --format=%h,%s)",
            'tools = ["t"]\narguments = { command = { commands = ["git log --format=%h,%s"] } }',
        ),
        ("t(a=1, b=2)", 'tools = ["t"]\narguments = { b = { equals = 2 }, a = { equals = 1 } }'),
        ("t(files[].to within src)", 'tools = ["t"]\narguments = { "files[].to" = { within = ["src"] } }'),
    ],
)
def test_a_short_form_and_its_table_are_one_rule(short: str, table: str) -> None:
    [one] = rules_of(f"ask = ['{short}']")
    [other] = rules_of(f'[[rule]]\ndecide = "ask"\n{table}')
    assert one == other


@given(CONDITIONS, st.sampled_from(["allow", "ask", "deny"]))
def test_what_is_written_of_a_condition_is_read_as_it(one: Any, decide: str) -> None:
    def toml(value: Any) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(toml, value))}]"
        return ("true" if value else "false") if isinstance(value, bool) else repr(value).replace("'", '"')

    one = fitting(decide, {"x": one})["x"]
    written = ", ".join(f"{key} = {toml(value)}" for key, value in one.to_json().items())
    [rule] = rules_of(f'[[rule]]\ndecide = "{decide}"\ntools = ["t"]\narguments = {{ x = {{ {written} }} }}')
    assert rule.arguments["x"] == one


# -- what a rule speaks of ---------------------------------------------------------------------------------------------

FITTING = {"*", "t", "t*"}
"""Of the globs below, those that fit the name `t`."""
SPEAKING = st.builds(
    lambda decide, tools, tags, traits, principals, arguments: Rule(
        decide,
        tools if tags or traits or principals else tools or ("*",),
        tags,
        traits,
        principals,
        fitting(decide, arguments),
    ),
    st.sampled_from(RANKS),
    st.sampled_from([(), ("*",), ("t",), ("u",), ("u", "t*")]),
    st.sampled_from([(), ("x",), ("x", "y")]),
    st.sampled_from([(), ("destructive",), ("not destructive",), ("not read_only", "destructive")]),
    st.sampled_from([(), ("t",), ("u",), ("t*", "u")]),
    st.dictionaries(st.sampled_from(["a", "b"]), CONDITIONS, max_size=1),
)
KINDS = st.builds(Kind, st.booleans(), st.sampled_from([(), ("x",), ("y", "z")]), st.sampled_from([True, False, None]))
PEOPLE = st.sampled_from([ToolContext[Any](principal=who) for who in (None, "t", "u", "other")])


@given(SPEAKING, KINDS | st.none(), PEOPLE, ARGUMENTS)
def test_a_rule_speaks_of_a_call_where_all_that_it_says_is_so_and_not_where_any_is_not(
    rule: Rule, kind: Kind | None, context: ToolContext, arguments: dict[str, Any]
) -> None:
    of_tool: list[bool | None] = [not rule.tools or not FITTING.isdisjoint(rule.tools)]
    if kind is None:
        of_tool += [None] * bool(rule.tags or rule.traits)
    else:
        of_tool += [not rule.tags or not set(kind.tags).isdisjoint(rule.tags)]
        has = {"destructive": kind.destructive, "not read_only": not kind.read_only}
        has["not destructive"] = None if kind.destructive is None else not kind.destructive
        of_tool += [has[trait] for trait in rule.traits]
    whole = list(of_tool)
    if rule.principals:
        people = {"t": FITTING, "u": {"u"}}
        who = context.principal
        whole.append(None if who is None else not people.get(who, set()).isdisjoint(rule.principals))
    for place, one in rule.arguments.items():
        test = one.matches if rule.decide == "allow" else one.has_match
        whole.append(test(arguments.get(place), context))
    assert rule.matches(ToolCall("c1", "t", arguments), context, kind) is _all_of(whole)
    assert kind is None or rule.may_match_tool(kind) is (_all_of(of_tool) is not False)


def _all_of(answers: list[bool | None]) -> bool | None:
    return False if False in answers else None if None in answers else True


@given(SPEAKING, SPEAKING, KINDS, PEOPLE, ARGUMENTS)
def test_a_rule_that_covers_a_milder_one_matches_whatever_that_one_does(
    one: Rule, other: Rule, kind: Kind, context: ToolContext, arguments: dict[str, Any]
) -> None:
    call = ToolCall("c1", "t", arguments)
    if RANKS.index(one.decide) >= RANKS.index(other.decide) and one.covers(other):
        assert other.matches(call, context, kind) is not True or one.matches(call, context, kind) is True


@given(SPEAKING, SPEAKING)
def test_a_rule_covers_itself_with_anything_more_said(one: Rule, more: Rule) -> None:
    narrower = Rule(
        one.decide,
        one.tools or more.tools,
        one.tags or more.tags,
        one.traits or more.traits,
        one.principals or more.principals,
        fitting(one.decide, {**more.arguments, **one.arguments}),
    )
    # For a command, a condition on another argument allows that argument, which the rule without it does not.
    allows_more = one.decide == "allow" and one.has_commands and narrower.arguments.keys() > one.arguments.keys()
    assert one.covers(one) and one.covers(narrower) is not allows_more


def test_of_several_values_all_have_to_be_so_for_an_allow_and_one_for_a_deny(tmp_path: Path) -> None:
    allows = policy_of(tmp_path, 'allow = ["move(files[].path within src)"]')
    denies = policy_of(tmp_path, 'allow = ["*"]\ndeny = ["move(files[].path within src)"]')
    inside, outside = {"path": "src/a"}, {"path": "b"}
    lists: list[list[dict[str, str]]] = [[inside], [inside, outside], [outside], [], [{"to": "src"}, inside]]
    said = {"working_directory": tmp_path}
    assert [kind_of(allows, move, {"files": files}, **said) for files in lists] == ["allow", "ask", "ask", "ask", "ask"]
    assert [kind_of(denies, move, {"files": files}, **said) for files in lists] == [
        "deny",
        "deny",
        "allow",
        "allow",
        "deny",
    ]


@pytest.mark.parametrize("place", ["commands", "commands[]", "jobs[].commands", "jobs[].commands[]"])
@pytest.mark.parametrize(
    ("beside", "answer"),
    [
        ({}, True),
        ({"reason": "x"}, True),
        ({"note": "x"}, None),
        ({"env": {"A": "b"}}, None),
        ({"cwd": "x"}, None),
        ({"args": ["x"]}, False),
    ],
)
def test_what_stands_beside_a_list_of_lines_counts_for_each_of_its_lines(
    place: str, beside: dict[str, Any], answer: bool | None
) -> None:
    job = {"commands": ["./run", "./run"], **beside}
    rule = Rule("allow", ("*",), arguments={place: Commands(("./run",))})
    call = ToolCall("c1", "t", {"jobs": [job]} if place.startswith("jobs") else job)
    assert rule.matches(call, CONTEXT, None) is answer


def test_tags_traits_and_principals_are_asked_of_the_tool_and_the_context(tmp_path: Path) -> None:
    made = refund.replace(tags=["money"], destructive=lambda arguments: arguments["amount"] > 10)
    text = '[[rule]]\ndecide = "{0}"\n{1} = ["{2}"]\n'
    tags = policy_of(tmp_path, text.format("deny", "tags", "money"))
    assert kind_of(tags, made, {"amount": 1}) == "deny" and kind_of(tags, refund, {"amount": 1}) == "ask"
    traits = policy_of(tmp_path, text.format("allow", "traits", "not destructive"))
    assert [kind_of(traits, made, {"amount": amount}) for amount in (1, 11)] == ["allow", "ask"]
    people = policy_of(tmp_path, text.format("deny", "principals", "eve*"), 'allow = ["*"]')
    assert [kind_of(people, refund, {"amount": 1}, principal=who) for who in ("eve2", "ada", None)] == [
        "deny",
        "allow",
        "ask",
    ]


@pytest.mark.parametrize(
    ("who", "kind"),
    [
        ("josé", "deny"),
        ("ada", "allow"),
        ("José", "ask"),
        ("jose\u0301", "ask"),
        ("jоsé", "ask"),  # with a Cyrillic letter
        (" josé ", "ask"),
        ("team-1", "deny"),
        ("Team-1", "ask"),
        ("", "ask"),
        (" ", "ask"),
        (None, "ask"),
    ],
)
def test_a_principal_that_may_be_one_of_those_denied_is_asked_about(who: str | None, kind: str, tmp_path: Path) -> None:
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
        ('allow = ["*"]\ndeny = ["shop_refund"]', "deny"),
        ('allow = ["refund"]', "ask"),
        ('allow = ["shop_refund"]', "allow"),
        ('allow = ["*"]\ndeny = ["fund"]', "allow"),
    ],
)
@pytest.mark.parametrize("own", [True, False])
async def test_a_deny_by_the_name_in_the_runner_that_a_tool_comes_from_holds_wherever_it_is_mounted(
    text: str, kind: str, own: bool, tmp_path: Path
) -> None:
    policy = policy_of(tmp_path, text)
    shop = Runner([refund], guards=[policy] if own else [])
    outer = Runner(Toolset(shop.as_tools()).prefixed("shop_"), guards=[] if own else [policy])
    assert (await outer.decide(ToolCall("", "shop_refund", {"amount": 1}))).kind == kind
    found = findings_of(text, "session", tools=outer.tools)
    assert any("there is no tool 'refund'" in one.text for one in found) is ('allow = ["refund"]' in text)


def test_commands_of_one_line_may_be_allowed_by_several_rules_whose_other_conditions_hold(tmp_path: Path) -> None:
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
    call, context = ToolCall("c1", "run", {**both, "cwd": "src"}), ToolContext[Any](**said)
    assert len(policy.decide(call, context, tool=run).deciding_rules) == 2
    assert kind_of(policy, run, {"command": "pytest -q; echo ok > out/log"}, **said) == "allow"
    assert kind_of(policy, run, {"command": "pytest -q; echo ok > log"}, **said) == "ask"


def test_an_ask_may_ask_for_a_value_and_of_two_asks_both_reasons_are_shown(tmp_path: Path) -> None:
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


def test_a_condition_of_what_is_private_is_judged_and_not_shown(tmp_path: Path) -> None:
    @tool(private=["tenant"])
    async def pay(amount: int, tenant: str) -> str:
        return "paid"

    policy = policy_of(tmp_path, 'deny = ["pay(tenant=acme)"]')
    decision = decided(policy, pay.bind(tenant="acme"), {"amount": 1})
    assert (decision.kind, decision.reason) == ("deny", "the policy has a rule for this call")
    assert kind_of(policy, pay.bind(tenant="other"), {"amount": 1}) == "ask"


def test_each_rule_says_what_it_answers_and_which_of_them_spoke(tmp_path: Path) -> None:
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
        {"decide": "maybe", "tools": ("t",)},
        {"decide": "deny"},
        {"decide": "deny", "tools": ("t?",)},
        {"decide": "deny", "tools": ("",)},
        {"decide": "deny", "traits": ("harmless",)},
        {"decide": "deny", "traits": ("read_only", "not read_only")},
        {"decide": "deny", "tools": ("t",), "into": "pin"},
    ],
)
def test_a_rule_that_says_nothing_that_can_be_is_none(given: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        Rule(**given)


def test_a_decimal_is_compared_as_the_number_it_is(tmp_path: Path) -> None:
    from decimal import Decimal

    @tool
    async def pay(amount: Annotated[Decimal, Field(max_digits=9)]) -> str:
        return "paid"

    policy = policy_of(tmp_path, 'allow = ["pay(amount<=100)"]', tools=[pay])
    assert [kind_of(policy, pay, {"amount": amount}) for amount in ("99.99", "100.01")] == ["allow", "ask"]


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ('tools = ["refund"]', "deny refund"),
        (
            'tools = ["a", "b*"]\narguments = { n = { above = 1, at_most = 9 }, kind = { one_of = ["x", true] } }',
            "deny a, b*(kind is x or true, n above 1 and at most 9)",
        ),
        ('tags = ["money"]\ntraits = ["destructive"]', "deny * with tags money with traits destructive"),
        ('tools = ["t"]\narguments = { path = { within = ["a", "b"] } }', "deny t(path within a or b)"),
        ('tools = ["t"]\narguments = { kind = { glob = "a*" } }', "deny t(kind like a*)"),
        ('tools = ["t"]\narguments = { url = { hosts = ["a.org"] } }', "deny t(url host a.org)"),
        ('tools = ["t"]\narguments = { cmd = { commands = ["rm *"] } }', "deny t(cmd runs rm *)"),
    ],
)
def test_a_table_is_told_as_a_person_reads_it(table: str, text: str) -> None:
    [rule] = rules_of(f'[[rule]]\ndecide = "deny"\n{table}')
    assert rule.text == text


def test_what_cannot_be_known_of_a_line_is_named_in_the_question(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, 'allow = ["shell(pytest *)"]\nask = ["shell(git push *)"]\ndeny = ["shell(rm *)"]\n')
    doubts = {
        "source .venv/bin/activate && pytest": "what 'source' does with its arguments",
        "pytest; git commit -m rm": "'git commit -m rm'",
        "pytest `x`": "a command in backquotes",
        "pytest | sudo $x": "'sudo …'",
    }
    for line, doubt in doubts.items():
        decision = decided(policy, shell, {"command": line})
        assert decision.kind == "ask" and decision.reason.endswith(f"; unknown is {doubt}"), decision.reason
    decision = decided(policy, shell, {"command": "pytest $x"})
    assert "deny shell(rm *); ask shell(git push *)" in decision.reason and decision.rule == "p0.toml:3; p0.toml:2"
    on_one_line = policy_of(tmp_path, 'deny = ["shell(rm *)", "shell(git push *)"]\n')
    assert decided(on_one_line, shell, {"command": "pytest $x"}).rule == "p0.toml:1"


def test_what_a_model_does_not_see_of_a_line_is_not_in_the_question(tmp_path: Path) -> None:
    bound = shell.bind(command="pytest $x --secret")
    decision = decided(policy_of(tmp_path, 'deny = ["shell(rm *)"]\n'), bound, {})
    assert decision.kind == "ask" and "secret" not in decision.reason
