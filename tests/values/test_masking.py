"""No credential is in a text that a model reads, and only so much of a text is searched for them (`benchmarks/work.py`
has the time that it takes)."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from ferrule import Runner, tool
from ferrule.security.masking import mask_credentials
from steps import peak

SECRET = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=20, max_size=40)
NAMES = [
    *("token", "access_token", "X-Amz-Security-Token", "id_token", "secret", "client_secret", "password", "passwd"),
    *("pwd", "pass", "signature", "X-Amz-Signature", "sig", "key", "api_key", "apikey", "accessKey", "AWSAccessKeyId"),
    *("subscription-key", "credential", "auth", "auth_token", "sessionid", "jwt", "API_KEY", "Password"),
]
WRITTEN = [
    *("https://example.org/a?x=1&{name}={secret}&y=2", "{name}={secret}", "{name} = '{secret}'", '{name}="{secret}"'),
    *("{{'{name}': '{secret}'}}", '{{"{name}":"{secret}"}}', "f({name}={secret}, n=1)", "?{name}%3D{secret}"),
    *('"{{\\"{name}\\": \\"{secret}\\"}}"', "https://example.org/#{name}={secret}", "{name}=={secret}"),
]
HEADERS = [
    *("Authorization: Bearer {secret}", "authorization:bearer {secret}", "'Authorization': 'Bearer {secret}'"),
    *('{{"Authorization": "Basic {secret}"}}', "Authorization: Basic {secret}==", "Authorization: {secret}"),
    *("Authorization=Bearer {secret}", "Authorization: SSWS {secret}", "bearer {secret}", "Bearer%20{secret}"),
    *("x-api-key: {secret}", "X-Auth-Token: {secret}", "Cookie: a=b; c={secret}", "api_key: {secret}"),
    *("apikey:{secret}", "password: {secret}", "secret : {secret}"),
    *('"{{\\"Authorization\\": \\"Bearer {secret}\\"}}"', "{{b'authorization': b'Basic {secret}'}}"),
]
ADDRESSES = [
    *("https://u:{secret}@h/x", "postgres://u:a/{secret}@h/db", "amqp://u:a?{secret}#b@h", "redis://:{secret}@h"),
    *("https://{secret}@h/x?q=1", "http://h/x,https://u:{secret}@h", "http://u:a@b/{secret}@h"),
    "ftp://u:://{secret}@h",
    *("mongodb+srv://u:{secret}@h", "x://a.b/x?u=y://u:{secret}@h"),
]
SHAPES = [
    *("sk-{secret}", "sk-ant-api03-{secret}", "sk-proj-ab_{secret}", "ghp_{secret}", "github_pat_{secret}"),
    *("gho_{secret}", "xoxb-12-{secret}", "xoxp-{secret}", "glpat-{secret}", "AIza{secret}", "hf_{secret}"),
    *("sk_live_{secret}", "eyJ{secret}.eyJ{secret}.{secret}_-x", "-----BEGIN RSA PRIVATE KEY-----\n{secret}\n-----END"),
]
AROUND = st.tuples(
    st.text(max_size=20).filter(lambda text: not text[-1:].isalnum()), st.text(max_size=20).map(" {}".format)
)


@given(SECRET, st.sampled_from([*WRITTEN, *HEADERS, *ADDRESSES, *SHAPES]), st.sampled_from(NAMES), AROUND)
def test_no_listed_secret_survives(secret: str, written: str, name: str, around: tuple[str, str]) -> None:
    before, after = around
    assume(secret[:8] not in before + after + written + name)
    text = mask_credentials(before + written.format(secret=secret, name=name) + after)
    assert secret[:8] not in text and secret[-8:] not in text.removesuffix(after)


SAYS_SECRET = [*NAMES, "tokens", "refresh-tokens", "secrets", "api_keys", "passwords", "credentials", "client.secret"]
BLANKS = st.text(" \t\n\r\u00a0", max_size=9)


@given(
    secret=SECRET,
    name=st.sampled_from(SAYS_SECRET),
    around=st.tuples(
        st.sampled_from(["", "my_", "x-", "the_very_long_name_of_this_setting_", "a.b."]),
        st.sampled_from(["", "_x", "2"]),
    ),
    quotes=st.sampled_from(["", "'", '"', '\\"', '"]', "']"]),
    blanks=st.tuples(BLANKS, BLANKS),
    sign=st.sampled_from([":", "=", "==", ":=", "=>", "%3D", "%3a"]),
    opens=st.sampled_from(["", "'", '"', "b'", "SecretStr('", "<", "['", '["a", "']),
)
def test_a_value_after_a_secret_name_is_masked(
    secret: str, name: str, around: tuple[str, str], quotes: str, blanks: tuple[str, str], sign: str, opens: str
) -> None:
    text = f"{around[0]}{name}{around[1]}{quotes}{blanks[0]}{sign}{blanks[1]}{opens}{secret}"
    assert secret[:8] not in mask_credentials(f"it says {text}", 5_000), text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("bearer      abcdefgh", "bearer      ***"),
        ("authorization    :   Basic abc def", "authorization    :   ***"),
        ('headers["token"] = x', 'headers["token"] = ***'),
        ("token\n=\n\nx y", "token\n=\n\n*** y"),
        ("invalid token: x7 is not known", "invalid token: *** is not known"),
        ('"tokens": ["a", "b"], "n": 1', '"tokens": ***, "n": 1'),
        ("the_token_of_this_program_in_production=x", "the_token_of_this_program_in_production=***"),
    ],
)
def test_masking_replaces_exactly_the_value(text: str, shown: str) -> None:
    assert mask_credentials(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        *("there is no file 'notes/today.txt'", "https://example.org:80/a?page=2&sort=name"),
        *("see https://example.org/a?mail=bob@example.org", "invalid token: unexpected '<' at line 3"),
        *("tokens: 512", '{"prompt_tokens": 12, "completion_tokens":3}'),
        "authors: Ada, Bob; author_name=Ada; authority: example.org",
        *("tokenizer=cl100k, tokenization: byte pairs, tokenised=yes", "secretary: Ada, passenger=Bob, compass: north"),
        *("unknown key: timeout", "missing keys: city, date", "unexpected token: comma after an item"),
        *("KeyError: 'name'", "task-management-system-2 is down"),
        *('duplicate key value violates unique constraint "pk_users_primary"', "2 + 2 = 5, he said: 'no'"),
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert mask_credentials(text) == text


PIECES = [
    *("a", "://", ":", "@", "/", "?", "#", "token", "=", "'", '"', "\\", " ", "\n", "key_", "-", "_", "bearer "),
    *("Authorization:", "eyJ", ".", "sk-", "xoxb-", "AKIA", "input_value=", "-----BEGIN ", "PRIVATE KEY-----", "%3D"),
    *("cookie=", "signature", "auth", "A", "-----END", "a://b:c", "token:", "token   ", "      ", "\n\n", "tokens"),
    *("key: a", "invalid token: a", "[", "{", "]", "%3D%3D", "bearer"),
]
SEVERAL = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)


@given(SEVERAL.filter(bool), SEVERAL)
def test_a_text_of_few_pieces_is_searched_to_its_end(pieces: str, end: str) -> None:
    # Whatever goes back once for each character takes minutes for this length.
    assert len(mask_credentials(pieces * (100_000 // len(pieces)) + end, most=5_000)) <= 5_000


def test_masking_reads_a_bounded_text() -> None:
    long = "tokenkey_" * 10_000_000
    assert peak(lambda: mask_credentials(long, most=5_000)) < 5_000_000
    text = f"eyJ{'a' * 9_950} cannot reach https://u:geheim-{'x' * 500}@h"
    assert mask_credentials(text) == "*** cannot reach "
    assert mask_credentials("a" * 20_000) == "a" * 500


async def test_inner_validation_errors_hide_the_input() -> None:
    class Login(BaseModel):
        pin: int

    @tool(read_only=True)
    async def sign_in(name: str, wraps: bool) -> None:
        try:
            Login.model_validate({"pin": f"geheim-{name}"})
        except ValueError as error:
            raise LookupError(f"no: {error}") if wraps else error from None

    for wraps in (True, False):
        error = (await Runner([sign_in]).run("sign_in", {"name": "ada", "wraps": wraps})).error or ""
        assert "pin" in error and "valid integer" in error
        assert "geheim" not in error


async def test_a_validators_message_is_masked() -> None:
    class Place(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def known(cls, name: str) -> str:
            raise ValueError("cannot ask https://u:geheim@h/?token=geheim")

    @tool
    async def go(place: Place) -> str:
        return ""

    result = await Runner([go]).run("go", json.dumps({"place": {"name": "x"}}))
    assert result.status == "invalid" and "cannot ask" in (result.error or "")
    assert "geheim" not in (result.error or "")
