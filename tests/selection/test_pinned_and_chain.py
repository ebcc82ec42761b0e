"""`pinned` gives what it names, and says what is not there; `chain` puts selectors one behind the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from catalogue import SHOP, made, names
from rankers import Overlap

from ferrule import DefinitionError, Tool
from ferrule.selection import Query, ToolSelector, chain, pinned


def selected(selector: ToolSelector, messages: Query = "", tools: Iterable[Tool] = SHOP) -> list[str]:
    return names(asyncio.run(selector.select(messages, tools)))


class Gives:
    def __init__(self, *tools: Any) -> None:
        self.tools = tools

    async def select(self, messages: Query, tools: Iterable[Tool]) -> Any:
        return self.tools


def test_pinned_gives_names_and_globs_in_the_order_of_the_toolset() -> None:
    assert selected(pinned("weather", "read_*", "read_order")) == ["read_order", "read_parcel", "weather"]


def test_pinned_selects_by_tags_and_names_together() -> None:
    assert selected(pinned(tags=["reads", "none"])) == ["read_order", "read_parcel"]
    assert selected(pinned("*order", tags=["reads"])) == ["read_order"]
    assert selected(pinned("delete_*")) == []


def test_a_name_that_no_tool_has_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(DefinitionError, match=r"no tool 'read_orders'; did you mean 'read_order'"):
        selected(pinned("read_*", "read_orders"))
    with pytest.raises(DefinitionError, match=r"no tool 'zzz'$"):
        selected(pinned("zzz"))


@pytest.mark.parametrize(
    ("names", "more", "said"),
    [((), {}, "pins nothing"), ((["a", "b"],), {}, "one by one"), (("a",), {"tags": "core"}, r"tags=\['core'\]")],
)
def test_wrong_pins_are_refused(names: Any, more: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        pinned(*names, **more)


def test_chain_joins_selections_in_order_without_repeats() -> None:
    selector = chain(pinned("weather"), Overlap(), pinned("read_*"))
    assert selected(selector, "refund the order") == ["weather", "refund_order", "read_order", "read_parcel"]


def test_a_tool_of_another_toolset_is_an_error_and_not_offered() -> None:
    with pytest.raises(DefinitionError, match=r"returned <Tool other>, which is not one of the tools that it got"):
        selected(chain(pinned("read_*"), Gives(made("other"))))
    with pytest.raises(DefinitionError, match="not one of the tools"):
        selected(chain(Gives(SHOP.get("weather").replace(metadata={"title": "Weather"}))))


def test_a_selector_that_gives_no_tools_is_an_error() -> None:
    class Wrong(Gives):
        async def select(self, messages: Query, tools: Iterable[Tool]) -> Any:
            return None

    with pytest.raises(DefinitionError, match="returned None"):
        selected(chain(Wrong()))


def test_chain_refuses_other_things_than_selectors() -> None:
    with pytest.raises(DefinitionError, match=r"chain takes selectors, such as pinned\('read_\*'\)"):
        chain(pinned("a"), Overlap)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="selects nothing"):
        chain()
