"""EngineParts: builds an engine's tokenizer, model runner, input processor and step pipeline from an EngineConfig."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..config import EngineConfig, ResolvedConfig
from ..core.block_manager import BlockManager
from ..core.cost_model import CostModel
from ..core.engine_core import EngineCore
from ..core.ports import Pacer, RequestObserver, SchedulerListener, Speculator
from ..core.request import Request
from ..core.sampling_params import SamplingParams
from ..core.scheduler import Scheduler
from ..core.step_pipeline import StepPipeline
from ..errors import ConfigError
from ..execution.models.config import ModelConfig
from ..execution.models.default_sampling import default_sampling_params
from ..execution.models.fingerprint import fingerprint
from ..execution.models.registry import read_model_config
from ..execution.models.resolved_model import resolve
from ..execution.runner.model_runner import LoadedModel, ModelRunner
from ..extension import has_extra, load_extra
from ..formats.checkpoint import model_folder
from ..language.structured_output.compiler import GrammarCompiler
from ..language.text.tokenizer import Tokenizer
from ..language.workers.heap import return_freed_memory
from .guarded_hook import guarded
from .input_processor import InputProcessor
from .loading import load_runner
from .output_processor import OutputProcessor

# Lengths of the self-test, so that it takes each kind of step: 11 ms of CPU time with the demo model.
_TEST_PROMPT_LEN = 4
_TEST_OUTPUT_LEN = 2


@dataclass(frozen=True)
class EngineParts:
    """Parts of an engine. `tokenizer` is None if the model folder has none (dummy weights)."""

    config: ResolvedConfig
    tokenizer: Tokenizer | None
    runner: ModelRunner
    input_processor: InputProcessor
    default_sampling_params: Mapping[str, Any] = field(default_factory=dict)  # values of fields that a request lacks
    pooler: Any = None  # Pooler of the extra, for a model that pools
    adapters: Any = None  # Adapters of the extra, with --enable-lora

    def pipeline(self, *, replays: Any = None) -> StepPipeline:
        """Test the parts with a few tokens, and build a core over them with its step pipeline.

        `replays`: a Replays, whose inner speculator is the configured one. Raises ConfigError if the test fails, or a
        recording cannot be written.
        """
        config, loaded = self.config, self.runner.loaded
        max_steps_in_flight = 2 if config.async_scheduling else 1
        launcher = None
        if config.async_scheduling:
            from ..execution.runner.launching import load_launcher  # a server on a CPU has none

            launcher = load_launcher(self.runner, config)
        new_scheduler = partial(self._scheduler, config, max_steps_in_flight=max_steps_in_flight)
        disk = self._disk_cache(config)
        test_core = EngineCore(config, new_scheduler(), OutputProcessor(None))
        self._test(StepPipeline(test_core, self.runner, launcher))
        if launcher is not None:
            launcher.count_late_work()
        speculation = self.speculation(config)
        cost_model = guarded(CostModel(), CostModel())
        core = EngineCore(
            config,
            new_scheduler(
                listener=guarded(_recorder(config, loaded, max_steps_in_flight), SchedulerListener()),
                observer=guarded(_observer(config), RequestObserver()),
                disk=disk,
            ),
            OutputProcessor(self.tokenizer),
            speculation=guarded(speculation if replays is None else replays.over(speculation), Speculator()),
            cost_model=cost_model,
            pacer=guarded(_pacer(config, cost_model), Pacer()),
        )
        return StepPipeline(core, self.runner if disk is None else disk.runner, launcher)

    def replays(self) -> Any:
        """Build the outputs that the verification of receipts expects; None without the extra."""
        if not has_extra("receipts"):
            return None
        replay = load_extra("receipts.replay", needed_for="receipts")
        return replay.Replays(vocab_size=self.runner.loaded.model_config.vocab_size)

    def _disk_cache(self, config: ResolvedConfig) -> Any:
        """Open the prefix cache on disk; None without one. Raises ConfigError."""
        if config.prefix_cache_dir is None:
            return None
        extra = load_extra("disk_cache.disk_cache", needed_for="--prefix-cache-dir")
        return extra.DiskCache(config, self.runner, fingerprint=config.fingerprint)

    def _scheduler(self, config: ResolvedConfig, *, disk: Any = None, **options: Any) -> Scheduler:
        """Build a scheduler over blocks of its own, and over state slots if the model has recurrent layers."""
        loaded, cache = self.runner.loaded, self.runner.loaded.cache
        sizes: Any = {"prefix_caching": config.enable_prefix_caching, "tenant_weights": config.tenant_weights}
        blocks = disk and disk.block_manager(cache, loaded.states, **sizes)
        if loaded.states is not None:
            hybrid = load_extra("hybrid.scheduler", needed_for=loaded.model_config.architecture)
            scheduler: Scheduler = hybrid.HybridScheduler(config, cache, loaded.states, blocks=blocks, **options)
            return scheduler
        return Scheduler(config, blocks or BlockManager(cache, **sizes), **options)

    def _test(self, pipeline: StepPipeline) -> None:
        """Generate a few tokens with a core of its own, so that no other learns or counts. Raises ConfigError."""
        loaded, cache = self.runner.loaded, self.runner.loaded.cache
        largest = min(loaded.max_model_len, cache.num_blocks * cache.block_size)
        num_tokens = min(_TEST_PROMPT_LEN + _TEST_OUTPUT_LEN, largest)
        if num_tokens < 2:
            return  # a request would not fit either
        prompt = [index % loaded.model_config.vocab_size for index in range(min(_TEST_PROMPT_LEN, num_tokens - 1))]
        params = SamplingParams(temperature=0)
        if self.pooler is not None and not self.pooler.generates:
            params, num_tokens = self.pooler.test_params(), len(prompt) + 1
        request = Request(
            request_id="self-test", prompt_token_ids=prompt, params=params, max_num_tokens=num_tokens, seed=0
        )
        pipeline.core.add([request])
        while pipeline.has_work:
            for delta in pipeline.step().deltas:
                if delta.error is not None:
                    raise ConfigError(
                        f"the model cannot generate: {delta.error}; fetch its files again, or try --dtype float32"
                    )

    def speculation(self, config: EngineConfig) -> Speculator | None:
        """Build the configured speculator; None if there is none. Raises ConfigError."""
        settings = config.speculation
        if settings is None:
            return None
        extra = partial(load_extra, needed_for="--speculative-config")
        if settings.method == "ngram":
            drafter = extra("spec_decode.ngram").NgramDrafter(
                min_n=settings.prompt_lookup_min, max_n=settings.prompt_lookup_max
            )
        elif settings.method == "suffix":
            drafter = extra("spec_decode.suffix").SuffixDrafter()
        else:
            folder = model_folder(config, settings.model)
            drafter = extra("spec_decode.draft_model").DraftModel(config, folder, self.runner.loaded)
        speculation: Speculator = extra("spec_decode.manager").Speculation(
            drafter,
            max_drafts=settings.num_speculative_tokens,
            vocab_size=self.runner.loaded.model_config.vocab_size,
            adaptive=settings.adaptive,
            # A drafter without a model only computes: a wait for a processor is no cost of its.
            clock=time.perf_counter if settings.method == "draft_model" else time.thread_time,
        )
        return speculation


def load(config: EngineConfig, *, for_streams: bool = False) -> EngineParts:
    """Fetch, read and lay out the model. `for_streams`: see ResolvedConfig.of. Raises ConfigError."""
    folder = model_folder(config, config.model)
    if folder.is_file():
        from ..formats.gguf.file import read_gguf  # here: most models are folders

        _header = read_gguf(folder)  # held, so that the file is read once
    defaults = default_sampling_params(config, folder)
    settings = config.speculation
    draft = read_model_config(model_folder(config, settings.model)) if settings and settings.model else None
    resolved = resolve(config, folder, for_streams=for_streams)
    runner = load_runner(resolved, draft=draft)
    has_tokenizer = config.load_format != "dummy" or folder.is_file() or (folder / "tokenizer.json").exists()
    with ThreadPoolExecutor(1) as beside:  # hashing releases the GIL, a tokenizer holds it
        mark = beside.submit(fingerprint, folder, config, dtype=runner.loaded.dtype)
        tokenizer = Tokenizer(folder, chat_template=config.chat_template) if has_tokenizer else None
    model_config = runner.loaded.model_config
    pooler = _pooler(config, folder, runner, tokenizer)
    if config.enable_lora and pooler is not None:
        raise ConfigError("--enable-lora is not built for models that pool; leave it out, or merge the adapter")
    adapters = _adapters(config, runner) if config.enable_lora else None
    input_processor = InputProcessor(
        tokenizer=tokenizer,
        grammars=_constraint_compiler(tokenizer, model_config),
        model_config=model_config,
        max_model_len=runner.loaded.max_model_len,
        max_cache_tokens=runner.loaded.cache.num_blocks * config.block_size,
        seed=config.seed,
        generates=pooler is None or pooler.generates,
    )
    return_freed_memory()
    facts = replace(resolved.config, fingerprint=mark.result(), num_kv_blocks=runner.loaded.cache.num_blocks)
    facts = facts if pooler is None else pooler.engine_config(facts)
    return EngineParts(facts, tokenizer, runner, input_processor, defaults, pooler, adapters)


def _pooler(config: EngineConfig, folder: Path, runner: ModelRunner, tokenizer: Tokenizer | None) -> Any:
    """Build the pooler of a model that pools by its files, by its class or by the setting; None for all others."""
    is_pooled_by_files = (folder / "modules.json").exists() or not getattr(runner.model, "generates", True)
    if config.pooler_config is None and not is_pooled_by_files:
        return None
    module = load_extra("pooling.pooler", needed_for="--pooler-config")
    return module.Pooler(config, folder, runner, tokenizer)


def _adapters(config: EngineConfig, runner: ModelRunner) -> Any:
    adapters = load_extra("lora.adapters", needed_for="--enable-lora").Adapters(config, runner.model)
    adapters.add_configured()
    return adapters


def _constraint_compiler(tokenizer: Tokenizer | None, model_config: ModelConfig) -> GrammarCompiler | None:
    return None if tokenizer is None else GrammarCompiler(tokenizer, model_config)


def _observer(config: ResolvedConfig) -> RequestObserver | None:
    """Build the recorder of the requests' histories, if the extra is installed."""
    if not has_extra("inspection"):
        return None
    observer: RequestObserver = load_extra("inspection.histories", needed_for="histories").Histories.of(config)
    return observer


def _pacer(config: ResolvedConfig, cost_model: CostModel) -> Pacer | None:
    """Build the pacer, if the extra is installed. Raises ConfigError if it is not and a setting needs it."""
    settings = ("target_itl_ms", "ttft_ms", "itl_ms", "tenant_goals")
    needed_for = next((name for name in settings if getattr(config, name) not in (None, "auto", "off")), None)
    if needed_for is None and not has_extra("deadlines"):
        return None
    module = load_extra("deadlines.pacer", needed_for=needed_for or "pacing")
    pacer: Pacer = module.DeadlinePacer(config, cost_model)
    return pacer


def _recorder(config: ResolvedConfig, loaded: LoadedModel, max_steps_in_flight: int) -> SchedulerListener | None:
    if not config.record:
        return None
    module = load_extra("simulation.recording", needed_for="--record")
    recorder: SchedulerListener = module.Recorder.open(config, loaded.cache, max_steps_in_flight, loaded.states)
    return recorder
