"""The options of a tool, in one table: the type and the check of each, what it is where it is left out, and whether the
handler is made anew where it changes.

The checks take the option's name and what was given, and give what is kept.
"""

# Without `from __future__ import annotations`: the table below is read from its annotations, and to evaluate them as
# texts takes 1.5 ms of every import.

import inspect
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar, cast

from pydantic import BaseModel

from ferrule.definition.handler import called, is_async
from ferrule.definition.signature import read_signature
from ferrule.errors import DefinitionError
from ferrule.scheduling.clock import Clock
from ferrule.types import Approver, Guard, Isolation, Journal, Leases, Middleware, Observer, Reconcile
from ferrule.values.context import NO_CONTEXT, UNSET, ToolContext
from ferrule.values.decision import Diff
from ferrule.values.frozen import FrozenDict, JsonObject, freeze

Trait: TypeAlias = bool | Callable[[JsonObject], bool]
"""A fact about a tool, or a function of a call's arguments that tells it."""

Resources: TypeAlias = Callable[[JsonObject], Iterable[str]]
"""The keys that a call locks, a function of its arguments."""

Preview: TypeAlias = Callable[[JsonObject], str | Diff]
"""What a call would do, for a person who is asked; a function of its arguments."""

PROVIDERS = ("anthropic", "bedrock", "cohere", "gemini", "mistral", "ollama", "openai_chat", "openai_responses")
"""The modules of `ferrule.providers`, which a tool may name."""

_T = TypeVar("_T")
_NO_NONE = object()
_OF_ARGUMENTS = "a function of the arguments, which takes them as one mapping and is not async"


def wrong(key: str, value: object, right: str) -> DefinitionError:
    """What is said of an option that is not what is `right`."""
    return DefinitionError(f"{key} must be {right}, not {value!r}")


def _as_it_is(value: Any) -> Any:
    return value


def kind(
    right: str, is_right: Callable[[Any], object], keep: Callable[[Any], _T] = _as_it_is, none: Any = _NO_NONE
) -> Callable[..., _T]:
    """The check of an option that is `right`, in words, where `is_right` says so.

    Args:
        keep: What is kept of what was given.
        none: What is kept of `None`, which is judged as any other value where this is left out.
    """

    def check(key: str, value: Any) -> _T:
        if value is None and none is not _NO_NONE:
            return none  # type: ignore[no-any-return]
        if not is_right(value):
            raise wrong(key, value, right)
        return keep(value)

    return check


def each(check: Callable[..., _T]) -> Callable[..., tuple[_T, ...]]:
    """The check of a list of what `check` takes; a text is none, though it is iterable, nor is a dict."""

    def check_all(key: str, value: Any) -> tuple[_T, ...]:
        if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
            raise wrong(key, value, f"a list, such as {key}=[...]")
        return tuple(check(f"each of {key}", item) for item in value)

    return check_all


def _is_positive(value: Any, of: Any) -> bool:
    return isinstance(value, of) and not isinstance(value, bool) and 0 < value < math.inf


def _implements(contract: type) -> Callable[[Any], object]:
    return lambda value: isinstance(value, contract) and not isinstance(value, type)


def fits(function: Any, form: str) -> bool:
    """Whether it can be called as `form`, such as `"(call, context)"`, says. What has no signature, such as a function
    in C, fits."""
    try:
        # What is called is the wrapper, whatever the signature of what it wraps.
        signature = read_signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return callable(function)
    try:
        signature.bind(*form.split(","))
    except TypeError:
        return False
    return True


def _is_plain(function: Any, form: str) -> bool:
    """Whether it fits where nobody awaits it."""
    return fits(function, form) and not (is_async(function) or inspect.isasyncgenfunction(called(function)))


def _is_trait(value: Any) -> bool:
    return isinstance(value, bool) or _is_plain(value, "(arguments)")


def callable_with(form: str, none: Any = _NO_NONE) -> Callable[..., Any]:
    """The check of what can be called as `form` says."""
    return kind(f"callable with {form}", lambda value: fits(value, form), none=none)


text: Callable[..., str | None] = kind("a text", _implements(str), inspect.cleandoc, None)
label: Callable[..., str | None] = kind("a text, such as '3', or None", _implements(str), none=None)
texts: Callable[..., tuple[str, ...]] = each(kind("a text", _implements(str)))
mapping: Callable[..., FrozenDict] = kind("a dict", _implements(Mapping), freeze, FrozenDict())
mappings: Callable[..., tuple[FrozenDict, ...]] = each(kind("a dict", _implements(Mapping), freeze))
whole_number: Callable[..., int | None] = kind(
    "a whole number of at least 1, or None for no limit", lambda value: _is_positive(value, int), none=None
)
seconds: Callable[..., float | None] = kind(
    "a positive number of seconds, or None", lambda value: _is_positive(value, int | float), float, None
)
flag: Callable[..., bool] = kind("True or False", _implements(bool))
asking: Callable[..., bool | str] = kind(
    "True, False or the reason as a text (a guard asks about some calls only)",
    lambda value: isinstance(value, bool) or (isinstance(value, str) and value.strip()),
)
journal: Callable[..., Journal | None] = kind(
    'a Journal, such as Journal.open("calls.db") or ferrule.journal.memory()',
    lambda value: isinstance(value, Journal),
    none=None,
)
limits: Callable[..., Leases | None] = kind(
    "what keeps limits among programs, such as ferrule.limits.shared(journal)",
    lambda value: not isinstance(value, type) and callable(getattr(value, "lease", None)),
    none=None,
)
reconcile: Callable[..., Any] = callable_with("(call, context)", None)
clock: Callable[..., Clock | None] = kind(
    "a clock, which has time(), async sleep(…), call_at(…) and now()", _implements(Clock), none=None
)
approver: Callable[..., Approver | None] = callable_with("(call, decision, context)", None)
of_arguments: Callable[..., Any] = kind(
    f"{_OF_ARGUMENTS}, or None", lambda value: _is_plain(value, "(arguments)"), none=None
)
trait: Callable[..., Any] = kind(f"True, False or {_OF_ARGUMENTS}", _is_trait, none=None)
"""`None` where it follows `read_only`."""
stated_trait: Callable[..., Any] = kind(f"True, False or {_OF_ARGUMENTS}", _is_trait)
guards: Callable[..., tuple[Guard, ...]] = each(
    kind(
        "callable with (call, context), or have check(…)",
        lambda item: isinstance(item, type) or callable(getattr(item, "check", 0)) or fits(item, "(call, context)"),
    )
)
"""An object with `check` is looked at for each tool."""
_middleware: Callable[..., tuple[Middleware, ...]] = each(callable_with("(call, context, next)"))
observers: Callable[..., tuple[Observer, ...]] = each(
    kind(
        "a plain function of the event, as nothing awaits it (give queue.put_nowait and read the queue in a task)",
        lambda value: _is_plain(value, "(event)"),
    )
)


def one_of(*allowed: str | None) -> Callable[..., object]:
    """The check for one of these values."""
    return kind(f"one of {allowed!r}", lambda value: value in allowed)


def middleware(key: str, value: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """Several middleware. One that belongs in one stage alone says so in a text, `only_inside` or `only_around`."""
    items = _middleware(key, value)
    other = "only_around" if key == "inside" else "only_inside"
    for item in items:
        if isinstance(said := getattr(item, other, None), str):
            raise DefinitionError(said)
    return items


def by_provider(key: str, value: object) -> FrozenDict:
    """A dict for each provider, read-only."""
    given = mapping(key, value)
    refuse_unknown(given, PROVIDERS, key)
    return FrozenDict((name, mapping(f"{key}[{name!r}]", of_one)) for name, of_one in given.items())


def isolating(key: str, value: object) -> object:
    """`None`, `"process"`, or an object that says where the handler runs."""
    if value == "process" and not (hasattr(os, "killpg") and hasattr(os, "fork")):
        raise DefinitionError("isolation='process' needs process groups, which this platform does not have")
    if value not in (None, "process") and not fits(getattr(value, "executor", None), "(tool)"):
        raise wrong(key, value, "None, 'process', or an object with executor(tool)")
    return value


def exception_classes(key: str, value: object) -> tuple[type[BaseException], ...] | None:
    """One or several classes of exceptions, or `None`."""
    if value is None:
        return None
    kinds = tuple(value) if isinstance(value, Iterable) and not isinstance(value, type) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise wrong(key, value, "a tuple of exception classes")
    return cast("tuple[type[BaseException], ...]", kinds)


def as_given(key: str, value: object) -> object:
    """What is checked elsewhere, or may be anything."""
    return value


class Option(NamedTuple):
    """One option of a tool.

    Attributes:
        check: Gives what is kept of what was given.
        default: What is kept where it is left out.
        makes_handler: Whether the handler is made anew where it changes.
        is_kept: Whether the tool has an attribute of this name that holds it.
    """

    check: Callable[[str, Any], object]
    default: object = None
    makes_handler: bool = False
    is_kept: bool = True


class FunctionOptions(TypedDict, total=False):
    """The options of a tool whose parameters are those of its function or its handler class."""

    description: Annotated[str | None, Option(text)]
    guards: Annotated[Iterable[Guard], Option(guards, ())]
    ask: Annotated[bool | str, Option(asking, False)]
    around: Annotated[Iterable[Middleware], Option(middleware, ())]
    inside: Annotated[Iterable[Middleware], Option(middleware, ())]
    concurrency: Annotated[int | None, Option(whole_number)]
    timeout: Annotated[float | None, Option(seconds)]
    idle_timeout: Annotated[float | None, Option(seconds)]
    max_input: Annotated[int | None, Option(whole_number, UNSET)]
    context: Annotated[object, Option(as_given, UNSET)]
    unknown: Annotated[Literal["refuse", "drop"], Option(one_of("refuse", "drop"), "refuse", makes_handler=True)]
    read_only: Annotated[Trait, Option(stated_trait, False)]
    destructive: Annotated[Trait | None, Option(trait)]
    idempotent: Annotated[Trait, Option(stated_trait, False)]
    open_world: Annotated[Trait, Option(stated_trait, True)]
    parallel: Annotated[Trait | None, Option(trait)]
    preview: Annotated[Preview | None, Option(of_arguments)]
    resources: Annotated[Resources | None, Option(of_arguments)]
    reconcile: Annotated[Reconcile | None, Option(reconcile)]
    background: Annotated[bool, Option(flag, False)]
    private: Annotated[Iterable[str], Option(texts, (), makes_handler=True)]
    isolation: Annotated[Literal["process"] | Isolation | None, Option(isolating, makes_handler=True)]
    transfer: Annotated[Literal["json", "pickle"], Option(one_of("json", "pickle"), "json", makes_handler=True)]
    expose: Annotated[Iterable[type[BaseException]] | type[BaseException] | None, Option(exception_classes)]
    tags: Annotated[Iterable[str], Option(texts, ())]
    title: Annotated[str | None, Option(text)]
    version: Annotated[str | None, Option(text)]
    server: Annotated[str | None, Option(text)]
    examples: Annotated[Iterable[JsonObject], Option(mappings, ())]
    provider: Annotated[Mapping[str, JsonObject] | None, Option(by_provider, FrozenDict())]
    metadata: Annotated[JsonObject | None, Option(mapping, FrozenDict())]
    output_schema: Annotated[JsonObject | None, Option(as_given, makes_handler=True, is_kept=False)]


class ToolOptions(FunctionOptions, total=False):
    """All options of a tool."""

    args_model: Annotated[type[BaseModel] | None, Option(as_given, makes_handler=True, is_kept=False)]
    input_schema: Annotated[JsonObject | None, Option(as_given, makes_handler=True, is_kept=False)]


OPTIONS: dict[str, Option] = {key: hint.__metadata__[0] for key, hint in ToolOptions.__annotations__.items()}
KEPT: dict[str, object] = {key: option.default for key, option in OPTIONS.items() if option.is_kept}
"""What a tool is where nothing is said of it."""
MAKES_HANDLER = frozenset(key for key, option in OPTIONS.items() if option.makes_handler)


def refuse_unknown(given: Iterable[str], known: Collection[str], who: str) -> None:
    """Refuse options that there are not.

    Raises:
        DefinitionError: with all that there are.
    """
    for key in given:
        if key not in known:
            raise DefinitionError(f"{who}: there is no option {key!r}. The options are: {', '.join(known)}")


class ContextOptions(TypedDict, total=False):
    """The fields of a context that are taken by name, without one."""

    deps: Any
    principal: str | None
    session: str | None


class RunOptions(ContextOptions, total=False):
    """What `run` takes by name."""

    timeout: float | None


def context_of(
    context: ToolContext | None, given: Mapping[str, Any], who: str, others: Iterable[str] = ()
) -> ToolContext:
    """The context, with what was given by name in front of what it has; `others` are options that are taken elsewhere.

    Raises:
        DefinitionError: for an option that there is not, and for what is no context.
    """
    if context is None:
        context = NO_CONTEXT
    elif not isinstance(context, ToolContext):
        raise DefinitionError(
            f"{who}: a context is ToolContext(deps=…, principal=…), not of the type {type(context).__name__}; "
            "deps, principal and session may be given by name instead"
        )
    if not given:
        return context
    refuse_unknown(given, (*ContextOptions.__annotations__, *others), who)
    return context.replace(**given)
