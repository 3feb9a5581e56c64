"""The body of POST /v1/messages/batches, and the file of requests that it becomes."""

from typing import Any, ClassVar, Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from ...api.request_model import Name, RequestModel
from ...http.json_body import read_json
from ...http.json_response import dumps
from ...service import service_of

ENDPOINT = "/v1/messages"


class BatchedMessage(RequestModel):
    """One request of a batch. Its `params` are checked when it is answered."""

    is_tolerant = True
    path = "requests[]."
    custom_id: Name
    params: dict[str, Any]

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.params.get("stream"):
            raise PydanticCustomError("stream", "a batch has no streams; leave it out", {"name": "params.stream"})
        return self

    def line(self) -> str:
        """Return the request's line of the file."""
        return dumps({"custom_id": self.custom_id, "method": "POST", "url": ENDPOINT, "body": self.params})


class MessageBatchRequest(RequestModel):
    """Requests to answer in the background."""

    is_tolerant = True
    example: ClassVar = {
        "requests": [
            {"custom_id": "first", "params": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}}
        ]
    }
    ignored: ClassVar = dict.fromkeys(("betas", "user_profile_id", "workspace_id"), ())
    requests: list[BatchedMessage]

    @model_validator(mode="after")
    def _check_ids(self) -> Self:
        if not self.requests:
            raise PydanticCustomError("empty", "must hold at least one request", {"name": "requests"})
        found = set[str]()
        for number, request in enumerate(self.requests):
            if request.custom_id in found:
                name = f"requests[{number}].custom_id"
                raise PydanticCustomError("twice", "came before; give each request one of its own", {"name": name})
            found.add(request.custom_id)
        return self

    @classmethod
    async def from_request(cls, request: Request) -> Self:
        """Like RequestModel.from_request, but the requests name the models. Raises like `read` and `read_json`."""
        settings = service_of(request).settings
        fields = await read_json(request, max_bytes=settings.max_body_bytes)
        body = cls.read(fields, is_strict=settings.strict_fields)
        body.name_ignored(request)
        return body

    def file(self) -> bytes:
        """Return the contents of the batch's input file."""
        return "\n".join(request.line() for request in self.requests).encode()
