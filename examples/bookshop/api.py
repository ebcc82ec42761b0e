"""The API of a bookshop, which `server.py` calls. In real life somebody else runs it.

BOOKSHOP_KEY=secret python examples/bookshop/api.py 8001
"""

from __future__ import annotations

import itertools
import os
import secrets
import sys
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

BOOKS: list[dict[str, Any]] = [
    {"id": "b1", "title": "The Left Hand of Darkness", "author": "Le Guin", "price": 12.0},
    {"id": "b2", "title": "The Dispossessed", "author": "Le Guin", "price": 11.5},
    {"id": "b3", "title": "Solaris", "author": "Lem", "price": 9.0},
]


def app(key: str) -> Starlette:
    """Return the API. Every request needs the key."""
    orders: dict[str, dict[str, Any]] = {}
    numbers = itertools.count(1)

    def check_key(request: Request) -> Response | None:
        if secrets.compare_digest(request.headers.get("x-api-key", "").encode(), key.encode()):
            return None
        return JSONResponse({"error": "the key is wrong"}, 401)

    async def books(request: Request) -> Response:
        author = request.query_params.get("author")
        found = [book for book in BOOKS if author in (None, book["author"])]
        return check_key(request) or JSONResponse(found)

    async def order(request: Request) -> Response:
        if (denial := check_key(request)) is not None:
            return denial
        body = await request.json()
        book = next((book for book in BOOKS if book["id"] == body["book"]), None)
        if book is None:
            return JSONResponse({"error": f"there is no book {body['book']!r}"}, 404)
        number = f"o{next(numbers)}"
        orders[number] = {"id": number, **body, "total": book["price"] * body["copies"]}
        return JSONResponse(orders[number], 201, {"location": f"/orders/{number}"})

    async def cancel(request: Request) -> Response:
        if (denial := check_key(request)) is not None:
            return denial
        if orders.pop(request.path_params["id"], None) is None:
            return JSONResponse({"error": "there is no such order"}, 404)
        return Response(status_code=204)

    service = Starlette(
        routes=[
            Route("/books", books, methods=["GET"]),
            Route("/orders", order, methods=["POST"]),
            Route("/orders/{id}", cancel, methods=["DELETE"]),
        ]
    )
    service.state.orders = orders
    return service


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app(os.environ["BOOKSHOP_KEY"]), port=int(sys.argv[1]))
