"""`receipt` of LLM.generate and LLM.chat. Imports no more than a call without receipts needs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from ...serving.llm import LLM
    from .llm_receipts import ReceiptMaker


def with_receipts(_llm: "LLM", params: Sequence[SamplingParams], _receipt: bool) -> list[SamplingParams]:
    """Return the parameters of prompts whose answers are to be proved."""
    return [replace(item, wants_receipt=True) for item in params]


def maker(llm: "LLM", params: Sequence[SamplingParams]) -> "ReceiptMaker | None":
    """Return the maker of a call's receipts; None if it wants none."""
    if not any(item.wants_receipt for item in params):
        return None
    from .llm_receipts import LLMReceipts

    return llm.engine.state(LLMReceipts).maker()
