"""Tools from an OpenAPI document: `from ferrule.sources import openapi`. See docs/openapi.md."""

from ferrule.openapi.toolset import openapi

__all__ = ["openapi"]
