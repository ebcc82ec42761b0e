"""Exporting many tools is little work for each."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel

from ferrule import Field, Tool, Toolset
from ferrule.providers import anthropic, bedrock, cohere, gemini, mistral, ollama, openai_chat, openai_responses
from steps import steps


class Address(BaseModel):
    street: str = Field(description="Street and number")
    country: Literal["de", "fr"] = "de"


class Line(BaseModel):
    sku: str = Field(pattern="^[A-Z0-9-]+$")
    count: int = Field(ge=1, le=100)
    price: float | None = None


async def order(
    customer: str,
    address: Address,
    lines: list[Line],
    when: datetime,
    note: Annotated[str | None, Field(description="For the driver")] = None,
) -> str:
    """Place an order."""
    return ""


MOST = {
    **dict.fromkeys([anthropic, openai_chat, openai_responses, mistral, cohere], 350),
    **dict.fromkeys([bedrock, gemini, ollama], 1_000),
}


@pytest.mark.parametrize("module", MOST, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_first_export_calls_few_functions(module: Any) -> None:
    of_one, of_many = (Toolset(Tool(f"order_{n}", order) for n in range(number)) for number in (1, 21))
    module.tools(Toolset([Tool("another", order)]))  # what is make_tool once for all
    assert (steps(lambda: module.tools(of_many)) - steps(lambda: module.tools(of_one))) / 20 < MOST[module]


def test_a_schema_is_read_once_for_all_apis_that_take_it_unchanged() -> None:
    toolset = Toolset(Tool(f"order_{number}", order) for number in range(20))
    anthropic.tools(toolset)
    for module in (openai_chat, openai_responses, mistral, cohere):
        assert steps(lambda of=module: of.tools(toolset)) / 20 < 120, module
