"""Resources and prompts, as a server's developer writes them."""

from __future__ import annotations

from typing import assert_type

from ferrule import Runner, serve


@serve.resource("shop://hours", title="Opening hours", icons="https://example.com/tea.png")
def hours() -> str:
    return "8 to 17"


@serve.prompt
async def restock(article: str, count: int = 1) -> str:
    return f"Order {count} of {article}."


@serve.prompt(name="greet", icons=[{"src": "https://example.com/tea.png", "sizes": ["48x48"]}])
def greeting() -> str:
    return "Greet."


def plain(article: str) -> str:
    return article


assert_type(hours, serve.Resource)
assert_type(restock, serve.Prompt)
assert_type(greeting, serve.Prompt)
assert_type(serve.resource("shop://articles/{article}", plain), serve.Resource)
serve.mcp(Runner([]), resources=[hours], prompts=[restock, greeting, plain])
serve.mcp(Runner([]), resources=[plain])  # type: ignore[list-item]
