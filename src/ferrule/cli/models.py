"""The model that `--model` names."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from ferrule import DefinitionError, FerruleError, Toolset, models
from ferrule.cli.load import load_file
from ferrule.cli.usage import UsageError, choices
from ferrule.models import Model, Reply
from ferrule.values.log import make_logger

SCRIPTED = "scripted"
PROVIDERS = tuple(name.lower() for name in models.NAMES if name != "Scripted")
MODEL_HELP = f"PROVIDER:NAME with one of {', '.join(PROVIDERS)}; or scripted:FILE, a Python file that defines `steps`"
ADDRESS_HELP = (
    "another address of the provider's API; with openai:NAME, of anything that is compatible with it, which is asked "
    "by Chat Completions (OPENAI_BASE_URL in the environment is another address of OpenAI's own, with Responses)"
)
OnText: TypeAlias = Callable[[str], object]
_log = make_logger("ferrule.cli")


class ModelFailed(Exception):
    """The model raised; the program's own faults look otherwise."""


class Named:
    """A wrapper of the named model that marks its exceptions as its own.

    Args:
        name: The name as it was written.
        model: The model itself.
    """

    def __init__(self, name: str, model: Any) -> None:
        self.name = name
        self.is_scripted = isinstance(model, models.Scripted)
        self.results, self.user = model.results, model.user
        self.find_referred_tools = getattr(model, "find_referred_tools", None)
        self._model = model

    async def __call__(
        self,
        messages: Sequence[dict[str, Any]],
        toolset: Toolset,
        /,
        *,
        on_text: OnText = str,
        deferred: Sequence[str] | None = None,
        **state: Any,
    ) -> Reply:
        if not self.is_scripted:
            state |= {"on_text": on_text, "deferred": deferred}
        try:
            reply: Reply = await self._model(messages, toolset, **state)
        except DefinitionError:
            raise
        except Exception as error:
            raise ModelFailed(_failure_text(error)) from error
        return reply

    async def aclose(self) -> None:
        """Close the connections of the model."""
        close: Callable[[], Awaitable[None]] | None = getattr(self._model, "aclose", None)
        if close is not None:
            await close()


def _failure_text(error: Exception) -> str:
    """Return the text of an SDK's error for a person: the address and the reason if the model could not be reached."""
    chain = list(_causes(error))
    unreached = [one for one in chain if isinstance(one, OSError) and one.filename is None]  # else it is about a file
    if not unreached:
        return f"{type(error).__name__}: {error}"
    addresses = filter(None, map(_address_of, chain))
    return f"it cannot be reached at {next(addresses, 'its address')}: {_unreachable_reason(unreached[-1])}"


def _unreachable_reason(error: OSError) -> str:
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # asyncio has texts of its own
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return error.strerror or str(error) or type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, the deepest last."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        group = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        error = group[0] if group else error.__cause__ or error.__context__


def _address_of(error: BaseException) -> str | None:
    """Return the URL of the failed request, without its possibly secret parts."""
    try:
        request: Any = getattr(error, "request", None)
    except RuntimeError:  # httpx has a property that raises if there was no request
        return None
    kwargs = getattr(error, "kwargs", None)  # of botocore
    url = getattr(request, "url", None) or (kwargs.get("endpoint_url") if isinstance(kwargs, dict) else None)
    if url is None:
        return None
    parts = urlsplit(str(url))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def named(name: str, base_url: str | None) -> Named:
    """Return the model of this name.

    Args:
        name: `PROVIDER:NAME`, or `scripted:FILE`.
        base_url: Another address for it.

    Raises:
        UsageError: There is no such model, or it cannot be made from the command line and the environment.
        DefinitionError: The SDK or credentials are missing.
    """
    kind, _, which = name.partition(":")
    if kind not in {*PROVIDERS, SCRIPTED}:
        raise UsageError(f"there is no model {name!r}; {choices(kind, _model_forms())}")
    if not which:
        raise UsageError(
            f"{name!r} names no model: write {kind}:NAME" if kind != SCRIPTED else f"{name!r} names no file"
        )
    if kind == SCRIPTED:
        return Named(name, _scripted(which, _steps_in(which, base_url)))
    try:
        model = models.model_from_name(name, base_url=base_url)
    except FerruleError:
        raise
    except Exception as error:  # any error of an SDK for an address, a profile or credentials that it cannot use
        _log.debug("the model cannot be made", exc_info=True)
        raise UsageError(f"the model {name!r} cannot be made: {type(error).__name__}: {error}") from error
    return Named(name, model)


def _model_forms() -> list[str]:
    return [*(f"{provider}:NAME" for provider in PROVIDERS), f"{SCRIPTED}:FILE"]


def by_case(name: str, base_url: str | None) -> Callable[[str], Named]:
    """Return a function from the id of a case to its model: one for all, or a scripted one that begins anew for each.
    Its `steps` are those of every case, or a dict with those of each by its id.

    Raises:
        UsageError, DefinitionError: See `named`. The function itself raises `UsageError` for a case without steps.
    """
    kind, _, file = name.partition(":")
    if kind != SCRIPTED or not file:
        model = named(name, base_url)
        return lambda case: model
    steps = _steps_in(file, base_url)
    if not isinstance(steps, Mapping):
        return lambda case: Named(name, _scripted(file, steps))

    def model_of(case: str) -> Named:
        if case not in steps:
            raise UsageError(f"the `steps` in {file!r} have none for the case {case!r}; {choices(case, steps)}")
        return Named(name, _scripted(file, steps[case]))

    return model_of


def _steps_in(file: str, base_url: str | None) -> Any:
    if base_url is not None:
        raise UsageError("a scripted model has no address: leave --base-url out")
    module = load_file(file)
    steps = getattr(module, "steps", None)
    if steps is None:
        raise UsageError(f"{file!r} defines no `steps`: a list of what the model says and calls, turn by turn")
    return steps


def _scripted(file: str, steps: Any) -> Model:
    try:
        return models.Scripted(steps)
    except DefinitionError as error:
        raise UsageError(f"{file!r}: {error}") from None
