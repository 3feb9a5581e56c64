"""Weights change between two steps: tokens before come from the old ones, tokens after from the new ones alone."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import save_model
from torch import Tensor

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.errors import ConfigError, InvalidRequestError
from splitfuse.engine.extras.weight_updates.live_model import restart

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPTS = [[5, 6, 7, 8] * 10, [9, 10, 11] * 3]


@pytest.fixture(scope="module")
def other_folder(tiny_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny model with other weights."""
    return moved(tiny_folder, tmp_path_factory.mktemp("other") / "model")


def moved(source: str | Path, folder: Path) -> Path:
    shutil.copytree(source, folder)
    generator = torch.Generator().manual_seed(1)
    tensors = load_file(folder / "model.safetensors")
    noisy = {name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator) for name, tensor in tensors.items()}
    save_file(noisy, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def other(other_folder: Path) -> LLM:
    return new_llm(other_folder)


def new_llm(folder: str | Path, **settings: object) -> LLM:
    return LLM(str(folder), dtype="float32", device="cpu", **settings)


def token_ids(llm: LLM) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize("settings", [{}, {"async_scheduling": True}, {"quantization": "int8"}], ids=str)
def test_an_update_gives_the_tokens_of_a_model_loaded_from_it(
    tiny_folder: str, other_folder: Path, settings: dict[str, object]
) -> None:
    llm, expected = new_llm(tiny_folder, **settings), token_ids(new_llm(other_folder, **settings))
    first = token_ids(llm)
    assert llm.update_weights(load_file(other_folder / "model.safetensors").items()) == 1
    assert token_ids(llm) == expected != first
    assert llm.update_weights(tiny_folder) == 2
    assert token_ids(llm) == first
    assert llm.generate(PROMPTS[0], GREEDY)[0].weights_version == 2


def test_layers_of_several_kinds_are_updated(tmp_path: Path) -> None:
    """/weights was a 500 for Qwen3-Next."""
    save_model("qwen3-next", tmp_path / "first")
    llm, other = new_llm(tmp_path / "first"), moved(tmp_path / "first", tmp_path / "other")
    llm.update_weights(other)
    assert token_ids(llm) == token_ids(new_llm(other))


def test_a_stream_goes_on_with_the_new_weights_alone(tiny_folder: str, other_folder: Path, other: LLM) -> None:
    llm = new_llm(tiny_folder, max_num_batched_tokens=16)
    before = token_ids(llm)
    stream = llm.generate_stream(PROMPTS, GREEDY)
    for _ in range(20):
        next(stream)
    running = sorted(llm.engine.core.scheduler.running, key=lambda request: request.arrival_order)
    known = [request.token_ids[request.num_prompt_tokens :] for request in running]
    llm.update_weights(other_folder)
    llm.engine.core.scheduler.check()
    list(stream)
    for prompt, begun, old, output in zip(PROMPTS, known, before, stream.outputs, strict=True):
        assert begun == old[: len(begun)] != []
        rest = SamplingParams(temperature=0, max_tokens=24 - len(begun), ignore_eos=True)
        assert output.outputs[0].token_ids == begun + other.generate([prompt + begun], rest)[0].outputs[0].token_ids
        assert (output.first_weights_version, output.weights_version) == (0, 1)


def test_prompt_logprobs_that_were_not_complete_begin_again(tiny_folder: str, other_folder: Path, other: LLM) -> None:
    llm, params = new_llm(tiny_folder, max_num_batched_tokens=16), SamplingParams(max_tokens=1, prompt_logprobs=0)
    stream = llm.generate_stream([PROMPTS[0]], params)
    llm.step()
    llm.update_weights(other_folder)
    list(stream)
    again = new_llm(other_folder, max_num_batched_tokens=16).generate([PROMPTS[0]], params)
    assert stream.outputs[0].prompt_logprobs == again[0].prompt_logprobs


def broken(change: Callable[[dict[str, Tensor]], object]) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    def changed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        change(tensors)
        return tensors

    return changed


NORM = "model.norm.weight"
FAULTS = {
    "no tensor 'model.norm.weight'": broken(lambda tensors: tensors.pop(NORM)),
    "has shape": broken(lambda tensors: tensors.update({NORM: torch.ones(3)})),
    "not finite": broken(lambda tensors: tensors[NORM].fill_(float("nan"))),
    "would not read": broken(lambda tensors: tensors.update({"model.extra.weight": torch.ones(3)})),
    "torch.int8": broken(lambda tensors: tensors.update({NORM: torch.ones(64, dtype=torch.int8)})),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_update_changes_nothing_and_is_one_line(
    other: LLM, other_folder: Path, tmp_path: Path, fault: str
) -> None:
    version, before = other.weights_version, token_ids(other)
    tensors = FAULTS[fault](load_file(other_folder / "model.safetensors"))
    with pytest.raises(ConfigError, match=fault) as refused:
        other.update_weights(tensors.items())
    assert "\n" not in str(refused.value)
    save_file(tensors, tmp_path / "model.safetensors")  # a folder without config.json
    with pytest.raises(ConfigError):
        other.update_weights(tmp_path)
    assert other.weights_version == version
    assert token_ids(other) == before


def test_another_model_is_refused_by_its_config(other: LLM, other_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(other_folder, folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    with pytest.raises(ConfigError, match="is another model: its norm_eps"):
        other.update_weights(folder)


def test_an_update_copies_tensors(tiny_folder: str, other_folder: Path, other: LLM) -> None:
    llm, tensors = new_llm(tiny_folder), load_file(other_folder / "model.safetensors")
    llm.update_weights(tensors.items())
    for tensor in tensors.values():
        tensor.zero_()
    assert token_ids(llm) == token_ids(other)


def anonymous_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_sleep_gives_memory_back_and_waking_up_changes_no_token(tiny_folder: str) -> None:
    llm = new_llm(tiny_folder, num_kv_blocks=4096)  # 32 MiB
    expected = token_ids(llm)
    for tensor in llm.engine.runner.cache.memory():
        tensor.fill_(1.0)
    awake = anonymous_bytes()
    llm.sleep(level=1)
    assert awake - anonymous_bytes() > 28 * 2**20
    with pytest.raises(InvalidRequestError, match="sleeps"):
        llm.generate(PROMPTS, GREEDY)
    llm.sleep(level=2)
    llm.wake_up(tags=["weights"])
    assert llm.is_sleeping
    llm.wake_up(tags=["kv_cache"])
    assert not llm.is_sleeping
    assert token_ids(llm) == expected


def test_tensors_cannot_be_read_again_after_level_2(tiny_folder: str, other_folder: Path, other: LLM) -> None:
    llm, tensors = new_llm(tiny_folder), load_file(other_folder / "model.safetensors")
    llm.update_weights(tensors.items())
    llm.sleep(level=2)
    with pytest.raises(ConfigError, match="update them before waking up"):
        llm.wake_up()
    llm.update_weights(tensors.items())
    llm.wake_up()
    assert token_ids(llm) == token_ids(other)


def test_a_restart_keeps_tokens_and_empties_the_prefix_cache(tiny_folder: str) -> None:
    llm = new_llm(tiny_folder, swap_space=0.01)
    expected = token_ids(llm)
    stream = llm.generate_stream(PROMPTS, GREEDY)
    next(stream)
    restart(llm.engine.core.scheduler)
    llm.engine.core.scheduler.check()
    assert llm.engine.core.blocks.cache is not None
    assert not llm.engine.core.blocks.cache.blocks
    list(stream)
    assert [output.outputs[0].token_ids for output in stream.outputs] == expected
