"""From an EngineConfig to the parts of an engine: tokenizer, model runner, intake."""

from dataclasses import dataclass
from pathlib import Path

from .config import EngineConfig
from .core import EngineCore
from .errors import ConfigError
from .input_processor import Intake
from .models.checkpoint import model_folder
from .models.registry import read_model_config
from .runner.model_runner import ModelRunner
from .spec_decode.draft_model import DraftModel
from .spec_decode.drafter import Drafter
from .spec_decode.manager import Speculation
from .spec_decode.ngram import NgramDrafter
from .step_pipeline import OverlappedTurns, PlainTurns, Turns
from .structured_output.compiler import GrammarCompiler
from .tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class EngineParts:
    """What an engine is built from. `tokenizer` is None if the model folder has none (dummy weights)."""

    tokenizer: Tokenizer | None
    runner: ModelRunner
    intake: Intake

    def is_overlapped(self, config: EngineConfig) -> bool:
        """Whether steps are decided while others run: on a GPU, unless something needs one step at a time."""
        if config.async_scheduling is not None:
            return config.async_scheduling
        needs_single_steps = config.record is not None or config.speculation is not None
        return self.runner.loaded.device.type == "cuda" and not needs_single_steps

    def turns(self, config: EngineConfig, core: EngineCore) -> Turns:
        """What drives a core made by these parts."""
        return OverlappedTurns(core, self.runner.launcher(config)) if self.is_overlapped(config) else PlainTurns(core)

    def core(self, config: EngineConfig) -> EngineCore:
        """The steps over these parts. Raises ConfigError if the recording cannot be written."""
        loaded = self.runner.loaded
        try:
            # The core closes it.
            recording = None if config.record is None else Path(config.record).open("w", encoding="utf-8")  # noqa: SIM115
        except OSError as exc:
            raise ConfigError(f"--record {config.record}: cannot be written ({exc.strerror})") from exc
        return EngineCore(
            config,
            self.runner,
            num_blocks=loaded.num_blocks,
            num_host_blocks=loaded.num_host_blocks,
            seconds_per_block=loaded.seconds_per_block,
            tokenizer=self.tokenizer,
            recording=recording,
            speculation=self.speculation(config),
            is_overlapped=self.is_overlapped(config),
        )

    def speculation(self, config: EngineConfig) -> Speculation | None:
        """What drafts, if anything does. Raises ConfigError."""
        settings = config.speculation
        if settings is None:
            return None
        drafter: Drafter
        if settings.method == "ngram":
            drafter = NgramDrafter(min_n=settings.prompt_lookup_min, max_n=settings.prompt_lookup_max)
        else:
            drafter = DraftModel(config, model_folder(config, settings.model), self.runner.loaded)
        return Speculation(
            drafter,
            max_drafts=settings.num_speculative_tokens,
            vocab_size=self.runner.loaded.model_config.vocab_size,
            adaptive=settings.adaptive,
        )


def load(config: EngineConfig) -> EngineParts:
    """Fetch, read and lay out the model. Raises ConfigError."""
    folder = model_folder(config, config.model)
    settings = config.speculation
    draft = read_model_config(model_folder(config, settings.model)) if settings and settings.model else None
    runner = ModelRunner(config, folder, draft=draft)
    has_tokenizer = (folder / "tokenizer.json").exists() or config.load_format != "dummy"
    tokenizer = Tokenizer(folder, chat_template=config.chat_template) if has_tokenizer else None
    model_config = runner.loaded.model_config
    intake = Intake(
        tokenizer=tokenizer,
        grammars=None if tokenizer is None else GrammarCompiler(tokenizer, model_config),
        model_config=model_config,
        max_model_len=runner.loaded.max_model_len,
        max_cache_tokens=runner.loaded.num_blocks * config.block_size,
        seed=config.seed,
    )
    return EngineParts(tokenizer, runner, intake)
