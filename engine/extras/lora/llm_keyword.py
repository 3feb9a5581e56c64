"""`lora_request` of LLM.generate and LLM.chat."""

from collections.abc import Sequence
from typing import Any

from ...core.sampling_params import SamplingParams
from ...errors import InvalidRequestError
from ...serving.llm import LLM, check_one_each
from .adapters import Adapters


def with_adapters(llm: LLM, params: Sequence[SamplingParams], lora_request: Any) -> list[SamplingParams]:
    """Return the parameters with the adapters of a LoRARequest, or of one or None per prompt."""
    if (adapters := llm.engine.part(Adapters)) is None:
        raise InvalidRequestError("lora_request needs LLM(enable_lora=True)", param="lora_request")
    requests = list(lora_request) if isinstance(lora_request, (list, tuple)) else [lora_request] * len(params)
    check_one_each(params, requests, "LoRA requests")
    pairs = zip(params, requests, strict=True)
    return [item if request is None else adapters.request(request).params(item) for item, request in pairs]
