"""The model that `--model` names."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from ferrule import DefinitionError, FerruleError, Toolset, models
from ferrule.cli.load import load_file
from ferrule.cli.shared_options import MODEL_PROVIDERS
from ferrule.cli.usage import UsageError, suggest
from ferrule.models import Model, Reply
from ferrule.values.log import make_logger

SCRIPTED = "scripted"
OnText: TypeAlias = Callable[[str], object]
_log = make_logger("ferrule.cli")


class ModelFailed(Exception):
    """The model raised an exception."""


class NamedModel:
    """A model that turns its exceptions into `ModelFailed`.

    Args:
        name: The value of `--model`.
        model: The model that is called.
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
    chain = list(_list_causes(error))
    network = [cause for cause in chain if isinstance(cause, OSError) and cause.filename is None]  # others name a file
    if not network:
        return f"{type(error).__name__}: {error}"
    addresses = filter(None, map(_find_address, chain))
    return f"cannot reach it at {next(addresses, 'its address')}: {_network_reason(network[-1])}"


def _network_reason(error: OSError) -> str:
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # asyncio has texts of its own
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return error.strerror or str(error) or type(error).__name__


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, the deepest last."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        group = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        error = group[0] if group else error.__cause__ or error.__context__


def _find_address(error: BaseException) -> str | None:
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


def make_model(name: str, base_url: str | None) -> NamedModel:
    """Return the model of this name.

    Args:
        name: `PROVIDER:NAME`, or `scripted:FILE`.
        base_url: Another address for it.

    Raises:
        UsageError: There is no such model, or the SDK refuses the address or the environment.
        DefinitionError: The SDK or credentials are missing.
    """
    kind, _, rest = name.partition(":")
    if kind not in {*MODEL_PROVIDERS, SCRIPTED}:
        hint = f"write {SCRIPTED}:{name}" if name.endswith(".py") else suggest(kind, _model_forms())
        raise UsageError(f"--model {name!r}: there is no provider {kind!r}; {hint}")
    if not rest:
        raise UsageError(f"--model {name!r} is incomplete: write {kind}:{'FILE' if kind == SCRIPTED else 'NAME'}")
    if kind == SCRIPTED:
        return NamedModel(name, _make_scripted(rest, _load_steps(rest, base_url)))
    try:
        model = models.model_from_name(name, base_url=base_url)
    except FerruleError:
        raise
    except Exception as error:  # any error of an SDK for an address, a profile or credentials that it cannot use
        _log.debug("cannot create the model", exc_info=True)
        raise UsageError(f"cannot create the model {name!r}: {type(error).__name__}: {error}") from error
    return NamedModel(name, model)


def _model_forms() -> list[str]:
    return [*(f"{provider}:NAME" for provider in MODEL_PROVIDERS), f"{SCRIPTED}:FILE"]


def make_case_models(name: str, base_url: str | None) -> Callable[[str], NamedModel]:
    """Return a function from the id of a case to its model: one for all cases, or a new scripted one for each.
    The `steps` of the file are for every case, or are a dict with the steps of each case by id.

    Raises:
        UsageError, DefinitionError: See `make_model`. The function itself raises `UsageError` for a case without steps.
    """
    kind, _, file = name.partition(":")
    if kind != SCRIPTED or not file:
        model = make_model(name, base_url)
        return lambda case: model
    steps = _load_steps(file, base_url)
    if not isinstance(steps, Mapping):
        return lambda case: NamedModel(name, _make_scripted(file, steps))

    def get_model(case: str) -> NamedModel:
        if case not in steps:
            raise UsageError(f"{file!r} has no steps for the case {case!r}; {suggest(case, steps)}")
        return NamedModel(name, _make_scripted(file, steps[case]))

    return get_model


def _load_steps(file: str, base_url: str | None) -> Any:
    if base_url is not None:
        raise UsageError("--base-url is not for a scripted model: leave it out")
    module = load_file(file)
    steps = getattr(module, "steps", None)
    if steps is None:
        raise UsageError(f"{file!r} does not define `steps`, the list of the model's turns")
    return steps


def _make_scripted(file: str, steps: Any) -> Model:
    try:
        return models.Scripted(steps)
    except DefinitionError as error:
        raise UsageError(f"{file!r}: {error}") from None
