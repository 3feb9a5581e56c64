"""Bodies of /api/chat, /api/generate and /api/show, and their conversion to chats, prompts and SamplingParams."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, SkipValidation, WithJsonSchema

from ....engine.checks import Integer
from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import InvalidRequestError
from ....engine.language.chat.messages import Message, read_messages
from ....engine.language.chat.tools import ToolChoice
from ....engine.language.structured_output.params import StructuredOutputs
from ...api.chat.chat_request import Chat, Variable
from ...api.chat.message_fields import look_into_messages, look_into_tools
from ...api.chat.served_tools import ServedTools
from ...api.known_fields import MESSAGE_FIELDS
from ...api.request_model import ModelName, ParseContext, RequestModel
from ...api.sampling_request import SAMPLING_FIELDS, schema_of, set_budget
from ...service import Service

# Ignored: the model stays loaded, and no answer returns a context.
IGNORED = ("keep_alive", "context")
# Ignored: options of loading, and samplers that Ollama itself has dropped.
IGNORED_OPTIONS = (
    *("num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "low_vram", "f16_kv", "vocab_only"),
    *("use_mmap", "use_mlock", "numa", "logits_all", "embedding_only", "repeat_last_n", "penalize_newline"),
    *("typical_p", "tfs_z", "mirostat", "mirostat_tau", "mirostat_eta"),
)
_UNSUPPORTED = {"images": ([],), "logprobs": (False,), "top_logprobs": (0,)}
_NUM_PREDICT = Integer(-(2**31), 2**31 - 1)
_MESSAGE_FIELDS = MESSAGE_FIELDS | {"thinking", "tool_name", "images"}
_RENAMED = {"thinking": "reasoning_content", "tool_name": "name"}


class Options(RequestModel):
    """The sampling fields, two of them under Ollama's names."""

    model_config = ConfigDict(extra="allow")
    is_tolerant: ClassVar = True
    path: ClassVar = "options."
    more_fields = SAMPLING_FIELDS
    ignored: ClassVar = dict.fromkeys(IGNORED_OPTIONS, ())
    unsupported: ClassVar = {"n": (1,), "logprobs": (), "prompt_logprobs": ()}
    num_predict: Annotated[Any, WithJsonSchema(_NUM_PREDICT.json_schema())] = None
    repeat_penalty: Annotated[Any, schema_of("repetition_penalty")] = None

    def params(
        self, *, prompt: str, outputs: StructuredOutputs | None, defaults: Mapping[str, Any], budget: Any, **more: Any
    ) -> SamplingParams:
        """Build the parameters.

        `num_predict` above the free context is cut to fit. `prompt`: the prompt's field name. `defaults`: values of
        options that are absent. `budget`: tokens of reasoning that stand beside the options. Raises.
        """
        names = {name: f"options.{name}" for name in SAMPLING_FIELDS}
        names |= {"prompt": prompt, "repetition_penalty": "options.repeat_penalty"}
        fields = {"repetition_penalty": self.repeat_penalty} | (self.__pydantic_extra__ or {})
        fields |= {} if outputs is None else {"structured_outputs": outputs}
        set_budget(fields, "thinking_budget", budget, own="options.thinking_budget")
        if self.num_predict is not None:  # below 1: as many as fit
            limit = _NUM_PREDICT.checked("options.num_predict", self.num_predict)
            defaults = {**defaults, "max_tokens": limit if limit > 0 else None}
        return SamplingParams.from_fields(fields, default_max_tokens=None, defaults=defaults, names=names, **more)


class OllamaBody(RequestModel):
    """Body whose model may have a tag: Ollama's clients append one to the name."""

    is_tolerant: ClassVar = True

    @classmethod
    def _renamed(cls, service: Service, fields: dict[str, Any]) -> dict[str, Any]:
        name = fields.get("model")
        if isinstance(name, str) and not service.settings.serves(name) and service.adapter_named(name) is None:
            return {**fields, "model": name.removesuffix(":latest")}
        return fields


class OllamaRequest(OllamaBody):
    """Fields of both routes for text."""

    ignored: ClassVar = dict.fromkeys(IGNORED, ())
    unsupported: ClassVar = _UNSUPPORTED
    model: ModelName = None
    stream: bool = True
    format: SkipValidation[str | dict[str, Any]] = ""
    options: Options = Options()
    think: bool | str | None = None
    thinking_budget: Annotated[Any, schema_of("thinking_budget")] = None

    def params(self, *, prompt: str) -> SamplingParams:
        """Build the parameters. Raises InvalidRequestError."""
        fields = {"outputs": self._outputs(), "defaults": self.defaults, "budget": self.thinking_budget}
        return self.options.params(prompt=prompt, adapter=self.adapter, **fields)

    def chat_with(self, messages: list[Message], *, tools: object = None) -> Chat:
        """Build the chat with these messages. Raises InvalidRequestError."""
        chat_tools = ServedTools.of(tools, are_flat=False).read()
        choice = ToolChoice("auto" if chat_tools else "none")
        effort = "none" if self.think is False else self.think if isinstance(self.think, str) else None
        return Chat(messages=messages, tools=chat_tools, choice=choice, variables=self._variables(), effort=effort)

    def _outputs(self) -> StructuredOutputs | None:
        if self.format == "":
            return None
        if self.format == "json":
            return StructuredOutputs(json_object=True, param="format")
        if not isinstance(self.format, dict):
            raise InvalidRequestError('format must be "json" or a JSON schema, an object', param="format")
        return StructuredOutputs(json=self.format, param="format")

    def _variables(self) -> dict[str, Variable]:
        """Return variables for the template, none without `think`: the template then has its own default."""
        if self.think is None:
            return {}
        level: dict[str, Variable] = {"reasoning_effort": self.think} if isinstance(self.think, str) else {}
        return {"enable_thinking": self.think is not False, **level}


class OllamaChatRequest(OllamaRequest):
    """A conversation to answer."""

    example: ClassVar = {"messages": [{"role": "user", "content": "Hello"}], "stream": False}
    messages: SkipValidation[list[dict[str, Any]]] = []  # noqa: RUF012  pydantic copies it
    tools: SkipValidation[list[dict[str, Any]] | None] = None

    @classmethod
    def _look_into(cls, fields: Mapping[str, Any], reading: ParseContext) -> None:
        look_into_tools(fields.get("tools"), reading)
        look_into_messages(fields.get("messages"), reading, known=_MESSAGE_FIELDS)

    def chat(self) -> Chat:
        """The conversation. Raises InvalidRequestError."""
        if not isinstance(self.messages, list):
            raise InvalidRequestError("messages must be a list", param="messages")
        messages = [_message(message, at=f"messages[{number}]") for number, message in enumerate(self.messages)]
        return self.chat_with(read_messages(messages), tools=self.tools)


class OllamaGenerateRequest(OllamaRequest):
    """A prompt to answer, or with `raw` to continue."""

    example: ClassVar = {"prompt": "Why is the sky blue?", "stream": False}
    unsupported: ClassVar = _UNSUPPORTED | {"template": ("",)}
    prompt: str = ""
    suffix: str = ""
    system: str = ""
    raw: bool = False

    def chat(self) -> Chat:
        """Build a conversation of the prompt alone."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return self.chat_with([*system, {"role": "user", "content": self.prompt}])


class OllamaShowRequest(OllamaBody):
    """The model to describe."""

    example: ClassVar = {}
    ignored: ClassVar = dict.fromkeys(("name", "verbose", "system", "template", "options"), ())
    model: ModelName = None


def _message(message: object, *, at: str) -> object:
    """Convert a message to OpenAI's form."""
    if not isinstance(message, Mapping):
        return message
    if message.get("images"):
        raise InvalidRequestError(f"{at}.images is not supported; this model reads text only", param=f"{at}.images")
    fields = {_RENAMED.get(name, name): value for name, value in message.items() if value is not None}
    return {"content": "", **fields}
