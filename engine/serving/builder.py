"""EngineParts: builds an engine's tokenizer, model runner, input processor and step pipeline from an EngineConfig."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
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
from ..execution.models.default_sampling import default_sampling
from ..execution.models.fingerprint import fingerprint
from ..execution.models.registry import read_model_config
from ..execution.models.resolved_model import resolve
from ..execution.runner.model_runner import ModelRunner
from ..formats.checkpoint import model_folder, tokenizer_source
from ..language.structured_output.compiler import GrammarCompiler
from ..language.text.tokenizer import Tokenizer
from ..language.workers.heap import return_freed_memory
from .engine_part import Assembly, ExtensionParts, NewCompanion, ServedModel
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
    default_sampling_source: str = ""  # empty: the model's own file
    extensions: ExtensionParts = field(default_factory=ExtensionParts)
    path: Path | None = None  # folder or GGUF file of the weights

    def pipeline(self) -> StepPipeline:
        """Test the parts with a few tokens, and build a core over them with its step pipeline.

        Raises ConfigError if the test fails, or a part of an extension cannot work.
        """
        config, wrapped = self.config, self.extensions.wrapped
        launcher = None
        if config.async_scheduling:
            from ..execution.runner.launching import load_launcher  # a server on a CPU has none

            launcher = load_launcher(self.runner, config)
        in_flight: Any = {"max_steps_in_flight": 2 if config.async_scheduling else 1}
        assembly = Assembly(config, guarded(CostModel(), CostModel()), **in_flight)
        test_scheduler = Scheduler(config, self._blocks(assembly._replace(is_test=True)), **in_flight)
        self._test(StepPipeline(EngineCore(config, test_scheduler, OutputProcessor(None)), self.runner, launcher))
        if launcher is not None:
            launcher.count_late_work()
        scheduler = Scheduler(
            config,
            self._blocks(assembly),
            observer=guarded(wrapped("observer", RequestObserver(), assembly), RequestObserver()),
            listener=guarded(wrapped("listener", None, assembly), SchedulerListener()),
            **in_flight,
        )
        core = EngineCore(
            config,
            scheduler,
            OutputProcessor(self.tokenizer),
            speculation=guarded(wrapped("speculator", Speculator(), assembly), Speculator()),
            cost_model=assembly.cost_model,
            pacer=guarded(wrapped("pacer", Pacer(), assembly), Pacer()),
        )
        return StepPipeline(core, wrapped("runner", self.runner, assembly), launcher)

    def _blocks(self, assembly: Assembly) -> BlockManager:
        config, loaded = assembly.config, self.runner.loaded
        companions: Sequence[NewCompanion] = self.extensions.wrapped("companions", (), assembly)
        if loaded.states is not None and not companions:
            raise ConfigError(f"{loaded.model_config.architecture} needs an extension that keeps recurrent states")
        caching, weights = config.enable_prefix_caching, config.tenant_weights
        return BlockManager(loaded.cache, prefix_caching=caching, tenant_weights=weights, companions=companions)

    def _test(self, pipeline: StepPipeline) -> None:
        """Generate a few tokens with a core of its own, so that no other learns or counts. Raises ConfigError."""
        loaded, cache = self.runner.loaded, self.runner.loaded.cache
        largest = min(loaded.max_model_len, cache.num_blocks * cache.block_size)
        num_tokens = min(_TEST_PROMPT_LEN + _TEST_OUTPUT_LEN, largest)
        if num_tokens < 2:
            return  # a request would not fit either
        prompt = [index % loaded.model_config.vocab_size for index in range(min(_TEST_PROMPT_LEN, num_tokens - 1))]
        params = self.extensions.wrapped("test_params", SamplingParams(temperature=0))
        if not self.extensions.generate:
            num_tokens = len(prompt) + 1
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


def load(config: EngineConfig, *, for_streams: bool = False) -> EngineParts:
    """Fetch, read and lay out the model. `for_streams`: see ResolvedConfig.of. Raises ConfigError."""
    folder = model_folder(config, config.model)
    if folder.is_file():
        from ..formats.gguf.file import read_gguf  # here: most models are folders

        _header = read_gguf(folder)  # held, so that the file is read once
    stated = default_sampling(config, folder)  # now, so that a wrong file is refused before the weights are read
    draft = read_model_config(model_folder(config, config.draft_model)) if config.draft_model else None
    resolved = resolve(config, folder, for_streams=for_streams)
    runner = load_runner(resolved, draft=draft)
    words = tokenizer_source(config, folder)
    has_tokenizer = config.load_format != "dummy" or words.is_file() or (words / "tokenizer.json").exists()
    with ThreadPoolExecutor(1) as beside:  # hashing releases the GIL, a tokenizer holds it
        mark = beside.submit(fingerprint, folder, config, dtype=runner.loaded.dtype)
        template, escapes = config.chat_template, config.escape_special_tokens
        tokenizer = Tokenizer(words, chat_template=template, escapes_special_tokens=escapes) if has_tokenizer else None
    model_config = runner.loaded.model_config
    if tokenizer is not None:  # its own end token, which the other files may not name
        ends = tuple(dict.fromkeys((*model_config.eos_token_ids, *tokenizer.end_ids)))
        model_config = replace(model_config, eos_token_ids=ends)
    facts = replace(resolved.config, fingerprint=mark.result(), num_kv_blocks=runner.loaded.cache.num_blocks)
    extensions = ExtensionParts(ServedModel(config, facts, folder, runner, tokenizer))
    input_processor = InputProcessor(
        tokenizer=tokenizer,
        grammars=None if tokenizer is None else GrammarCompiler(tokenizer, model_config),
        model_config=model_config,
        max_model_len=runner.loaded.max_model_len,
        max_cache_tokens=runner.loaded.cache.num_blocks * config.block_size,
        seed=config.seed,
        generates=extensions.generate,
    )
    has_template = tokenizer is not None and tokenizer.has_chat_template
    template = tokenizer.chat_template.source if tokenizer is not None and has_template else None
    defaults = stated.complete(architecture=model_config.architecture, template=template)
    return_freed_memory()
    facts = extensions.wrapped("config", facts)
    return EngineParts(
        facts, tokenizer, runner, input_processor, defaults.values(), defaults.source or "", extensions, folder
    )
