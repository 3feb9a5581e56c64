"""The body of TGI's routes: a text to continue and its parameters, and their conversion to SamplingParams."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, SkipValidation

from ....engine.core.sampling_params import SamplingParams
from ....engine.extras.structured_output.params import StructuredOutputs
from ...api.known_fields import NOTHING
from ...api.request_model import RequestModel
from ...api.sampling_request import SAMPLING_FIELDS, schema_of

_DEFAULT_MAX_TOKENS = 100
# Each of them makes TGI sample, with or without do_sample.
_SAMPLERS = ("temperature", "top_k", "top_p", "min_p")


class Grammar(RequestModel):
    """Rule that the text must match."""

    path: ClassVar = "parameters.grammar."
    type: Literal["json", "json_schema", "regex"]
    value: SkipValidation[str | dict[str, Any]]

    def structured_outputs(self) -> StructuredOutputs:
        """Build the constraint. Raises InvalidRequestError."""
        value: Any = self.value
        at = "parameters.grammar.value"
        if self.type == "regex":
            return StructuredOutputs(regex=value, param=at)
        is_named = self.type == "json_schema" and isinstance(value, dict) and isinstance(value.get("schema"), dict)
        return StructuredOutputs(json=value["schema"] if is_named else value, param=at)


class Parameters(RequestModel):
    """The sampling fields, some of them under TGI's names."""

    model_config = ConfigDict(extra="allow")
    is_tolerant: ClassVar = True
    path: ClassVar = "parameters."
    more_fields = SAMPLING_FIELDS
    ignored: ClassVar = {"watermark": NOTHING}
    unsupported: ClassVar = {
        **dict.fromkeys(("best_of", "n"), (*NOTHING, 1)),
        **dict.fromkeys(("decoder_input_details", "adapter_id", "logprobs", "prompt_logprobs"), NOTHING),
        "top_n_tokens": (*NOTHING, 0),
        "typical_p": (1, 1.0),
    }
    max_new_tokens: Annotated[Any, schema_of("max_tokens")] = None
    truncate: Annotated[Any, schema_of("truncate_prompt_tokens")] = None
    do_sample: bool = False
    details: bool = False
    return_full_text: bool = False
    grammar: Grammar | None = None

    def params(self, *, defaults: Mapping[str, Any], has_logprobs: bool) -> SamplingParams:
        """Build the parameters: greedy unless a field asks for samples, like TGI. Raises InvalidRequestError."""
        names = {name: f"parameters.{name}" for name in SAMPLING_FIELDS}
        names |= {"prompt": "inputs"}
        fields = dict(self.__pydantic_extra__ or {})
        for name, value in (("max_tokens", "max_new_tokens"), ("truncate_prompt_tokens", "truncate")):
            if getattr(self, value) is not None:
                fields[name], names[name] = getattr(self, value), f"parameters.{value}"
        if not self.do_sample and not fields.keys() & {*_SAMPLERS}:
            fields["temperature"] = 0
        if self.grammar is not None:
            fields["structured_outputs"] = self.grammar.structured_outputs()
        params = SamplingParams.from_fields(
            fields, default_max_tokens=_DEFAULT_MAX_TOKENS, defaults=defaults, names=names
        )
        return replace(params, logprobs=0) if has_logprobs else params


class TgiRequest(RequestModel):
    """A text to continue."""

    example: ClassVar = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 32}}
    is_tolerant: ClassVar = True
    ignored: ClassVar = {"options": ()}  # of Hugging Face's hosted API: its cache and its queue
    inputs: str
    parameters: Parameters = Parameters()
    stream: bool = False
