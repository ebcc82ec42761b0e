"""What a tool's definition costs, as an estimate: no tokenizer is asked."""

from __future__ import annotations

import json

from ferrule.definition.tool import Tool


def definition_tokens(tool: Tool) -> int:
    """A quarter of the bytes of name, description and input schema as compact JSON in UTF-8, rounded up.

    It is the estimate of `ferrule lint`, without what one API or another writes round a definition. See
    docs/selection.md#by_budget.
    """
    definition = {"name": tool.wire_name, "description": tool.description, "input_schema": tool.input_schema}
    text = json.dumps(definition, ensure_ascii=False, separators=(",", ":"))
    return -(-len(text.encode("utf-8", "replace")) // 4)
