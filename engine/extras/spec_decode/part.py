"""Drafting: the part of an engine that makes its speculator."""

import time

from ...core.ports import Speculator
from ...formats.checkpoint import model_folder
from ...serving.engine_part import Assembly, EnginePart, ServedModel
from . import SpeculationSettings
from .manager import Drafter, Speculation
from .speculative_config import SpeculativeConfig


class Drafting(EnginePart):
    """Part of an engine: its drafter and the number of tokens to draft."""

    def speculator(self, speculator: Speculator, assembly: Assembly) -> Speculator:
        """Build the configured speculator. Raises ConfigError."""
        settings = self.model.config.section(SpeculationSettings).speculation
        assert settings is not None
        return Speculation(
            _drafter(settings, self.model),
            max_drafts=settings.num_speculative_tokens,
            vocab_size=self.model.runner.loaded.model_config.vocab_size,
            adaptive=settings.adaptive,
            # A drafter without a model only computes: a wait for a processor is no cost of its.
            clock=time.perf_counter if settings.method == "draft_model" else time.thread_time,
        )


def _drafter(settings: SpeculativeConfig, model: ServedModel) -> Drafter:
    if settings.method == "ngram":
        from .ngram import NgramDrafter

        return NgramDrafter(min_n=settings.prompt_lookup_min, max_n=settings.prompt_lookup_max)
    if settings.method == "suffix":
        from .suffix import SuffixDrafter

        return SuffixDrafter()
    from .draft_model import DraftModel

    return DraftModel(model.config, model_folder(model.config, settings.model), model.runner.loaded)
