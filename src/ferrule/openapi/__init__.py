"""Tools from an OpenAPI document: `from ferrule.sources import openapi`. See docs/openapi.md."""

from ferrule.openapi.toolset import look, openapi

__all__ = ["look", "openapi"]
