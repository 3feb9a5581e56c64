"""Pages of lists, as OpenAI's list endpoints have them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import Field

from .parameters import DIGITS, says

After = Annotated[str | None, Query(description="Id of the last row of the previous page.")]
Order = Annotated[Literal["asc", "desc"], says("must be asc or desc"), Query(description="desc: newest first.")]


@dataclass(frozen=True, slots=True)
class Page:
    """Wanted part of a list: `limit` rows `after` the row with this id, newest first unless `ascends`."""

    limit: int
    after: str | None = None
    ascends: bool = False


def page_of(*, default: int, most: int) -> Callable[..., Awaitable[Page]]:
    """Make the dependency that reads the wanted page. A page asks for one more row, to see if there are more."""
    is_limit = says(f"must be a number from 1 to {most}")

    async def page(
        after: After = None,
        limit: Annotated[int, Field(ge=1, le=most), DIGITS, is_limit, Query(description="The most rows.")] = default,
        order: Order = "desc",
    ) -> Page:
        return Page(limit + 1, after, ascends=order == "asc")

    return page


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
