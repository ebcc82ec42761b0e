"""A page for the tools, approvals, calls and rules of a runner: `ferrule inspect`, or a part of your application.

    page = web.app(runner, authenticate=lambda request: request.session.get("user"))
    application.mount("/ferrule", page)

`pip install "ferrule[web]"` installs Starlette, uvicorn and Jinja2. See docs/inspect.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ferrule.errors import DefinitionError
from ferrule.web.authentication import Authenticate

if TYPE_CHECKING:
    from ferrule.approval.web import Web
    from ferrule.runner import Runner
    from ferrule.web.page_app import PageApp

__all__ = ["Authenticate", "app"]


def app(
    runner: Runner,
    *,
    authenticate: Authenticate,
    queue: Web | None = None,
    read_only: bool = False,
    origins: Iterable[str] = (),
) -> PageApp:
    """Return the page as an ASGI app, to mount in a Starlette or FastAPI application.

    See docs/inspect.md#in-your-application. Everybody whom `authenticate` names may call tools under any principal
    (under their own name only, if the queue has `own=False`), and answer questions. The page reads the runner's journal
    if that is a file.

    Args:
        runner: The runner. Without an approver of its own, its calls from the page wait for an answer on the page.
        authenticate: Returns the name of the signed-in person, or None.
        queue: The queue of your application, made by `approval.web`; by default those in the journal's store.
        read_only: Whether the page can neither call nor approve.
        origins: Origins such as `https://ops.example.com`, if a proxy changes the Host header.

    Raises:
        DefinitionError: An argument is wrong, or a package is missing.
    """
    given: Any = authenticate
    if not callable(given):
        raise DefinitionError(
            f"app(authenticate=…) is a function of the request that returns the person's name, not {given!r}"
        )
    check_packages()
    from ferrule.web.page_app import PageApp
    from ferrule.web.state import Inspector

    return PageApp(Inspector(runner, queue=queue, read_only=read_only), authenticate, origins=origins)


def check_packages() -> None:
    """Check that the packages of the page are installed.

    Raises:
        DefinitionError: One is missing.
    """
    for name in ("jinja2", "starlette", "uvicorn"):
        if find_spec(name) is None:
            raise DefinitionError(f'the page needs the package {name}: pip install "ferrule[web]"')
