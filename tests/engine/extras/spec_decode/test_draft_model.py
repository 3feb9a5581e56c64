"""Draft models change no answer, and agree with themselves."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty_drafters import use_speculation
from random_schedule import Arrival, random_llm, run_schedule
from tiny_models import VOCAB_SIZE, save_model, write_config

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.config import EngineConfig
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extras.spec_decode.draft_model import DraftModel
from splitfuse.engine.extras.spec_decode.manager import Speculation

SAMPLED = SamplingParams(seed=4, max_tokens=30, ignore_eos=True, temperature=1.2, top_k=40)
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a model of another shape and other weights."""
    folder = tmp_path_factory.mktemp("other")
    save_model("qwen3", folder)
    return str(folder)


def prompts(count: int = 12, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    result = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([1, 3, 17, 60, 200]))] for _ in range(count)]
    result[1] = result[2] = (result[0] * 10)[:90]  # equal prompts for the prefix cache
    return result


def speculative(folder: str, draft: str, **settings: Any) -> LLM:
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": 4, "adaptive": False}
    return LLM(model=folder, dtype="float32", device="cpu", speculative_config=config, **settings)


def speculation_of(llm: LLM) -> Speculation:
    speculation: Speculation = llm.engine.core.speculation.inner
    return speculation


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_another_model_changes_no_token(tiny_folder: str, other_folder: str, params: SamplingParams) -> None:
    plain = LLM(model=tiny_folder, dtype="float32", device="cpu").generate(prompts(), params)
    llm = speculative(tiny_folder, other_folder)
    outputs = llm.generate(prompts(), params)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in plain]
    assert 0 < speculation_of(llm).num_accepted_tokens < speculation_of(llm).num_draft_tokens / 2


@pytest.mark.parametrize("seed", range(4))
def test_it_agrees_with_itself_under_random_schedules(tiny_folder: str, seed: int) -> None:
    """Schedule prefix hits, chunks, preemption and swaps: the draft model always reads the request's own tokens."""
    rng = random.Random(seed)
    params = [dataclasses.replace(SAMPLED, seed=i, n=rng.choice([1, 1, 3])) for i in range(12)]
    plain = LLM(model=tiny_folder, dtype="float32", device="cpu", enable_prefix_caching=False)
    expected = plain.generate(prompts(12, seed), params)
    llm = random_llm(rng, tiny_folder, max_tokens_of_one=240, block_sizes=(4, 16))
    config = dataclasses.replace(llm.config, speculative_config=None)
    drafter = DraftModel(config, Path(tiny_folder), llm.engine.pipeline._runner._runner.loaded)  # type: ignore[attr-defined]
    speculation = Speculation(drafter, max_drafts=rng.randint(1, 6), vocab_size=VOCAB_SIZE, adaptive=False)
    use_speculation(llm, speculation)
    arrivals = [
        Arrival(prompt, request_params, at_step=rng.randint(0, 30))
        for prompt, request_params in zip(prompts(12, seed), params, strict=True)
    ]
    run_schedule(llm, arrivals)
    for arrival, want in zip(arrivals, expected, strict=True):
        assert [o.token_ids for o in arrival.outputs] == [o.token_ids for o in want.outputs]
    assert speculation.num_accepted_tokens == speculation.num_draft_tokens
    assert drafter._reads == {}


class Dying:
    """Model whose pass `at_pass`, and later ones if it `stays_dead`, raises or gives `logits`."""

    def __init__(self, model: Any, at_pass: int, *, stays_dead: bool, logits: float | None) -> None:
        self._model, self._at_pass, self._stays_dead, self._logits = model, at_pass, stays_dead, logits
        self.num_passes = 0
        self.is_dead = False

    def forward(self, inputs: Any, cache: Any) -> torch.Tensor:
        self.is_dead = self.num_passes == self._at_pass or (self._stays_dead and self.num_passes > self._at_pass)
        self.num_passes += 1
        if self.is_dead and self._logits is None:
            for layer in cache.layers:  # a half-written cache
                layer[0].fill_(torch.nan)
            raise RuntimeError("the draft model died")
        hidden: torch.Tensor = self._model.forward(inputs, cache)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._model.logits(hidden)
        return logits.fill_(self._logits) if self.is_dead and self._logits is not None else logits


@pytest.fixture(scope="module")
def plain(tiny_folder: str) -> list[list[int]]:
    """Outputs of the prompts without drafts."""
    outputs = LLM(model=tiny_folder, dtype="float32", device="cpu").generate(prompts(), SAMPLED)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("at_pass", "stays_dead"), [(0, True), (1, False), (7, True), (40, False)])
@pytest.mark.parametrize("logits", [None, float("nan"), 3.0], ids=str)
def test_a_draft_model_that_dies_costs_no_token(
    tiny_folder: str,
    plain: list[list[int]],
    at_pass: int,
    stays_dead: bool,
    logits: float | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    llm = speculative(tiny_folder, tiny_folder, block_size=4, num_kv_blocks=150)
    drafter = speculation_of(llm)._drafter
    assert isinstance(drafter, DraftModel)
    drafter._model = dying = Dying(drafter._model, at_pass, stays_dead=stays_dead, logits=logits)
    assert [output.outputs[0].token_ids for output in llm.generate(prompts(), SAMPLED)] == plain
    assert dying.num_passes > at_pass
    num_logged = caplog.text.count("the drafter failed")
    assert num_logged == 0 if logits is not None else 1 <= num_logged <= 8, "rarer and rarer"


def test_a_shared_beginning_is_read_once(tiny_folder: str) -> None:
    llm = speculative(tiny_folder, tiny_folder, block_size=4)
    drafter = speculation_of(llm)._drafter
    assert isinstance(drafter, DraftModel)
    beginning = list(range(20, 100))
    llm.generate([[*beginning, 5]], GREEDY)
    (again,) = llm.engine._input_processor.requests(
        "r", llm.run(llm.engine.prompts.tokenize([*beginning, 6], GREEDY, is_new=False)), now=0.0
    )
    llm.engine.core.add([again])
    llm.engine.pipeline.step()
    assert again.num_cached_tokens == 80
    assert drafter.num_unread_tokens(again) == 1, "the 81st token; the last one is always read"
    while llm.engine.core.num_unfinished:
        llm.engine.pipeline.step()
    assert speculation_of(llm).num_accepted_tokens == speculation_of(llm).num_draft_tokens


def test_a_long_prompt_is_read_over_several_steps(tiny_folder: str) -> None:
    llm = speculative(tiny_folder, tiny_folder, enable_prefix_caching=False)
    drafter = speculation_of(llm)._drafter
    (one,) = llm.engine._input_processor.requests(
        "r", llm.run(llm.engine.prompts.tokenize([7] * 400, GREEDY, is_new=False)), now=0.0
    )
    llm.engine.core.add([one])
    unread = []
    while speculation_of(llm).num_drafts < 2:
        llm.engine.pipeline.step()
        unread.append(drafter.num_unread_tokens(one))
    assert unread[:3] == [400, 145, 1], "256 at a time"


@pytest.mark.parametrize("vocab_size", [200, 400])
def test_another_vocabulary_costs_no_token(tiny_folder: str, tmp_path: Path, vocab_size: int) -> None:
    draft = tmp_path / "draft"
    save_model("llama-mha", draft)
    write_config(draft, vocab_size=vocab_size)
    plain = LLM(model=tiny_folder, dtype="float32", device="cpu").generate(prompts(), SAMPLED)
    config = EngineConfig(model=tiny_folder, dtype="float32", device="cpu", load_format="dummy")
    llm = LLM(model=tiny_folder, dtype="float32", device="cpu")
    drafter = DraftModel(config, draft, llm.engine.pipeline._runner._runner.loaded)  # type: ignore[attr-defined]
    speculation = Speculation(drafter, max_drafts=4, vocab_size=VOCAB_SIZE, adaptive=False)
    use_speculation(llm, speculation)
    outputs = llm.generate(prompts(), SAMPLED)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in plain]
    assert speculation.num_draft_tokens > 0


def test_a_short_draft_model_stops_at_its_end(tiny_folder: str, tmp_path: Path) -> None:
    save_model("llama-gqa-tied", tmp_path)
    write_config(tmp_path, max_position_embeddings=40)
    plain = LLM(model=tiny_folder, dtype="float32", device="cpu").generate(prompts(), GREEDY)
    llm = speculative(tiny_folder, str(tmp_path))
    outputs = llm.generate(prompts(), GREEDY)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in plain]
    assert speculation_of(llm).num_accepted_tokens == speculation_of(llm).num_draft_tokens > 0


def test_memory_is_shared_by_both_caches(tiny_folder: str) -> None:
    alone = LLM(model=tiny_folder, dtype="float32", device="cpu", kv_cache_memory_bytes=2**20)
    both = speculative(tiny_folder, tiny_folder, kv_cache_memory_bytes=2**20)
    assert both.engine.core.blocks.device.num_blocks == alone.engine.core.blocks.device.num_blocks // 2


def test_a_draft_model_that_is_not_there_is_refused(tiny_folder: str) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        speculative(tiny_folder, "./nowhere")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_shipped_draft_model_predicts_the_demo_model(temperature: float) -> None:
    prompts = [
        f"<|user|>\nTell me a story about a {animal}.<|end|>\n<|assistant|>\n" for animal in ("brave mouse", "cat")
    ]
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=80)
    plain = LLM(dtype="float32", device="cpu").generate(prompts, params)
    config = {"model": "demo-draft", "num_speculative_tokens": 4, "adaptive": False}
    llm = LLM(dtype="float32", device="cpu", speculative_config=config)
    outputs = llm.generate(prompts, params)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in plain]
    speculation = speculation_of(llm)
    assert speculation.num_accepted_tokens > 0.5 * speculation.num_draft_tokens
    metrics = [output.outputs[0].metrics for output in outputs]
    assert sum(request.num_accepted_tokens for request in metrics if request) == speculation.num_accepted_tokens
    assert sum(request.num_draft_tokens for request in metrics if request) == speculation.num_draft_tokens
