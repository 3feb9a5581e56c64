"""Routes of the tokenizer: /tokenize, for prompts and conversations, and /detokenize."""

from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Depends
from pydantic import Field, SkipValidation
from starlette.requests import Request
from starlette.responses import Response

from ....engine.checks import check_token_ids
from ....engine.errors import InvalidRequestError
from ....engine.language.chat.messages import read_messages
from ...http.json_response import JsonResponse
from ...service import service_of
from ..openapi import GENERATION, KEYED, errors
from ..prompt import Tokens
from ..request_model import ModelName, RequestModel
from .answer_format import chat_prompt
from .chat_request import ChatFields, ChatMessage
from .model_text import ModelText

router = APIRouter(tags=["operations"])
_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class TokenizeRequest(ChatFields):
    """A prompt, or messages as on /v1/chat/completions."""

    example: ClassVar = {"prompt": "Once upon a time"}
    model: ModelName = None
    prompt: str | None = None
    content: Annotated[str | None, Field(description="llama.cpp's name of the prompt.")] = None
    messages: SkipValidation[list[ChatMessage] | None] = None
    add_special_tokens: bool = True
    add_special: Annotated[bool, Field(description="Like add_special_tokens, for `content`.")] = False
    return_token_strs: bool = False
    with_pieces: Annotated[bool, Field(description="`tokens` are objects with `id` and `piece`.")] = False

    def text(self) -> tuple[str | None, bool]:
        """Return the prompt, and if special tokens are added to it. Raises InvalidRequestError."""
        if sum(value is not None for value in (self.prompt, self.content, self.messages)) != 1:
            raise InvalidRequestError("send either prompt or messages", param="prompt")
        return (self.prompt, self.add_special_tokens) if self.content is None else (self.content, self.add_special)


class DetokenizeRequest(RequestModel):
    """Token ids to turn into text."""

    example: ClassVar = {"tokens": [5, 6, 7]}
    model: ModelName = None
    tokens: Tokens


@router.post(
    "/tokenize",
    response_description="`tokens`, their `count`, the server's `max_model_len`, and on request their texts as "
    "`token_strs`.",
    responses=errors(*GENERATION),
)
async def tokenize(
    request: Request, body: Annotated[TokenizeRequest, Depends(TokenizeRequest.from_request)]
) -> Response:
    """The token ids of a prompt, or of messages in the chat template."""
    service = service_of(request)
    text_of = ModelText(service)
    prompt, adds_special = body.text()
    chat = body.chat_of([] if body.messages is None else read_messages(body.messages))  # checks what a prompt ignores
    if prompt is not None:
        tokens = await text_of.encode(prompt, add_special_tokens=adds_special)
    else:
        text, _ = await chat_prompt(service, chat)
        tokens = await text_of.encode(text, add_special_tokens=False)
    pieces = ({"id": token, "piece": text_of.token(token)} for token in tokens)
    answer = {
        "tokens": list(pieces) if body.with_pieces else tokens,
        "count": len(tokens),
        "max_model_len": service.engine.max_model_len,
    }
    texts = {"token_strs": list(map(text_of.token, tokens))} if body.return_token_strs else {}
    return JsonResponse(answer | texts)


@router.post("/detokenize", response_description="The text, as `prompt`.", responses=errors(*GENERATION))
async def detokenize(
    request: Request, body: Annotated[DetokenizeRequest, Depends(DetokenizeRequest.from_request)]
) -> Response:
    """The text of token ids, special tokens included."""
    service = service_of(request)
    check_token_ids(body.tokens, vocab_size=service.engine.model_config.vocab_size, param="tokens")
    return JsonResponse({"prompt": await ModelText(service).decode(body.tokens)})


@router.get("/tokenizer_info", response_description="Texts, or null.", responses=errors(*KEYED, 503))
async def tokenizer_info(request: Request) -> Response:
    """Special tokens and chat template, by vLLM's names: lm-evaluation-harness renders its conversations by them."""
    service = service_of(request)
    tokenizer = service.tokenizer
    facts: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **dict.fromkeys(_SPECIAL_TOKENS)}
    source = tokenizer.chat_template.recipe["source"] if tokenizer.has_chat_template else None
    facts |= {**tokenizer.special_tokens, "chat_template": source, "model_max_length": service.engine.max_model_len}
    return JsonResponse(facts)
