"""Regular expressions from outside, and the bounds on their cost.

The engine is Rust's crate `regex`, through `jsonschema_rs`. Its time is proportional to the number of states of a
pattern (with its repetitions written out), times the characters of the text. It holds the interpreter's lock meanwhile,
so no deadline can end it: `([^!]{1,250}a){1,30}!` takes 30 s for a line of 20,000 characters. So the engine itself
reports the bytes of its states, and a text is compared in one go only if the product is within `BUDGET`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from threading import local
from typing import Any, Final

from ferrule.errors import DefinitionError

BUDGET: Final = 2**26
"""The most bytes of compiled states times characters of text in one comparison. The slowest pattern of a hundred
thousand random ones took 0.7 ns for each, 50 ms in all. See docs/forms.md#a-schema-of-somebody-else.
"""
MAX_CHARACTERS: Final = 2_000
"""The most characters of a pattern. Reading takes at most 17 µs for each: `(?i:\\p{L})` again and again.

See docs/forms.md#a-schema-of-somebody-else.
"""
_SIZES: Final = tuple(2**power for power in range(9, 18))
"""The sizes to try for a pattern, in bytes of states; 72 for a pattern of one ASCII character."""
_COMPILED_SIZES: Final = tuple(2**power for power in range(10, 21))
"""The sizes to try for a pattern if a text cannot use all of it at once: a megabyte is compiled in 10 ms."""
_MAX_COMPILED_BYTES: Final = 2**25
"""The most bytes of states for all patterns of one list of schemas. They take up to 0.6 s, and twice as much memory."""

_BYTES_PER_CHARACTER: Final = 2**12
"""The bytes of states compiled in the time that one character of a refused pattern takes."""

_ATOM = r"(?:\\(?:[pP]\{[^{}]*\}|[^pPuUx])|\[\^?(?:\\[^pPuUx]|[^\\\[\]&~-]|-(?![-\[]))+\]|[^\\\[\](){}.*+?|^$]|\.)"
_FIXED = rf"(?:{_ATOM}(?:\{{\d+\}})?)*"
_ANCHORED_REPETITION = re.compile(rf"(\^{_FIXED}{_ATOM})\{{\d+,\d*\}}({_FIXED}\$?)", re.DOTALL)
"""Begins in one place and has one repetition of one class, so each character of a text is in one state for all bounds:
`^[\\w-]{1,2048}$`.
"""
_FINAL_REPETITION = re.compile(rf"({_FIXED}{_ATOM}\{{\d+),\d*(\}})", re.DOTALL)
"""Ends in a repetition whose least number is enough: `[\\w-]{1,2048}`."""
_LOOK_AROUND = re.compile(r"\(\?<?[=!]|\\[1-9k]")
_ESCAPE_OR_BRACKET = re.compile(r"\\[dDwW]|\\.|\[|\]", re.DOTALL)
_WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"
_VALUE_KEYWORDS = frozenset({"const", "enum", "default", "examples"})
"""Keywords with values below, not schemas. But a property may have such a name, and a reference may lead there."""
_INVERTING_KEYWORDS = frozenset(
    {"not", "oneOf", "if", "contains", "unevaluatedProperties", "unevaluatedItems", "dependencies"}
)
"""Keywords that may refuse a value because a schema below or beside them accepts one more."""


class PatternError(ValueError):
    """A pattern that is never compared; the text gives the reason. See docs/forms.md#a-schema-of-somebody-else.

    Attributes:
        is_invalid: Whether it is no regular expression at all.
    """

    def __init__(self, reason: str, is_invalid: bool = False) -> None:
        super().__init__(reason)
        self.is_invalid = is_invalid


class Pattern:
    """A regular expression within the bounds. See docs/forms.md#a-schema-of-somebody-else.

    Args:
        text: In the syntax of JSON Schema (ECMA 262), without look-around and back-references.
        unicode: Whether `\\w` and `\\d` match the letters and digits of all languages, and not only those of ASCII.

    Raises:
        PatternError: The text is no regular expression, or exceeds the bounds.

    Attributes:
        size: The most bytes of the states that a text can use.
        compiled_size: The most bytes of all its states.
        max_length: The most characters in one comparison.
        matches: The function to find the pattern in a text of at most `max_length` characters.
    """

    def __init__(self, text: str, *, unicode: bool = False) -> None:
        if len(text) > MAX_CHARACTERS:
            raise PatternError(f"it has {len(text):,} characters; the most is {MAX_CHARACTERS:,}")
        counted = _simplify(text)
        size, matches = _compile_smallest(counted, _SIZES, text)
        compiled_size = size
        if unicode or counted != text:
            whole = _to_unicode(text) if unicode else text
            compiled_size, matches = _compile_smallest(whole, _COMPILED_SIZES, text)
        self.size, self.compiled_size, self.matches = size, compiled_size, matches
        self.max_length = BUDGET // size


def _to_unicode(text: str) -> str:
    """Return the pattern with the `\\d` and `\\w` of Unicode.

    Classes cannot be nested here, so `\\W` in a class stays.
    """
    in_class = False

    def replace_token(found: re.Match[str]) -> str:
        nonlocal in_class
        token = found[0]
        if token in ("[", "]"):
            in_class = token == "["
        if token in (r"\d", r"\D"):
            return r"\p{Nd}" if token == r"\d" else r"\P{Nd}"
        if token == r"\w":
            return _WORD if in_class else f"[{_WORD}]"
        return f"[^{_WORD}]" if token == r"\W" and not in_class else token

    return _ESCAPE_OR_BRACKET.sub(replace_token, text)


def _simplify(text: str) -> str:
    """Return a pattern with as many states as a text can use in this one."""
    if (found := _ANCHORED_REPETITION.fullmatch(text)) is not None:
        return f"{found[1]}+{found[2]}"
    if (found := _FINAL_REPETITION.fullmatch(text)) is not None:
        return found[1] + found[2]
    return text


def _compile_smallest(text: str, sizes: tuple[int, ...], original: str) -> tuple[int, Callable[[Any], bool]]:
    """Return the smallest of the sizes that holds a pattern, and the function that finds it in a text.

    Raises:
        PatternError: The largest size is too small. The error is about the pattern `original`.
    """
    import jsonschema_rs

    found = None
    first, last = 0, len(sizes) - 1
    while first <= last:
        middle = (first + last) // 2
        options = jsonschema_rs.RegexOptions(size_limit=sizes[middle])
        try:
            compiled = jsonschema_rs.validator_for({"pattern": text}, pattern_options=options, offline=True)
            found, last = (sizes[middle], compiled.is_valid), middle - 1
        except jsonschema_rs.ValidationError:
            first = middle + 1
    if found is None:
        raise _explain_refusal(original)
    return found


def _explain_refusal(text: str) -> PatternError:
    """Return the error for a pattern that did not compile."""
    import jsonschema_rs

    if not jsonschema_rs.is_valid({"format": "regex"}, text, validate_formats=True):  # reads it, and compiles nothing
        return PatternError("it is not a regular expression", is_invalid=True)
    if _LOOK_AROUND.search(text):
        return PatternError("it has look-around or a back-reference")
    return PatternError(
        "it has too many states once its repetitions are written out: repeat less often, or without a bound, as in a*"
    )


class Patterns:
    """The patterns of a list of schemas, each compiled once. See docs/forms.md#a-schema-of-somebody-else.

    Args:
        before: The patterns of another list, for reuse without compiling.
        is_late: Return whether the time for compiling is over.
    """

    def __init__(self, before: Patterns | None = None, is_late: Callable[[], bool] = bool) -> None:
        self._before = {} if before is None else before._patterns
        self._patterns: dict[str, Pattern | PatternError] = {}
        self._bytes_left = _MAX_COMPILED_BYTES
        self._is_late = is_late

    def compile(self, text: str) -> Pattern | PatternError:
        """Return the pattern, or the reason not to compare it."""
        if text not in self._patterns:
            found = self._before.get(text)
            self._patterns[text] = found = found if isinstance(found, Pattern) else self._compile(text)
            self._bytes_left -= (
                found.compiled_size if isinstance(found, Pattern) else _SIZES[-1] + len(text) * _BYTES_PER_CHARACTER
            )
        return self._patterns[text]

    def _compile(self, text: str) -> Pattern | PatternError:
        if self._bytes_left <= 0:
            return PatternError("the schemas have too many patterns")
        if self._is_late():
            return PatternError("the time for compiling patterns is over")
        try:
            return Pattern(text)
        except PatternError as error:
            return error


class ForeignSchema(Mapping[str, Any]):
    """A JSON Schema from outside, such as from the server of a tool: `Tool(..., input_schema=ForeignSchema(…))`.

    It is shown unchanged. A pattern above the bounds is not enforced, and no pattern is for the rest of a value after
    `BUDGET` is spent on it. The server that runs the tool validates its arguments as well. See
    docs/forms.md#a-schema-of-somebody-else.

    Args:
        schema: The schema, as plain JSON data.
        patterns: The patterns of its list of schemas.

    Raises:
        DefinitionError: A pattern is no regular expression.

    Attributes:
        patterns: The texts of its patterns.
        not_enforced: The patterns that are not enforced, each with the reason.
        size_of_names: The bytes of the states of all patterns for names (`patternProperties`).
    """

    def __init__(self, schema: Mapping[str, Any], patterns: Patterns | None = None) -> None:
        patterns = patterns or Patterns()
        self._schema = schema
        self._spent = local()
        places = [*_iter_patterns(schema)]
        self._found = {text: patterns.compile(text) for text, *_ in places}
        sure = {text for text, _, may_be_value in places if not may_be_value}
        for text, pattern in [*self._found.items()]:
            if isinstance(pattern, PatternError) and pattern.is_invalid:
                if text in sure:
                    raise DefinitionError(f"the pattern {_shorten(text)!r} is not a regular expression")
                del self._found[text]  # a value, such as a glob in an example
        self._refused_in_values = any(
            may_be_value and isinstance(self._found.get(text), PatternError) for text, _, may_be_value in places
        )
        self.patterns = tuple(self._found)
        self.not_enforced = tuple(
            f"the pattern {_shorten(text)!r}: {one}"
            for text, one in self._found.items()
            if isinstance(one, PatternError)
        )
        of_names = [self._found.get(text) for text, is_of_names, _ in places if is_of_names]
        self.size_of_names = sum(one.size for one in of_names if isinstance(one, Pattern))

    def __getitem__(self, key: str) -> Any:
        return self._schema[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema)

    def __len__(self) -> int:
        return len(self._schema)

    def drop_refused_patterns(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema, or one derived from it, without the patterns above the bounds.

        If their removal could refuse a value that was valid with them, only the type is enforced.
        """
        if not self.not_enforced:
            return schema
        if self._refused_in_values or _INVERTING_KEYWORDS & {*_iter_keywords(schema)}:
            return {key: schema[key] for key in ("$schema", "type") if key in schema}
        return self._drop_patterns(schema)  # type: ignore[no-any-return]

    def _drop_patterns(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self._drop_patterns(item) for item in node]
        if not isinstance(node, dict):
            return node
        found = {key: item if key in _VALUE_KEYWORDS else self._drop_patterns(item) for key, item in node.items()}
        if isinstance(text := node.get("pattern"), str) and isinstance(self._found[text], PatternError):
            del found["pattern"]
        if isinstance(names := node.get("patternProperties"), dict):
            if over := [text for text in names if isinstance(self._found[text], PatternError)]:
                for text in over:
                    del found["patternProperties"][text]
                found.pop("additionalProperties", None)
        return found

    def make_validator_options(self) -> dict[str, Any]:
        """Return the options of `jsonschema_rs` for its patterns."""
        import jsonschema_rs

        schema = self

        class Compared:
            """The keyword `pattern`, anywhere in the schema."""

            def __init__(self, parent: object, text: str, path: object) -> None:
                # An unknown pattern is from a meta-schema of the library; a reference may lead there.
                found = schema._found.get(text)
                self._text, self._pattern = text, found if isinstance(found, Pattern) else Pattern(text)

            def validate(self, value: object) -> None:
                if isinstance(value, str) and schema._spend(self._pattern.size * len(value)):
                    if not self._pattern.matches(value):
                        raise ValueError(f"the value does not match {_shorten(self._text)!r}")

        return {
            "keywords": {"pattern": Compared},
            "pattern_options": jsonschema_rs.RegexOptions(size_limit=_COMPILED_SIZES[-1]),
        }

    def start_validation(self, value: object, ways: int) -> bool:
        """Start the validation of a value. Return whether its names are short enough to compare each in `ways` ways."""
        self._spent.left = BUDGET
        return not self.size_of_names or self._spend(self.size_of_names * ways * _count_name_characters(value))

    def _spend(self, cost: int) -> bool:
        """Spend `cost` on the value under validation in this thread. Return False if the budget is too small."""
        left: int = getattr(self._spent, "left", BUDGET) - cost
        if left < 0:
            return False
        self._spent.left = left
        return True


def _shorten(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}…"


def _iter_objects(node: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield all dicts that may be schemas, each with whether it may be a value instead."""
    waiting = [(node, False)]
    while waiting:
        node, may_be_value = waiting.pop()
        if isinstance(node, dict):
            yield node, may_be_value
            waiting += [(item, may_be_value or key in _VALUE_KEYWORDS) for key, item in node.items()]
        elif isinstance(node, list):
            waiting += [(item, may_be_value) for item in node]


def _iter_keywords(schema: Any) -> Iterator[str]:
    for node, _ in _iter_objects(schema):
        yield from node


def _iter_patterns(schema: Any) -> Iterator[tuple[str, bool, bool]]:
    """Yield the patterns in a schema, each with whether it is for names, and whether it may be a value instead."""
    for node, may_be_value in _iter_objects(schema):
        if isinstance(text := node.get("pattern"), str):
            yield text, False, may_be_value
        if isinstance(names := node.get("patternProperties"), dict):
            yield from ((name, True, may_be_value) for name in names)


def _count_name_characters(value: Any) -> int:
    total, waiting = 0, [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            total += sum(map(len, node))
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return total
