"""From an EngineConfig to the parts of an engine: tokenizer, model runner, input processor, step pipeline."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..config import EngineConfig
from ..core.engine_core import EngineCore
from ..core.request import Request
from ..core.sampling_params import SamplingParams
from ..core.step_pipeline import StepPipeline
from ..errors import ConfigError
from ..execution.models.checkpoint import model_folder
from ..execution.models.fingerprint import fingerprint
from ..execution.models.registry import read_model_config
from ..execution.runner.model_runner import ModelRunner
from ..extras.gguf.file import read_gguf
from ..extras.inspection.histories import Histories
from ..extras.simulation.recording import Recorder
from ..extras.spec_decode.draft_model import DraftModel
from ..extras.spec_decode.drafter import Drafter
from ..extras.spec_decode.manager import Speculation
from ..extras.spec_decode.ngram import NgramDrafter
from ..extras.structured_output.compiler import GrammarCompiler
from ..text.tokenizer import Tokenizer
from .input_processor import InputProcessor
from .output_processor import OutputProcessor
from .workers.heap import return_freed_memory

# Of the self-test, so that each kind of step is taken: 11 ms of CPU time with the demo model.
_TEST_PROMPT_LEN = 4
_TEST_OUTPUT_LEN = 2


@dataclass(frozen=True)
class EngineParts:
    """What an engine is built from. `tokenizer` is None if the model folder has none (dummy weights)."""

    tokenizer: Tokenizer | None
    runner: ModelRunner
    input_processor: InputProcessor
    fingerprint: str = ""  # of the model

    def pipeline(self, config: EngineConfig) -> StepPipeline:
        """A core over these parts and the steps that it takes. They have generated a few tokens before, as a test.

        Raises ConfigError if these did not come, or a recording cannot be written.
        """
        loaded = self.runner.loaded
        config = config.for_device(loaded.device.type)
        is_async = loaded.device.type == "cuda" if config.async_scheduling is None else config.async_scheduling
        max_steps_in_flight = 2 if is_async else 1
        launcher = self.runner.launcher(config) if is_async else None
        test_core = EngineCore(config, loaded.cache, OutputProcessor(None), max_steps_in_flight=max_steps_in_flight)
        self._test(StepPipeline(test_core, self.runner, launcher))
        if launcher is not None:
            launcher.count_late_work()
        core = EngineCore(
            config,
            loaded.cache,
            OutputProcessor(self.tokenizer),
            max_steps_in_flight=max_steps_in_flight,
            listener=Recorder.open(config, loaded.cache, max_steps_in_flight) if config.record else None,
            speculation=self.speculation(config),
            observer=Histories.of(config),
        )
        return StepPipeline(core, self.runner, launcher)

    def _test(self, pipeline: StepPipeline) -> None:
        """Generate with a core of its own, so that nothing is learned, counted or kept of it. Raises ConfigError."""
        loaded, cache = self.runner.loaded, self.runner.loaded.cache
        largest = min(loaded.max_model_len, cache.num_blocks * cache.block_size)
        num_tokens = min(_TEST_PROMPT_LEN + _TEST_OUTPUT_LEN, largest)
        if num_tokens < 2:
            return  # no request fits either
        prompt = [index % loaded.model_config.vocab_size for index in range(min(_TEST_PROMPT_LEN, num_tokens - 1))]
        request = Request(
            request_id="self-test",
            prompt_token_ids=prompt,
            params=SamplingParams(temperature=0),
            max_num_tokens=num_tokens,
            seed=0,
        )
        pipeline.core.add([request])
        while pipeline.has_work:
            for delta in pipeline.step().deltas:
                if delta.error is not None:
                    raise ConfigError(
                        f"the model cannot generate: {delta.error}; fetch its files again, or try --dtype float32"
                    )

    def speculation(self, config: EngineConfig) -> Speculation | None:
        """Speculation as configured, if it is. Raises ConfigError."""
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
    _header = read_gguf(folder) if folder.is_file() else None  # held, so that it is read once
    settings = config.speculation
    draft = read_model_config(model_folder(config, settings.model)) if settings and settings.model else None
    runner = ModelRunner(config, folder, draft=draft)
    has_tokenizer = config.load_format != "dummy" or folder.is_file() or (folder / "tokenizer.json").exists()
    with ThreadPoolExecutor(1) as beside:  # hashing releases the GIL, a tokenizer holds it
        mark = beside.submit(fingerprint, folder, config, dtype=str(runner.loaded.dtype))
        tokenizer = Tokenizer(folder, chat_template=config.chat_template) if has_tokenizer else None
    model_config = runner.loaded.model_config
    input_processor = InputProcessor(
        tokenizer=tokenizer,
        grammars=None if tokenizer is None else GrammarCompiler(tokenizer, model_config),
        model_config=model_config,
        max_model_len=runner.loaded.max_model_len,
        max_cache_tokens=runner.loaded.cache.num_blocks * config.block_size,
        seed=config.seed,
    )
    return_freed_memory()
    return EngineParts(tokenizer, runner, input_processor, mark.result())
