"""Bodies of llama.cpp's routes, and their conversion to SamplingParams."""

from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, SkipValidation, WithJsonSchema

from ....engine.checks import Integer
from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import InvalidRequestError
from ....engine.language.structured_output.params import StructuredOutputs
from ...api.known_fields import NOTHING
from ...api.request_model import ModelName, RequestModel
from ...api.sampling_request import SAMPLING_FIELDS, schema_of

# Ignored: places in its cache, its report of times, and samplers at values of their own.
IGNORED = (
    *("cache_prompt", "id_slot", "n_keep", "n_cache_reuse", "timings_per_token", "response_fields", "samplers"),
    *("repeat_last_n", "penalize_nl", "mirostat", "mirostat_tau", "mirostat_eta", "dynatemp_range"),
    *("dynatemp_exponent", "xtc_probability", "xtc_threshold", "dry_multiplier", "dry_base", "dry_allowed_length"),
    *("dry_penalty_last_n", "dry_sequence_breakers", "tfs_z", "t_max_prompt_ms", "post_sampling_probs", "n_discard"),
)
_NUM_PREDICT = Integer(-(2**31), 2**31 - 1)


class LlamaCompletionRequest(RequestModel):
    """A prompt to continue: the sampling fields, some of them under llama.cpp's names."""

    model_config = ConfigDict(extra="allow")
    example: ClassVar = {"prompt": "Once upon a time", "n_predict": 32}
    is_tolerant: ClassVar = True
    more_fields = SAMPLING_FIELDS
    ignored: ClassVar = dict.fromkeys(IGNORED, NOTHING)
    unsupported: ClassVar = {
        **dict.fromkeys(("min_keep", "n_indent", "lora", "image_data"), (*NOTHING, 0)),
        "n": (1,),
        **dict.fromkeys(("logprobs", "prompt_logprobs", "input_prefix", "input_suffix"), NOTHING),
        "typical_p": (*NOTHING, 1, 1.0),
    }
    prompt: SkipValidation[str | list[int | str] | dict[str, Any]]
    model: ModelName = None
    stream: bool = False
    n_predict: Annotated[Any, WithJsonSchema(_NUM_PREDICT.json_schema())] = None
    repeat_penalty: Annotated[Any, schema_of("repetition_penalty")] = None
    seed: Annotated[Any, schema_of("seed")] = None
    grammar: str = ""
    json_schema: SkipValidation[dict[str, Any] | None] = None
    return_tokens: bool = False
    n_probs: Annotated[Any, schema_of("logprobs")] = None
    logit_bias: Annotated[Any, Field(description="Pairs of a token's id and its bias, or an object.")] = None

    def params(self) -> SamplingParams:
        """Build the parameters. `n_predict` above the free context is cut to fit. Raises InvalidRequestError."""
        fields = dict(self.__pydantic_extra__ or {})
        defaults = dict(self.defaults)
        if self.n_predict is not None:  # below 0: as many as fit
            limit = _NUM_PREDICT.checked("n_predict", self.n_predict)
            if limit == 0:
                raise InvalidRequestError("n_predict must not be 0: each answer has a token", param="n_predict")
            defaults["max_tokens"] = limit if limit > 0 else None
        fields |= {"repetition_penalty": self.repeat_penalty, "seed": None if self.seed == -1 else self.seed}
        fields |= {"logprobs": self.n_probs or None, "logit_bias": self._bias()}
        fields |= {} if (outputs := self._outputs()) is None else {"structured_outputs": outputs}
        names = {"repetition_penalty": "repeat_penalty", "logprobs": "n_probs"}
        return SamplingParams.from_fields(
            fields, default_max_tokens=None, defaults=defaults, names=names, adapter=self.adapter
        )

    def _bias(self) -> Any:
        """Return llama.cpp's pairs as an object; false excludes a token."""
        if not isinstance(self.logit_bias, list):
            return self.logit_bias
        if not all(isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int for pair in self.logit_bias):
            raise InvalidRequestError("logit_bias must be pairs of a token's id and its bias", param="logit_bias")
        return {str(token): -100 if bias is False else bias for token, bias in self.logit_bias}

    def _outputs(self) -> StructuredOutputs | None:
        if self.grammar and self.json_schema is not None:
            raise InvalidRequestError(
                "grammar and json_schema both say what the output must be; send one of them", param="grammar"
            )
        if self.grammar:
            return StructuredOutputs(grammar=self.grammar, param="grammar")
        return None if self.json_schema is None else StructuredOutputs(json=self.json_schema, param="json_schema")


class ExtraText(RequestModel):
    """A text beside the one to fill in, such as a part of another file."""

    path: ClassVar = "input_extra."
    is_tolerant: ClassVar = True
    filename: str = "tmp"
    text: str


class InfillRequest(LlamaCompletionRequest):
    """A prefix and a suffix, between which the answer belongs. `prompt` is its beginning."""

    example: ClassVar = {"input_prefix": "def add(a, b):\n", "input_suffix": "\n    return c\n", "n_predict": 32}
    unsupported: ClassVar = {
        name: values
        for name, values in LlamaCompletionRequest.unsupported.items()
        if name not in ("input_prefix", "input_suffix")
    }
    prompt: str = ""
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[ExtraText] = Field([])
