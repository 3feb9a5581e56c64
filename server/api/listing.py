"""Pages of lists, as OpenAI's list endpoints have them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import QueryParams

from ...engine.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Page:
    """Wanted part of a list: `limit` rows `after` the row with this id, newest first unless `ascends`."""

    limit: int
    after: str | None = None
    ascends: bool = False


def page_of(query: QueryParams, *, default: int, most: int) -> Page:
    """Parse the wanted part of a list. The page asks for one more row, to see if there are more. Raises."""
    limit, order = query.get("limit", str(default)), query.get("order", "desc")
    if not (re.fullmatch(r"[0-9]{1,5}", limit) and 1 <= int(limit) <= most):
        raise InvalidRequestError(f"limit must be a number from 1 to {most}", param="limit")
    if order not in ("asc", "desc"):
        raise InvalidRequestError("order must be asc or desc", param="order")
    return Page(int(limit) + 1, query.get("after"), ascends=order == "asc")


def list_object(rows: Sequence[dict[str, Any]], page: Page) -> dict[str, Any]:
    """Build one page of a list. An extra row beyond the page shows that there are more."""
    data = list(rows[: page.limit - 1])
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(rows) >= page.limit,
    }
