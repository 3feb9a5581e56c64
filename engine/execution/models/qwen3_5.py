"""Qwen3.5 (Qwen Team 2026): gated delta rules, gated attention in one layer of four; the text part of its models."""

from collections.abc import Mapping
from typing import Any

from .decoder import Names
from .gated_delta import GatedDeltaDecoder


class Qwen3_5ForCausalLM(GatedDeltaDecoder):
    """GatedDeltaDecoder without experts."""


class Qwen3_5ForConditionalGeneration(Qwen3_5ForCausalLM):
    """Qwen3.5 beside an encoder of images, which stays unread."""

    names = Names(prefix="model.language_model.")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config(text_fields(raw))


def text_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a model's text part, joined with the fields of the whole model."""
    return {**raw, **raw["text_config"], "architectures": raw["architectures"]}
