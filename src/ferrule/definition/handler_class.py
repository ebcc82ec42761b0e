"""`ToolHandler`, apart from the rest: a Pydantic model is dear to build, and most programs never use this one."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class ToolHandler(BaseModel):
    """A tool as a class: the fields are the parameters, `__call__` does the work, each call has its own instance.
    See docs/forms.md."""

    async def __call__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} needs `async def __call__(self)`")
