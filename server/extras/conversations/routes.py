"""/v1/conversations for the `openai` package."""

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from starlette.requests import Request
from starlette.responses import Response

from ...api.listing import Page, list_object, page_of
from ...api.openapi import KEEPING, LOOKUP, errors
from ...http.auth import owner_of
from ...http.errors import ResultNotFoundError
from ...http.json_response import JsonResponse
from ...service import service_of
from ..chat.timed_route import TimedRoute
from ..responses.input_items import page_of_items
from .conversation_log import Conversation
from .part import ConversationsPart
from .request import ConversationRequest, ConversationUpdate, ItemsRequest, new_items

router = APIRouter(prefix="/v1/conversations", tags=["OpenAI"], route_class=TimedRoute)

ConversationId = Annotated[str, Path(description="Id of the conversation.")]
ItemId = Annotated[str, Path(description="Id of the item.")]
_CONVERSATION = "The conversation."
_LOOKUP = errors(*LOOKUP)
_CHANGE = errors(*KEEPING)


def _part(request: Request) -> ConversationsPart:
    return service_of(request).part(ConversationsPart)


async def _found(request: Request, conversation_id: str) -> Conversation:
    return await _part(request).find(conversation_id, owner=owner_of(request))


def _object(conversation: Conversation) -> Response:
    return JsonResponse(
        {
            "id": conversation.conversation_id,
            "object": "conversation",
            "created_at": int(conversation.root.created),
            "metadata": conversation.metadata,
        }
    )


@router.post("", response_description=_CONVERSATION, responses=_CHANGE)
async def create(
    request: Request, body: Annotated[ConversationRequest, Depends(ConversationRequest.from_request)]
) -> Response:
    """Begin a conversation."""
    change: dict[str, Any] = {"metadata": body.metadata, "items": new_items(body.items, name=secrets.token_hex(16))}
    return _object(await _part(request).log.create(owner_of(request), change))


@router.get("/{conversation_id}", response_description=_CONVERSATION, responses=_LOOKUP)
async def retrieve(request: Request, conversation_id: ConversationId) -> Response:
    """A conversation without its items."""
    return _object(await _found(request, conversation_id))


@router.post("/{conversation_id}", response_description=_CONVERSATION, responses=_CHANGE | _LOOKUP)
async def update(
    request: Request,
    conversation_id: ConversationId,
    body: Annotated[ConversationUpdate, Depends(ConversationUpdate.from_request)],
) -> Response:
    """Replace the metadata."""
    conversation = await _found(request, conversation_id)
    await _part(request).log.add(conversation, {"metadata": body.metadata})
    return _object(conversation)


@router.delete("/{conversation_id}", response_description="Deleted.", responses=_LOOKUP)
async def delete(request: Request, conversation_id: ConversationId) -> Response:
    """Delete a conversation with its items. Responses stay."""
    await _part(request).log.delete(await _found(request, conversation_id))
    return JsonResponse({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.get("/{conversation_id}/items", response_description="A page of items.", responses=_LOOKUP)
async def list_items(
    request: Request,
    conversation_id: ConversationId,
    page: Annotated[Page, Depends(page_of(default=20, most=100))],
) -> Response:
    """The items, newest first."""
    conversation = await _found(request, conversation_id)
    return JsonResponse(list_object(page_of_items(conversation.items, page), page))


@router.post("/{conversation_id}/items", response_description="The new items.", responses=_CHANGE | _LOOKUP)
async def create_items(
    request: Request,
    conversation_id: ConversationId,
    body: Annotated[ItemsRequest, Depends(ItemsRequest.from_request)],
) -> Response:
    """Add items."""
    conversation = await _found(request, conversation_id)
    items = new_items(body.items, name=secrets.token_hex(16))
    await _part(request).log.add(conversation, {"items": items})
    return JsonResponse(list_object(items, Page(len(items) + 1)))


@router.get("/{conversation_id}/items/{item_id}", response_description="The item.", responses=_LOOKUP)
async def retrieve_item(request: Request, conversation_id: ConversationId, item_id: ItemId) -> Response:
    """One item."""
    return JsonResponse(_item(await _found(request, conversation_id), item_id))


@router.delete("/{conversation_id}/items/{item_id}", response_description=_CONVERSATION, responses=_LOOKUP)
async def delete_item(request: Request, conversation_id: ConversationId, item_id: ItemId) -> Response:
    """Delete an item."""
    conversation = await _found(request, conversation_id)
    await _part(request).log.add(conversation, {"deleted": _item(conversation, item_id)["id"]})
    return _object(conversation)


def _item(conversation: Conversation, item_id: str) -> dict[str, Any]:
    """Find an item. Raises ResultNotFoundError."""
    for item in conversation.items:
        if item["id"] == item_id:
            return item
    raise ResultNotFoundError("item")
