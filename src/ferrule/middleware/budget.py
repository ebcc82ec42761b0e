"""`budget(calls=…, tokens=…, cost=…, seconds=…)`: bound the total use of a session or a principal."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from operator import add, sub
from typing import Any, TypeAlias

from ferrule.errors import DefinitionError
from ferrule.middleware._counted import (
    LARGEST,
    By,
    Ticking,
    function,
    keyed,
    limited,
    number,
    ran_nothing,
    shared_limits,
    uncounted,
    whole,
)
from ferrule.scheduling.clock import Clock
from ferrule.stores.limits import SECONDS, SharedLimits, answer
from ferrule.stores.store import StoreError
from ferrule.types import Next
from ferrule.values.call import ToolCall
from ferrule.values.context import ToolContext
from ferrule.values.result import ToolResult

log = logging.getLogger("ferrule")
Amounts: TypeAlias = Mapping[str, float]
"""The amounts of `tokens`, `cost` and `seconds`."""

_SCALE = 10**9  # amounts are counted in whole billionths, to make 0.1 + 0.2 equal to 0.3


def budget(
    *,
    calls: int | None = None,
    tokens: float | None = None,
    cost: float | None = None,
    seconds: float | None = None,
    reserve: Amounts | Callable[[ToolCall, ToolContext], Amounts] | None = None,
    usage: Callable[[ToolResult], Amounts | None] | None = None,
    by: By = "session",
    limits: SharedLimits | None = None,
    clock: Clock | None = None,
) -> Budget:
    """Return a middleware that bounds the total use of all calls of a session. A call beyond the bound is `limited`.
    See docs/limits.md.

    The largest possible use of a call is reserved before it runs and replaced by its actual use afterwards, so
    concurrent calls stay within the budget too. A call counts when it is let through, whatever its result. If it ran
    nothing (`executed` is `False`, or it was cancelled before), it gets everything back. If its use is unknown, the
    reservation stays.

    Put it in `inside`: in `around`, the time of a person's answer to an ask counts as the call's, too.

    Args:
        calls: The number of calls.
        tokens: The number of tokens, as `usage` returns them.
        cost: The cost in any unit, as `usage` returns it.
        seconds: The sum of the durations of the calls.
        reserve: The largest use of one call, such as `{"tokens": 4000, "cost": 0.02}`, or a function of call and
            context that returns it. `tokens` and `cost` need it. For `seconds` it is by default the time until the
            deadline, or the whole bound if there is no deadline. A call with a larger use is charged for all of it.
        usage: A function from the result to the actual use. By default `result.metadata["usage"]`, with `cost` and
            `tokens` (or `total_tokens`, or `input_tokens` and `output_tokens`). If it raises, that is logged and the
            use is unknown.
        by: The scope of one budget: `"session"`, `"principal"`, `"tool"`, or `"all"` for one; several; or a function of
            call and context that returns the key. If it raises or returns no key, nothing is run.
        limits: The accounts of several programs: `ferrule.stores.limits.shared(…)`. All budgets of the same amounts and
            the same `by` have one account there. Keys are texts, whole numbers, `None` and tuples of these. See
            docs/limits.md#among-several-programs.
        clock: The clock; by default that of the first runner to call it.

    Raises:
        DefinitionError: A parameter is not valid.
    """
    amounts = {"calls": calls, "tokens": tokens, "cost": cost, "seconds": seconds}
    bounds = {unit: amount for unit, amount in amounts.items() if amount is not None}
    return Budget(bounds, reserve, usage, by, limits, clock)


class _Account:
    __slots__ = ("running", "used")

    def __init__(self, units: int) -> None:
        self.used = [0] * units
        self.running = 0

    def take(self, wanted: list[int], limits: Sequence[int]) -> int | None:
        """Take `wanted` from the account and return None, or return the index of an amount with too little left."""
        after = list(map(add, self.used, wanted))
        for place, limit in enumerate(limits):
            if after[place] > limit:
                return place
        self.used = after
        self.running += 1
        return None

    def settle(self, unused: list[int]) -> None:
        """End a call and return its `unused` amounts to the account."""
        self.running -= 1
        self.used = list(map(sub, self.used, unused))


class Budget:
    """The middleware of `budget`. It has an account for each key until `forget(key)`."""

    def __init__(
        self,
        bounds: Amounts,
        reserve: Any,
        usage: Any,
        by: By,
        limits: SharedLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not bounds:
            raise DefinitionError("budget needs a bound: calls=…, tokens=…, cost=… or seconds=…")
        self._units = tuple(bounds)
        if "calls" in bounds:
            whole("budget(calls)", bounds["calls"])
        self._limits = [_scaled(f"budget({unit})", bound) for unit, bound in bounds.items()]
        self._key, self._who = keyed("budget", by)
        self._usage = function("budget(usage)", usage) or _usage_in_metadata
        self._clock = Ticking("budget", clock)
        self._reserve, self._fixed = self._reserving(reserve)
        self._only_calls = self._units == ("calls",)
        self._accounts: dict[Hashable, _Account] = {}
        self._lock = threading.Lock()
        shared = shared_limits("budget", limits)
        self._shared = None if shared is None else _SharedAccounts(shared, self._units, self._limits, self._who)

    def _reserving(self, reserve: Any) -> tuple[Any, list[int] | None]:
        """Return the function for the amounts to reserve, and these amounts if they are always the same."""
        if callable(reserve):
            return function("budget(reserve)", reserve), None
        amounts = {} if reserve is None else reserve
        if not isinstance(amounts, Mapping) or amounts.keys() - {"tokens", "cost", "seconds"}:
            raise DefinitionError(
                "budget(reserve) must be what one call may use, such as {'tokens': 4000}, of tokens, cost and seconds, "
                f"not {reserve!r}"
            )
        missing = [unit for unit in self._units if unit in ("tokens", "cost") and unit not in amounts]
        if missing:
            raise DefinitionError(f"budget({missing[0]}=…) needs reserve={{{missing[0]!r}: …}}: what one call may use")
        given = {unit: number(f"budget(reserve[{unit!r}])", amount) for unit, amount in amounts.items()}
        known = "seconds" not in self._units or "seconds" in given
        return (lambda call, context: given), (self._amounts(given) if known else None)

    def _amounts(self, given: Any, seconds: float = math.inf) -> list[int]:
        if not isinstance(given, Mapping):
            raise TypeError(f"budget: reserve gave {given!r}, not a mapping such as {{'tokens': 4000}}")
        known = {"calls": 1, "seconds": seconds, **given}
        return [
            limit if known[unit] == math.inf else _scaled(f"budget: reserve[{unit!r}]", known[unit])
            for unit, limit in zip(self._units, self._limits, strict=True)
        ]

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        key = self._key(call, context)
        if not self._only_calls or self._shared is not None:
            return await self._settled(key, call, context, next)
        account = self._accounts.get(key) or self._opened(key)
        used = account.used
        self._lock.acquire()  # `with` costs twice as much
        try:
            if used[0] >= self._limits[0]:
                return self._refused(account, 0, _SCALE)
            used[0] += _SCALE
        finally:
            self._lock.release()
        before = context.runs
        result: ToolResult | None = None
        try:
            result = await next(call, context)
            return result
        finally:
            if ran_nothing(result, context, before):
                with self._lock:
                    used[0] -= _SCALE

    async def _settled(self, key: Hashable, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        wanted = self._fixed
        if wanted is None:
            remaining = context.remaining()
            wanted = self._amounts(self._reserve(call, context), math.inf if remaining is None else remaining or 1e-9)
        taken: _Account | _SharedAccount
        if self._shared is None:
            taken = self._accounts.get(key) or self._opened(key)
            with self._lock:
                lacking = taken.take(wanted, self._limits)
        else:
            try:
                taken, lacking = await self._shared.take(key, wanted)
            except StoreError as error:
                return uncounted("budget", call, error)
        if lacking is not None:
            return self._refused(taken, lacking, wanted[lacking])
        result: ToolResult | None = None
        unused = [0] * len(wanted)
        try:
            before, began = context.runs, self._clock.of(context).time()
            try:
                result = await next(call, context)
                return result
            finally:
                unused = wanted if ran_nothing(result, context, before) else self._unused(wanted, result, began)
        finally:
            with self._lock:
                taken.settle(unused)

    def _opened(self, key: Hashable) -> _Account:
        return self._accounts.setdefault(key, _Account(len(self._units)))

    def _refused(self, account: _Account | _SharedAccount, place: int, wanted: int) -> ToolResult:
        unit, limit = self._units[place], _decimal(self._limits[place])
        if unit == "calls":
            return limited(f"The budget of {limit} calls for {self._who} is used up.")
        used = f"{_decimal(account.used[place])} of {limit} {unit} are used or reserved"
        said = f"{used}, and this call may use {_decimal(wanted)}."
        return limited(f"The budget for {self._who} is too small: {said}", 1.0 if account.running else None)

    def _unused(self, wanted: list[int], result: ToolResult | None, began: float) -> list[int]:
        """Return the amounts to give back; negative if the call used more."""
        used = {} if result is None else self._said(result)
        if "seconds" in self._units:
            used["seconds"] = self._clock.time() - began
        return [
            amount - round(used[unit] * _SCALE) if unit in used else 0
            for unit, amount in zip(self._units, wanted, strict=True)
        ]

    def _said(self, result: ToolResult) -> dict[str, float]:
        """Return the known use of a call."""
        try:
            return _checked(self._usage(result))
        except Exception as error:
            log.error("budget: usage raised, so what was reserved counts as used", exc_info=error)
            return {}

    def used(self, key: Hashable = None) -> dict[str, float]:
        """Return the use of `key` (a session, or the key from `by`), with the reservations of running calls.

        If programs share the account, this asks the store.

        Raises:
            StoreError: The store does not answer.
        """
        with self._lock:
            account = self._accounts.get(key)
        if self._shared is not None:
            account = self._shared.read(key)
        used = [0] * len(self._units) if account is None else account.used
        return {unit: amount / _SCALE for unit, amount in zip(self._units, used, strict=True)}

    def forget(self, key: Hashable) -> None:
        """Close the account of `key`, when its session has ended or to allow it the whole budget again.

        A shared account is closed without waiting for the store. Later returns of its running calls are lost with it.
        """
        if self._shared is not None:
            self._shared.forget(key)
        with self._lock:
            self._accounts.pop(key, None)


class _SharedAccounts:
    """Accounts of several programs. Each has the use of one key, its number of running calls, and a name.

    Because of the name, a call gives nothing back to an account opened after it.
    """

    def __init__(self, shared: SharedLimits, units: tuple[str, ...], limits: Sequence[int], who: str) -> None:
        self.shared = shared
        self.limits = limits
        self.only_calls = units == ("calls",)
        self._units = len(units)
        self._kind = f"budget/{' '.join(units)}/{who}"

    async def take(self, key: Hashable, wanted: list[int]) -> tuple[_SharedAccount, int | None]:
        """Take `wanted` from the account of `key`. Return the account as it is then, and the index of a lacking amount
        or None.

        Raises:
            StoreError: The store cannot say whether there is enough.
            TypeError: The key cannot be stored.
        """
        account = _SharedAccount(self, self.place(key), self._units)
        order = self.shared.order(account.place, partial(account.taken, wanted))
        try:
            return account, await answer(order)
        except BaseException:  # nobody waits for the order any more, but it may still succeed
            account.give_back(wanted, order)
            raise

    def place(self, key: Hashable) -> str:
        return self.shared.place(self._kind, key)

    def read(self, key: Hashable) -> _SharedAccount | None:
        """Return the account after all earlier orders of this program."""
        place = self.place(key)
        value = self.shared.order(place, lambda value: (value, value)).result(SECONDS)
        return None if value is None else _SharedAccount(self, place, self._units).as_kept(value)

    def forget(self, key: Hashable) -> None:
        self.shared.order(self.place(key), lambda value: (None, None))


class _SharedAccount(_Account):
    """An account at the time when a call took from it."""

    __slots__ = ("_accounts", "_lacking", "_opened", "place")

    def __init__(self, accounts: _SharedAccounts, place: str, units: int) -> None:
        super().__init__(units)
        self._accounts = accounts
        self._lacking: int | None = None
        self._opened = ""
        self.place = place

    def as_kept(self, value: Any) -> _SharedAccount:
        self._opened, self.running, self.used = value["opened"], value["running"], value["used"]
        return self

    def taken(self, wanted: list[int], value: Any) -> tuple[Any, int | None]:
        """Return the account's new value with `wanted` taken from it, and the index of a lacking amount or None."""
        new = {"opened": os.urandom(8).hex(), "running": 0, "used": [0] * len(wanted)}
        self.as_kept(new if value is None else value)
        self._lacking = self.take(wanted, self._accounts.limits)
        return (value if self._lacking is not None else self._kept()), self._lacking

    def settle(self, unused: list[int]) -> None:
        """Give the `unused` amounts back, without waiting for the store. If that fails, they count as used."""
        if not self._accounts.only_calls or any(unused):  # else no figure changes that anybody reads
            self._tell(partial(self._settled, unused))

    def _tell(self, change: Callable[[Any], tuple[Any, None]]) -> None:
        with suppress(StoreError):  # the program is ending
            self._accounts.shared.order(self.place, change).add_done_callback(_log_lost)

    def give_back(self, wanted: list[int], taking: Future[int | None]) -> None:
        """Give everything back if it was taken. This runs after `taking`, so it knows the outcome."""

        def change(value: Any) -> tuple[Any, None]:
            lost = taking.done() and taking.exception() is not None
            return (value, None) if lost or self._lacking is not None else self._settled(wanted, value)

        self._tell(change)

    def _settled(self, unused: list[int], value: Any) -> tuple[Any, None]:
        if value is None or value["opened"] != self._opened:
            return value, None
        self.as_kept(value)
        super().settle(unused)
        return self._kept(), None

    def _kept(self) -> dict[str, Any]:
        return {"opened": self._opened, "running": self.running, "used": self.used}


def _log_lost(order: Future[None]) -> None:
    if error := order.exception():
        log.error("budget: what a call has not used counts as used, as its account did not answer: %s", error)


def _scaled(name: str, amount: Any) -> int:
    return max(1, round(number(name, amount) * _SCALE))


def _decimal(amount: int) -> str:
    return f"{amount / _SCALE:.12g}"


def _usage_in_metadata(result: ToolResult) -> Mapping[str, Any] | None:
    """Return `metadata["usage"]`, under the names of the model APIs."""
    usage = result.metadata.get("usage")
    if not isinstance(usage, Mapping):
        return None
    parts = [usage[name] for name in ("input_tokens", "output_tokens") if name in usage]
    tokens = usage.get("tokens", usage.get("total_tokens", sum(parts) if len(parts) == 2 else None))
    return {"tokens": tokens, "cost": usage.get("cost")}


def _checked(amounts: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the amounts that are finite numbers from 0 upwards, at most `LARGEST`. All others count as unknown."""
    if amounts is None:
        return {}
    return {
        unit: min(amount, LARGEST)
        for unit, amount in amounts.items()
        if isinstance(amount, int | float) and not isinstance(amount, bool) and 0 <= amount < math.inf
    }
