"""The options of a tool in one table: type, check and default of each, and whether it changes the handler.

A check takes the name and the value of an option. It returns the value to keep, or raises a `DefinitionError`.
"""

# Without `from __future__ import annotations`: the table below is read from its annotations, and to evaluate them as
# texts takes 1.5 ms of every import.

import inspect
import math
import os
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar, cast

from pydantic import BaseModel

from ferrule.definition.handler import find_called_function
from ferrule.definition.signature import read_signature
from ferrule.errors import DefinitionError
from ferrule.scheduling.clock import Clock
from ferrule.types import Approver, Guard, Isolation, Journal, Leases, Middleware, Observer, Reconcile
from ferrule.values.context import NO_CONTEXT, UNSET, ToolContext
from ferrule.values.frozen import FrozenDict, JsonObject, freeze

if TYPE_CHECKING:
    from ferrule.values.diff import Diff

Trait: TypeAlias = bool | Callable[[JsonObject], bool]
"""A fact about a tool, or a function of a call's arguments that returns it."""

Resources: TypeAlias = Callable[[JsonObject], Iterable[str]]
"""A function of a call's arguments that returns the keys to lock."""

Preview: TypeAlias = Callable[[JsonObject], "str | Diff"]
"""A function of a call's arguments that shows its effect to the person who is asked."""

PROVIDERS = ("anthropic", "bedrock", "cohere", "gemini", "mistral", "ollama", "openai_chat", "openai_responses")
"""The modules of `ferrule.providers`."""

_T = TypeVar("_T")
_UNSET = object()
_RESUME_KEY_BYTES = 32
_OF_ARGUMENTS = "a function of the arguments, which takes them as one mapping and is not async"


def wrong_option(key: str, value: object, expected: str) -> DefinitionError:
    """Return the error for an option with a wrong value."""
    return DefinitionError(f"{key} must be {expected}, not {value!r}")


def make_check(
    expected: str,
    is_right: Callable[[Any], object],
    convert: Callable[[Any], _T] = lambda value: value,
    none: Any = _UNSET,
) -> Callable[..., _T]:
    """Return the check of one option.

    Args:
        expected: The right values, in words that follow "must be".
        is_right: Whether a value is right.
        convert: Makes the value to keep.
        none: The value to keep for None. Without it, None is checked as any other value.
    """

    def check(key: str, value: Any) -> _T:
        if value is None and none is not _UNSET:
            return none  # type: ignore[no-any-return]
        if not is_right(value):
            raise wrong_option(key, value, expected)
        return convert(value)

    return check


def check_each(check: Callable[..., _T]) -> Callable[..., tuple[_T, ...]]:
    """Return the check of a list of values that `check` accepts. A text or a dict is no list."""

    def check_all(key: str, value: Any) -> tuple[_T, ...]:
        if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
            raise wrong_option(key, value, f"a list, such as {key}=[...]")
        return tuple([check(f"each of {key}", item) for item in value])

    return check_all


def is_positive(value: Any, kind: Any) -> bool:
    """Return whether a value is a finite number above 0 of this kind."""
    return isinstance(value, kind) and not isinstance(value, bool) and 0 < value < math.inf


def _implements(contract: type) -> Callable[[Any], object]:
    return lambda value: isinstance(value, contract) and not isinstance(value, type)


def accepts(function: Any, form: str) -> bool:
    """Return whether a function takes the arguments of a form such as `"(call, context)"`.

    A callable without a signature, such as a function in C, does.
    """
    count = form.count(",") + 1
    if isinstance(function, types.MethodType):
        function, count = function.__func__, count + 1
    # A run checks its observers, and reading a signature takes as long as the run.
    if isinstance(function, types.FunctionType) and not hasattr(function, "__signature__"):
        code = function.__code__
        required = code.co_argcount - len(function.__defaults__ or ())
        most = math.inf if code.co_flags & inspect.CO_VARARGS else code.co_argcount
        return required <= count <= most and code.co_kwonlyargcount == len(function.__kwdefaults__ or ())
    try:
        # The caller calls the wrapper, whatever function it wraps.
        signature = read_signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return callable(function)
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _is_sync_with(function: Any, form: str) -> bool:
    called = find_called_function(function)
    return accepts(function, form) and not (inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called))


def _is_observer(value: Any) -> bool:
    """Return whether a value is an observer. Another may say in `as_observer` how to get one of it."""
    if isinstance(problem := getattr(value, "as_observer", None), str):
        raise DefinitionError(problem)
    return _is_sync_with(value, "(event)")


def _is_trait(value: Any) -> bool:
    return isinstance(value, bool) or _is_sync_with(value, "(arguments)")


def _is_guard(item: Any) -> bool:
    return isinstance(item, type) or callable(getattr(item, "check", 0)) or accepts(item, "(call, context)")


def check_callable(form: str, none: Any = _UNSET) -> Callable[..., Any]:
    """Return the check of a callable that takes the arguments of a form."""
    return make_check(f"callable with {form}", lambda value: accepts(value, form), none=none)


check_text: Callable[..., str | None] = make_check("a text", _implements(str), inspect.cleandoc, None)
check_label: Callable[..., str | None] = make_check("a text, such as '3', or None", _implements(str), none=None)
check_texts: Callable[..., tuple[str, ...]] = check_each(make_check("a text", _implements(str)))
check_mapping: Callable[..., FrozenDict] = make_check("a dict", _implements(Mapping), freeze, FrozenDict())
check_mappings: Callable[..., tuple[FrozenDict, ...]] = check_each(make_check("a dict", _implements(Mapping), freeze))
check_count: Callable[..., int | None] = make_check(
    "a whole number of at least 1, or None for no limit", lambda value: is_positive(value, int), none=None
)
check_seconds: Callable[..., float | None] = make_check(
    "a positive number of seconds, or None", lambda value: is_positive(value, int | float), float, None
)
check_flag: Callable[..., bool] = make_check("True or False", _implements(bool))
check_ask: Callable[..., bool | str] = make_check(
    "True, False or the reason as a text (a guard asks about some calls only)",
    lambda value: isinstance(value, bool) or (isinstance(value, str) and value.strip()),
)
check_journal: Callable[..., Journal | None] = make_check(
    'a Journal, such as Journal.open("calls.db") or ferrule.journal.memory()',
    lambda value: isinstance(value, Journal),
    none=None,
)
check_limits: Callable[..., Leases | None] = make_check(
    "what keeps limits among programs, such as ferrule.stores.share_limits(journal)",
    lambda value: not isinstance(value, type) and callable(getattr(value, "lease", None)),
    none=None,
)
check_reconcile: Callable[..., Any] = check_callable("(call, context)", None)
check_clock: Callable[..., Clock | None] = make_check(
    "a clock, which has time(), async sleep(…), call_at(…) and now()", _implements(Clock), none=None
)
check_approver: Callable[..., Approver | None] = check_callable("(call, decision, context)", None)
check_function_of_arguments: Callable[..., Any] = make_check(
    f"{_OF_ARGUMENTS}, or None", lambda value: _is_sync_with(value, "(arguments)"), none=None
)
check_trait: Callable[..., Any] = make_check(f"True, False or {_OF_ARGUMENTS}", _is_trait)
check_derived_trait: Callable[..., Any] = make_check(f"True, False or {_OF_ARGUMENTS}", _is_trait, none=None)
"""None stands for the value that follows from `read_only`."""
check_guards: Callable[..., tuple[Guard, ...]] = check_each(
    make_check("callable with (call, context), or have check(…)", _is_guard)
)
"""Each tool checks the `check` of an object again."""
_check_all_middleware: Callable[..., tuple[Middleware, ...]] = check_each(check_callable("(call, context, next)"))
check_observer: Callable[..., Observer] = make_check(
    "a plain function of the event, as nothing awaits it (give queue.put_nowait and read the queue in a task)",
    _is_observer,
)
check_observers: Callable[..., tuple[Observer, ...]] = check_each(check_observer)


def check_middleware(key: str, value: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """Check middleware for `around` or `inside`.

    Middleware for one of the two only has the error for the other in `only_inside` or `only_around`.
    """
    items = _check_all_middleware(key, value)
    other = "only_around" if key == "inside" else "only_inside"
    for item in items:
        if isinstance(problem := getattr(item, other, None), str):
            raise DefinitionError(problem)
    return items


def check_provider_options(key: str, value: object) -> FrozenDict:
    """Check a dict that has a dict for each provider."""
    given = check_mapping(key, value)
    refuse_unknown(given, PROVIDERS, key)
    return FrozenDict((name, check_mapping(f"{key}[{name!r}]", options)) for name, options in given.items())


def check_secrets(key: str, value: object) -> FrozenDict:
    """Return the mapping, or raise a `DefinitionError` that does not quote the value."""
    if value is not None and not isinstance(value, Mapping):
        raise DefinitionError(f"{key} must be a dict, not a {type(value).__name__}")
    return check_mapping(key, value)


def check_isolation(key: str, value: object) -> object:
    """Check for None, `"process"`, or an object with `executor(tool)`."""
    if value == "process" and not (hasattr(os, "killpg") and hasattr(os, "fork")):
        raise DefinitionError("isolation='process' needs process groups, which this platform does not have")
    if value not in (None, "process") and not accepts(getattr(value, "executor", None), "(tool)"):
        raise wrong_option(key, value, "None, 'process', or an object with executor(tool)")
    return value


def check_exceptions(key: str, value: object) -> tuple[type[BaseException], ...] | None:
    """Check for one or several exception classes, or None."""
    if value is None:
        return None
    kinds = tuple(value) if isinstance(value, Iterable) and not isinstance(value, type) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise wrong_option(key, value, "a tuple of exception classes")
    return cast("tuple[type[BaseException], ...]", kinds)


def check_resume_keys(given: object) -> tuple[bytes, ...]:
    """Return the keys of `Runner(resume_key=…)`: the first signs, all verify. Without one, make a random key.

    Raises:
        DefinitionError: It is neither at least 32 bytes nor a list of such keys.
    """
    if given is None:
        return (os.urandom(_RESUME_KEY_BYTES),)
    keys = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not keys or not all(isinstance(key, bytes) and len(key) >= _RESUME_KEY_BYTES for key in keys):
        raise DefinitionError(
            f"resume_key must be at least {_RESUME_KEY_BYTES} bytes, such as secrets.token_bytes({_RESUME_KEY_BYTES}) "
            "made once, or a list of such keys: the first signs, all verify"
        )
    return keys


def accept_anything(key: str, value: object) -> object:
    """Return a value that is checked elsewhere, or needs no check."""
    return value


class Option(NamedTuple):
    """One option of a tool.

    Attributes:
        check: Returns the value to keep, or raises a `DefinitionError`.
        default: The value of the tool's attribute if the option is not given.
        makes_handler: Whether a change of the option makes the handler anew.
        is_attribute: Whether the tool has an attribute of this name.
    """

    check: Callable[[str, Any], object]
    default: object = None
    makes_handler: bool = False
    is_attribute: bool = True


class FunctionOptions(TypedDict, total=False):
    """The options of a tool with the parameters of its function or handler class."""

    description: Annotated[str | None, Option(check_text)]
    guards: Annotated[Iterable[Guard], Option(check_guards, ())]
    ask: Annotated[bool | str, Option(check_ask, False)]
    around: Annotated[Iterable[Middleware], Option(check_middleware, ())]
    inside: Annotated[Iterable[Middleware], Option(check_middleware, ())]
    concurrency: Annotated[int | None, Option(check_count)]
    timeout: Annotated[float | None, Option(check_seconds)]
    idle_timeout: Annotated[float | None, Option(check_seconds)]
    context: Annotated[object, Option(accept_anything, UNSET)]
    read_only: Annotated[Trait, Option(check_trait, False)]
    destructive: Annotated[Trait | None, Option(check_derived_trait)]
    idempotent: Annotated[Trait, Option(check_trait, False)]
    open_world: Annotated[Trait, Option(check_trait, True)]
    sandboxed: Annotated[Trait, Option(check_trait, False)]
    recorded: Annotated[bool, Option(check_flag, False)]
    parallel: Annotated[Trait | None, Option(check_derived_trait)]
    preview: Annotated[Preview | None, Option(check_function_of_arguments)]
    resources: Annotated[Resources | None, Option(check_function_of_arguments)]
    reconcile: Annotated[Reconcile | None, Option(check_reconcile)]
    background: Annotated[bool, Option(check_flag, False)]
    private: Annotated[Iterable[str], Option(check_texts, (), makes_handler=True)]
    isolation: Annotated[Literal["process"] | Isolation | None, Option(check_isolation)]
    tags: Annotated[Iterable[str], Option(check_texts, ())]
    examples: Annotated[Iterable[JsonObject], Option(check_mappings, ())]
    provider: Annotated[Mapping[str, JsonObject] | None, Option(check_provider_options, FrozenDict())]
    metadata: Annotated[JsonObject | None, Option(check_mapping, FrozenDict())]


class ToolOptions(FunctionOptions, total=False):
    """All options of a tool: those of a function, and the schemas of a handler without type hints."""

    input_schema: Annotated[
        JsonObject | type[BaseModel] | None, Option(accept_anything, makes_handler=True, is_attribute=False)
    ]
    output_schema: Annotated[JsonObject | None, Option(accept_anything, makes_handler=True, is_attribute=False)]


OPTIONS: dict[str, Option] = {key: hint.__metadata__[0] for key, hint in ToolOptions.__annotations__.items()}
DEFAULTS: dict[str, object] = {key: option.default for key, option in OPTIONS.items() if option.is_attribute}
"""The attributes of a tool without options."""
HANDLER_OPTIONS = frozenset(key for key, option in OPTIONS.items() if option.makes_handler)


def refuse_unknown(given: Iterable[str], known: Collection[str], who: str) -> None:
    """Refuse unknown options.

    Raises:
        DefinitionError: There is an unknown option. The message names all options.
    """
    for key in given:
        if key not in known:
            raise DefinitionError(f"{who}: there is no option {key!r}. The options are: {', '.join(known)}")


class ContextOptions(TypedDict, total=False):
    """The fields of a context that may be given by name."""

    deps: Any
    principal: str | None
    session: str | None


class RunOptions(ContextOptions, total=False):
    """The options of `Tool.run`."""

    timeout: float | None


def build_context(
    context: ToolContext | None, given: Mapping[str, Any], who: str, others: Iterable[str] = ()
) -> ToolContext:
    """Return a context with the fields that were given by name, which come first.

    Args:
        context: The context that was given, or None.
        given: The fields that were given by name.
        who: The subject of an error.
        others: Names of options that the caller reads itself.

    Raises:
        DefinitionError: There is an unknown option, or `context` is no context.
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
