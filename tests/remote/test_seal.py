"""What crosses between machines is believed where its seal is right, and nowhere else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import DefinitionError
from ferrule.remote import Seal
from ferrule.remote._seal import SealError

KEY, OTHER = b"k" * 32, b"o" * 32
ABOUT = {"kind": "order", "queue": "tools", "workflow": "w1"}


@given(body=st.text(), encrypts=st.booleans())
def test_a_sealed_text_is_opened(body: str, encrypts: bool) -> None:
    seal = Seal(KEY, OTHER if encrypts else ())
    opened, about = seal.open(seal.close(body, valid=60, **ABOUT), **ABOUT)
    assert opened == body and about.items() >= ABOUT.items()


@given(
    place=st.floats(0, 1, exclude_max=True),
    other=st.characters(codec="ascii"),
    how=st.sampled_from(["gone", "more", "cut", "empty"]),
    encrypts=st.booleans(),
)
def test_a_changed_text_is_not_opened(place: float, other: str, how: str, encrypts: bool) -> None:
    seal = Seal(KEY, OTHER if encrypts else ())
    text = seal.close("the body", valid=60, **ABOUT)
    at = int(place * len(text))
    changed = {
        "gone": text[:at] + text[at + 1 :],
        "more": text[:at] + other + text[at:],
        "cut": text[:at],
        "empty": "",
    }[how]
    try:
        opened, _ = seal.open(changed, **ABOUT)
    except SealError:
        return
    assert json.loads(changed) == json.loads(text) and opened == "the body"  # a blank more or less between the parts


@pytest.mark.parametrize("name", ["kind", "queue", "workflow"])
def test_a_text_about_something_else_is_not_opened(name: str) -> None:
    seal = Seal(KEY, ())
    with pytest.raises(SealError, match=f"another {name}"):
        seal.open(seal.close("body", valid=60, **ABOUT), **{**ABOUT, name: "else"})


def test_an_expired_text_is_not_opened() -> None:
    seal = Seal(KEY, ())
    with pytest.raises(SealError, match="expired"):
        seal.open(seal.close("body", valid=-1, **ABOUT), **ABOUT)


def test_an_encrypted_text_is_read_only_with_its_key() -> None:
    text = Seal(KEY, OTHER).close("the body", valid=60, **ABOUT)
    assert "the body" not in text
    with pytest.raises(SealError, match="encrypted"):
        Seal(KEY, KEY).open(text, **ABOUT)
    assert Seal(KEY, [KEY, OTHER]).open(text, **ABOUT)[0] == "the body"


def test_a_plain_text_is_refused_if_encryption_is_required() -> None:
    with pytest.raises(SealError, match="encrypted"):
        Seal(KEY, OTHER).open(Seal(KEY, ()).close("the body", valid=60, **ABOUT), **ABOUT)


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRULE_REMOTE_KEY", f"{KEY.hex()}, {OTHER.hex()}")
    monkeypatch.setenv("FERRULE_ENCRYPT_KEY", OTHER.hex())
    seal = Seal()
    assert seal.encrypts and seal.open(Seal(OTHER, OTHER).close("body", valid=60, **ABOUT), **ABOUT)[0] == "body"


@pytest.mark.parametrize(
    ("variable", "given", "said"),
    [
        ("", None, "FERRULE_REMOTE_KEY"),
        ("zz", None, "hexadecimal"),
        ("ab" * 31, None, "32 bytes"),
        ("", b"short", "32"),
    ],
)
def test_a_wrong_key_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str, given: object, said: str) -> None:
    monkeypatch.setenv("FERRULE_REMOTE_KEY", variable)
    with pytest.raises(DefinitionError, match=said):
        Seal(given)  # type: ignore[arg-type]
