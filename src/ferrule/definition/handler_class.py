"""`ToolHandler`. It has its own module because a Pydantic model is slow to build, and most programs never use it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class ToolHandler(BaseModel):
    """A tool as a class: the fields are the parameters, and each call runs `__call__` of a new instance.

    See docs/forms.md.
    """

    async def __call__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} needs `async def __call__(self)`")
