"""Truncated content stays within its limit, JSON stays JSON, and text stays UTF-8."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.values.content import (
    KEEP_CHOICES,
    Block,
    Keep,
    Media,
    Text,
    count_characters,
    count_media_bytes,
    to_json_text,
    truncate_blocks,
    truncate_text,
)
from steps import steps

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(st.characters()), inner, max_size=8),
    max_leaves=40,
)
blocks = st.lists(
    st.builds(Text, st.text(max_size=60))
    | st.builds(
        Media, st.just("image"), st.none() | st.binary(max_size=90), st.just("image/png"), st.none() | st.text()
    )
).map(tuple)


def strictly(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    text.encode()
    return json.loads(text, parse_constant=refuse)


@pytest.mark.slow
@given(json_values, st.integers(1, 400))
def test_truncated_json_is_valid_json(value: Any, limit: int) -> None:
    (block,) = truncate_blocks((Text(to_json_text(value)),), limit)
    assert isinstance(block, Text) and len(block.text) <= limit
    strictly(block.text)


@given(blocks, st.integers(0, 300), st.sampled_from(KEEP_CHOICES), st.none() | st.integers(0, 90))
def test_truncated_blocks_keep_both_limits(
    given_blocks: tuple[Any, ...], limit: int, keep: Keep, max_media: int | None
) -> None:
    short = truncate_blocks(given_blocks, limit, keep, **({} if max_media is None else {"max_media": max_media}))
    assert 32 * (len(short) - 1) <= count_characters(short) <= limit  # each further block costs a place
    assert max_media is None or count_media_bytes(short) <= max_media


@given(blocks, st.integers(120, 300), st.sampled_from(KEEP_CHOICES))
def test_every_omission_is_announced(given_blocks: tuple[Any, ...], limit: int, keep: Keep) -> None:
    short = truncate_blocks(given_blocks, limit, keep)
    if short != given_blocks:
        said = "".join(block.text for block in short if isinstance(block, Text))
        assert "[cut" in said or "left out" in said


def test_the_types_of_media_count() -> None:
    assert count_characters((Media("image", None, "a/" + "b" * 200),)) == len("image") + 202
    assert count_characters(truncate_blocks((Media("file", None, "a/b;" + "c" * 250),), 100)) <= 100
    media = tuple(Media("resource", None, "text/plain", uri=f"https://example.org/{n:090}") for n in range(100))
    assert count_characters(truncate_blocks(media, 1000)) <= 1000


BAD_TYPES = ["", "png", "text/", "a/b\n", "a b/c", "a/<untrusted>", "a/b; \x1b[2J", "a/b;" + "c" * 252, None]


@pytest.mark.parametrize("mime_type", BAD_TYPES)
def test_an_invalid_media_type_is_refused(mime_type: Any) -> None:
    with pytest.raises(TypeError, match="mime_type"):
        Media("image", b"x", mime_type, name="n")
    for kind in ("video", "", None, ["image"], "</untrusted>"):
        with pytest.raises(TypeError, match="kind"):
            Media(kind, b"x", "image/png")  # type: ignore[arg-type]


def test_small_fields_survive_beside_a_huge_one() -> None:
    short = json.loads(truncate_text(json.dumps({"stdout": "x" * 10_000, "exit_code": 3, "done": True}), 500))
    assert short["exit_code"] == 3
    assert short["done"] is True
    head, tail = re.split(r"\[cut: \d+ characters left out\]", short["stdout"])
    assert f"[cut: {10_000 - len(head) - len(tail)} characters left out]" in short["stdout"]
    assert set(head) == set(tail) == {"x"}


@pytest.mark.parametrize(("keep", "ahead", "after"), [("head", 20, 0), ("tail", 0, 20), ("both", 10, 10)])
def test_records_are_kept_whole_from_the_ends_on(keep: Keep, ahead: int, after: int) -> None:
    records = [{"id": n, "name": "n" * 100} for n in range(1000)]
    short = json.loads(truncate_text(json.dumps(records), 4000, keep))
    assert short[:ahead] == records[:ahead] and short[len(short) - after :] == records[1000 - after :]
    note = f"[cut: {1000 - len(short) + 1} items left out]"
    assert {"head": short[-1], "tail": short[0], "both": short[len(short) // 2]}[keep] == note
    assert all(one in records for one in short if one != note)


@given(st.text(st.characters(exclude_characters="[")), st.integers(0, 300), st.sampled_from(KEEP_CHOICES))
def test_a_cut_text_counts_what_it_left_out(text: str, limit: int, keep: Keep) -> None:
    text = "." + text * 12  # no JSON
    short = truncate_text(text, limit, keep)
    assert len(short) <= limit
    if limit >= 40 and short != text:
        head, left, tail = re.fullmatch(r"(?s)(.*?)\n?\[cut: (\d+) characters left out\]\n?(.*)", short).groups()  # type: ignore[union-attr]
        assert text.startswith(head) and text.endswith(tail)
        assert len(head) + len(tail) + int(left) == len(text)
        assert bool(head) is (keep != "tail")
        assert bool(tail) is (keep != "head")


@given(json_values, st.integers(1, 400), st.sampled_from(KEEP_CHOICES))
def test_cut_json_keeps_its_ends(value: Any, limit: int, keep: Keep) -> None:
    short = truncate_text(to_json_text({"first": 1, "rest": [value] * 40, "last": 2}), limit, keep)
    assert len(short) <= limit
    found = strictly(short)
    if isinstance(found, dict) and len(found) == 3 and keep == "both" and "[cut]" in found:
        assert list(found) == ["first", "[cut]", "last"]


@pytest.mark.parametrize(
    ("keep", "starts", "ends"), [("head", True, False), ("tail", False, True), ("both", True, True)]
)
def test_the_ends_of_many_blocks_are_kept(keep: Keep, starts: bool, ends: bool) -> None:
    many = tuple(Text(f"line {n}") for n in range(1000))
    short = truncate_blocks(many, 2000, keep)
    assert count_characters(short) <= 2000
    assert (short[0] == many[0]) is starts and (short[-1] == many[-1]) is ends
    (note,) = set(short) - set(many)
    assert note == Text(f"[cut: {1000 - len(short) + 1} blocks left out]")


def test_short_blocks_stay_whole_beside_a_long_text() -> None:
    image, long = Media("image", b"y" * 7000, "image/png"), Text("x" * 5000 + "the end")
    for order in ((image, long, Text("exit code 3")), (Text("exit code 3"), long, image)):
        short = truncate_blocks(order, 1000)
        assert count_characters(short) <= 1000 and image in short and Text("exit code 3") in short
        assert short[1].text.endswith("the end")  # type: ignore[union-attr]


def test_images_over_the_limit_are_named() -> None:
    images = tuple(Media("image", bytes([n]) * 3000, "image/png") for n in range(4))
    for keep, kept in (("head", images[:2]), ("both", images[:2]), ("tail", images[2:])):
        short = truncate_blocks(images, 1_000, keep, max_media=8_000)  # type: ignore[arg-type]
        assert tuple(one for one in short if isinstance(one, Media)) == kept
        left_out = "[image of 3000 bytes left out: the limit of media is 8000 bytes]"
        assert short.count(Text(left_out)) == 2


def test_nested_json_is_cut_at_any_stack_depth() -> None:
    value: Any = "x" * 5000
    for _ in range(95):
        value = {"a": [value, 1], "b": 1}
    text = json.dumps(value)

    def beneath(frames: int) -> str:
        return beneath(frames - 1) if frames else truncate_text(text, 3000)

    for frames in (0, 200, 400, 600, 800):
        short = beneath(frames)
        assert len(short) <= 3000 and "left out]" in short
    strictly(beneath(200))


def test_cutting_takes_linear_steps() -> None:
    value: Any = "x" * 40
    for _ in range(14):
        value = {"a": value, "b": [value]} if len(json.dumps(value)) < 1_000_000 else value
    text = json.dumps(value)
    assert steps(lambda: truncate_text(text, 10_000)) < len(text)


@pytest.mark.parametrize("block", [Text("a line"), Media("image", b"x" * 10, "image/png")], ids=["texts", "media"])
def test_dropped_blocks_cost_almost_nothing(block: Block) -> None:
    few, many = (block,) * 2_000, (block,) * 20_000
    more = steps(lambda: truncate_blocks(many, 16_000)) - steps(lambda: truncate_blocks(few, 16_000))
    assert more < 8 * (len(many) - len(few))
