"""Bodies of /v1/conversations."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import Field, SkipValidation
from starlette.requests import Request

from ....engine.errors import InvalidRequestError
from ....engine.extras.chat.messages import read_items
from ...api.request_model import ParseContext, RequestModel
from ...http.json_body import read_json
from ...service import service_of
from ..batches.request import Metadata
from ..chat.message_fields import look_into_items
from ..responses.input_items import Item, input_items


class ConversationBody(RequestModel):
    """Body without a model."""

    is_tolerant = True

    @classmethod
    async def from_request(cls, request: Request) -> Self:
        """Like RequestModel.from_request, but no model is named. Raises like `read` and `read_json`."""
        settings = service_of(request).settings
        body = cls.read(await read_json(request, max_bytes=settings.max_body_bytes), is_strict=settings.strict_fields)
        body.name_ignored(request)
        return body

    @classmethod
    def _look_into(cls, fields: Mapping[str, Any], reading: ParseContext) -> None:
        look_into_items(fields.get("items"), reading, field="items")


class ConversationRequest(ConversationBody):
    """A conversation to begin."""

    example: ClassVar = {"items": [{"role": "user", "content": "Hello"}], "metadata": {"topic": "greetings"}}
    items: SkipValidation[list[dict[str, Any]]] = Field([])
    metadata: Metadata = Field({})


class ConversationUpdate(ConversationBody):
    """Metadata that replaces that of a conversation."""

    example: ClassVar = {"metadata": {"topic": "greetings"}}
    metadata: Metadata


class ItemsRequest(ConversationBody):
    """Items to add to a conversation."""

    example: ClassVar = {"items": [{"role": "user", "content": "Hello"}]}
    items: SkipValidation[list[dict[str, Any]]]


def new_items(items: Sequence[Any], *, name: str) -> list[Item]:
    """Return the items as a conversation keeps them, with ids that come from `name`. Raises InvalidRequestError."""
    if not isinstance(items, list):
        raise InvalidRequestError("items must be a list", param="items")
    found: list[Item] = []
    for number, item in enumerate(items):
        try:
            messages = read_items([item])
        except InvalidRequestError as exc:
            place = f"items[{number}]"
            param = exc.param and exc.param.replace("input[0]", place)
            raise InvalidRequestError(str(exc).replace("input[0]", place), param=param) from exc
        item_name = f"{name} {number}"
        found += input_items(messages, response_id=item_name) or [{**item, "id": f"rs_{item_name.replace(' ', '_')}"}]
    return found
