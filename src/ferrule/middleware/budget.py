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
from ferrule.middleware._limits import (
    LARGEST_NUMBER,
    By,
    MiddlewareClock,
    check_number,
    check_shared_limits,
    check_whole_number,
    function,
    has_run_nothing,
    make_key,
    make_limited_result,
    make_uncounted_result,
)
from ferrule.scheduling.clock import Clock
from ferrule.stores.limits import SECONDS, SharedLimits, wait_for_answer
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
    by: By = ("session", "principal"),
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
            context that returns it; an amount of 0, or `{}`, is free. `tokens` and `cost` need it. For `seconds` it is
            by default the time until the deadline, or the whole bound if there is no deadline. A call with a larger use
            is charged for all of it.
        usage: A function from the result to the actual use. By default `result.metadata["usage"]`, with `cost` and
            `tokens` (or `total_tokens`, or `input_tokens` and `output_tokens`). If it raises, that is logged and the
            use is unknown.
        by: The scope of one budget: `"session"`, `"principal"`, `"tool"`, or `"all"` for one; several; or a function of
            call and context that returns the key. If it raises or returns no key, nothing is run. By default a session
            of one principal.
        limits: The accounts of several programs: `ferrule.stores.share_limits(…)`. All budgets of the same amounts and
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
        for index, limit in enumerate(limits):
            if wanted[index] and after[index] > limit:
                return index
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
            check_whole_number("budget(calls)", bounds["calls"])
        self._limits = [_to_billionths(f"budget({unit})", bound) for unit, bound in bounds.items()]
        self._key, self._scope = make_key("budget", by)
        self._usage = function("budget(usage)", usage) or _find_usage
        self._clock = MiddlewareClock("budget", clock)
        self._reserve, self._fixed_reserve = self._read_reserve(reserve)
        self._accounts: dict[Hashable, _Account] = {}
        self._lock = threading.Lock()
        shared = check_shared_limits("budget", limits)
        self._shared = None if shared is None else _SharedAccounts(shared, self._units, self._limits, self._scope)

    def _read_reserve(self, reserve: Any) -> tuple[Any, list[int] | None]:
        """Return the function for the amounts to reserve, and these amounts if they are always the same."""
        if callable(reserve):
            return function("budget(reserve)", reserve), None
        amounts = {} if reserve is None else reserve
        if not isinstance(amounts, Mapping) or amounts.keys() - {"tokens", "cost", "seconds"}:
            raise DefinitionError(
                "budget(reserve) must be a mapping of tokens, cost and seconds, such as {'tokens': 4000}, or a "
                f"function, not {reserve!r}"
            )
        missing = [unit for unit in self._units if unit in ("tokens", "cost") and unit not in amounts]
        if missing:
            raise DefinitionError(
                f"budget({missing[0]}=…) needs reserve={{{missing[0]!r}: …}}, the largest use of one call"
            )
        reserved = {unit: check_number(f"budget(reserve[{unit!r}])", amount) for unit, amount in amounts.items()}
        is_fixed = "seconds" not in self._units or "seconds" in reserved
        return (lambda call, context: reserved), (self._amounts(reserved) if is_fixed else None)

    def _amounts(self, reserved: Any, seconds: float = math.inf) -> list[int]:
        if not isinstance(reserved, Mapping):
            raise TypeError(f"budget(reserve) returned {reserved!r}, not a mapping such as {{'tokens': 4000}}")
        values = {"calls": 1, "seconds": seconds, **(reserved or {"tokens": 0, "cost": 0})}
        return [
            limit if values[unit] == math.inf else _to_billionths(f"budget: reserve[{unit!r}]", values[unit], zero=True)
            for unit, limit in zip(self._units, self._limits, strict=True)
        ]

    async def __call__(self, call: ToolCall, context: ToolContext, next: Next) -> ToolResult:
        key = self._key(call, context)
        wanted = self._fixed_reserve
        if wanted is None:
            remaining = context.remaining()
            wanted = self._amounts(self._reserve(call, context), math.inf if remaining is None else remaining or 1e-9)
        account: _Account | _SharedAccount
        if self._shared is None:
            with self._lock:
                account = self._accounts.setdefault(key, _Account(len(self._units)))
                lacking = account.take(wanted, self._limits)
        else:
            try:
                account, lacking = await self._shared.take(key, wanted)
            except StoreError as error:
                return make_uncounted_result("budget", call, error)
        if lacking is not None:
            return self._refuse(account, lacking, wanted[lacking])
        result: ToolResult | None = None
        before, began = context.runs, self._clock.get(context).time()
        try:
            result = await next(call, context)
            return result
        finally:
            is_unused = has_run_nothing(result, context, before)
            unused = wanted if is_unused else self._find_unused(wanted, result, began)
            with self._lock:
                account.settle(unused)

    def _refuse(self, account: _Account | _SharedAccount, index: int, wanted: int) -> ToolResult:
        unit, limit = self._units[index], _format_amount(self._limits[index])
        if unit == "calls":
            return make_limited_result(
                f"The budget of {limit} {'call' if limit == '1' else 'calls'} for {self._scope} is used up."
            )
        used = f"{_format_amount(account.used[index])} of {limit} {unit} are used or reserved"
        error = f"The budget for {self._scope} is too small: {used}, and this call may use {_format_amount(wanted)}."
        return make_limited_result(error, 1.0 if account.running else None)

    def _find_unused(self, wanted: list[int], result: ToolResult | None, began: float) -> list[int]:
        """Return the amounts to give back; negative if the call used more."""
        used = {} if result is None else self._read_usage(result)
        if "seconds" in self._units:
            used["seconds"] = self._clock.time() - began
        return [
            amount - round(used[unit] * _SCALE) if unit in used else 0
            for unit, amount in zip(self._units, wanted, strict=True)
        ]

    def _read_usage(self, result: ToolResult) -> dict[str, float]:
        """Return the known use of a call."""
        try:
            return _drop_invalid(self._usage(result))
        except Exception as error:
            log.error("budget: usage raised, so the whole reservation counts as used", exc_info=error)
            return {}

    def used(self, key: Hashable = None) -> dict[str, float]:
        """Return the use of `key`, with the reservations of running calls.

        By default, the key is the session and the principal: `("s1", "ada")`. If programs share the account, this asks
        the store.

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

    def __init__(self, shared: SharedLimits, units: tuple[str, ...], limits: Sequence[int], scope: str) -> None:
        self.shared = shared
        self.limits = limits
        self.only_calls = units == ("calls",)
        self._units = len(units)
        self._kind = f"budget/{' '.join(units)}/{scope}"

    async def take(self, key: Hashable, wanted: list[int]) -> tuple[_SharedAccount, int | None]:
        """Take `wanted` from the account of `key`. Return the account as it is then, and the index of a lacking amount
        or None.

        Raises:
            StoreError: The store cannot say whether there is enough.
            TypeError: The key cannot be stored.
        """
        account = _SharedAccount(self, self.place(key), self._units)
        order = self.shared.order(account.place, partial(account.take_from, wanted))
        try:
            return account, await wait_for_answer(order)
        except BaseException:  # nobody waits for the order any more, but it may still succeed
            account.give_back(wanted, order)
            raise

    def place(self, key: Hashable) -> str:
        return self.shared.place(self._kind, key)

    def read(self, key: Hashable) -> _SharedAccount | None:
        """Return the account after all earlier orders of this program."""
        place = self.place(key)
        value = self.shared.order(place, lambda value: (value, value)).result(SECONDS)
        return None if value is None else _SharedAccount(self, place, self._units).load(value)

    def forget(self, key: Hashable) -> None:
        self.shared.order(self.place(key), lambda value: (None, None))


class _SharedAccount(_Account):
    """An account at the time when a call took from it."""

    __slots__ = ("_accounts", "_id", "_lacking", "place")

    def __init__(self, accounts: _SharedAccounts, place: str, units: int) -> None:
        super().__init__(units)
        self._accounts = accounts
        self._lacking: int | None = None
        self._id = ""
        self.place = place

    def load(self, value: Any) -> _SharedAccount:
        self._id, self.running, self.used = value["opened"], value["running"], value["used"]
        return self

    def take_from(self, wanted: list[int], value: Any) -> tuple[Any, int | None]:
        """Return the account's new value with `wanted` taken from it, and the index of a lacking amount or None."""
        new = {"opened": os.urandom(8).hex(), "running": 0, "used": [0] * len(wanted)}
        self.load(new if value is None else value)
        self._lacking = self.take(wanted, self._accounts.limits)
        return (value if self._lacking is not None else self._to_json()), self._lacking

    def settle(self, unused: list[int]) -> None:
        """Give the `unused` amounts back, without waiting for the store. If that fails, they count as used."""
        if not self._accounts.only_calls or any(unused):  # else no figure changes that anybody reads
            self._order(partial(self._settle_value, unused))

    def _order(self, change: Callable[[Any], tuple[Any, None]]) -> None:
        with suppress(StoreError):  # the program is ending
            self._accounts.shared.order(self.place, change).add_done_callback(_log_failure)

    def give_back(self, wanted: list[int], taking: Future[int | None]) -> None:
        """Give everything back if it was taken. This runs after `taking`, so it knows the outcome."""

        def change(value: Any) -> tuple[Any, None]:
            lost = taking.done() and taking.exception() is not None
            return (value, None) if lost or self._lacking is not None else self._settle_value(wanted, value)

        self._order(change)

    def _settle_value(self, unused: list[int], value: Any) -> tuple[Any, None]:
        if value is None or value["opened"] != self._id:
            return value, None
        self.load(value)
        super().settle(unused)
        return self._to_json(), None

    def _to_json(self) -> dict[str, Any]:
        return {"opened": self._id, "running": self.running, "used": self.used}


def _log_failure(order: Future[None]) -> None:
    if error := order.exception():
        log.error("budget: the shared account failed, so the whole reservation of a call counts as used: %s", error)


def _to_billionths(name: str, amount: Any, *, zero: bool = False) -> int:
    number = check_number(name, amount, zero=zero)
    return max(1, round(number * _SCALE)) if number else 0


def _format_amount(amount: int) -> str:
    return f"{amount / _SCALE:.12g}"


def _find_usage(result: ToolResult) -> Mapping[str, Any] | None:
    """Return `metadata["usage"]`, under the names of the model APIs."""
    usage = result.metadata.get("usage")
    if not isinstance(usage, Mapping):
        return None
    parts = [usage[name] for name in ("input_tokens", "output_tokens") if name in usage]
    tokens = usage.get("tokens", usage.get("total_tokens", sum(parts) if len(parts) == 2 else None))
    return {"tokens": tokens, "cost": usage.get("cost")}


def _drop_invalid(amounts: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the finite amounts from 0 upwards, each at most `LARGEST_NUMBER`. All others count as unknown."""
    if amounts is None:
        return {}
    return {
        unit: min(amount, LARGEST_NUMBER)
        for unit, amount in amounts.items()
        if isinstance(amount, int | float) and not isinstance(amount, bool) and 0 <= amount < math.inf
    }
