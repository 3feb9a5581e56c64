"""Quantized checkpoints give transformers' tokens with their dequantized weights."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from logits import all_logits
from quantized_checkpoints import CASES, OTHERS, Case, has_compressed_tensors, save_quantized
from random_schedule import Arrival, random_llm, run_schedule
from tables import table
from tiny_models import VOCAB_SIZE, greedy, write_config
from transformers import AutoModelForCausalLM, PreTrainedModel

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.registry import parse_model_config, read_model_config
from splitfuse.engine.formats.json_file import read_json
from splitfuse.engine.formats.weights import SafetensorsSource
from splitfuse.kernels import ops
from splitfuse.server.cli import main

pytestmark = pytest.mark.sampled(3)

NUM_NEW = 12
CHUNKS = [50, 1, 3, 26]
TOKENS = [random.Random(5).randrange(VOCAB_SIZE) for _ in range(sum(CHUNKS))]


def case_of(name: str) -> Case:
    case = CASES[name]
    if case.config["quant_method"] == "compressed-tensors" and not has_compressed_tensors():
        pytest.skip("needs the package compressed-tensors: pip install compressed-tensors")
    return case


@pytest.mark.parametrize(("model", "name"), [*(("llama-gqa-tied", name) for name in CASES if name != "w8a8"), *OTHERS])
def test_tokens_and_logits_are_those_of_the_dequantized_weights(model: str, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "quantized"
    plain, dequantized = save_quantized(model, case_of(name), folder)
    check_weights(folder, dequantized)
    theirs = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    ours = all_logits(folder, TOKENS, dtype="float32", chunks=CHUNKS)
    torch.testing.assert_close(ours, their_logits(theirs), atol=2e-4, rtol=2e-4)
    rng = random.Random(f"{model} {name}")
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 2, 17, 33, 80, 120)]
    llm = random_llm(rng, str(folder), max_tokens_of_one=120 + NUM_NEW, block_sizes=(4, 16))
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
    arrivals = [Arrival(prompt, params, at_step=rng.randint(0, 20)) for prompt in prompts]
    run_schedule(llm, arrivals)
    for prompt, token_ids in ((arrival.prompt, arrival.output.token_ids) for arrival in arrivals):
        assert token_ids == greedy(theirs, prompt, NUM_NEW, guess=token_ids)


def test_w8a8_rounds_the_inputs_of_each_token(tmp_path: Path) -> None:
    """Round to int8, the largest to ±127. A value near the middle of two may be rounded either way in float32."""
    if not hasattr(ops, "embedding"):
        pytest.skip("needs kernels that round inputs")
    folder = tmp_path / "quantized"
    plain, dequantized = save_quantized("llama-gqa-tied", case_of("w8a8"), folder)
    check_weights(folder, dequantized)
    theirs = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    unrounded = their_logits(theirs)
    for name, module in theirs.named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(lambda _, inputs: tuple(map(rounded_per_token, inputs)))
    rounded = their_logits(theirs)
    error = (all_logits(folder, TOKENS, dtype="float32", chunks=CHUNKS) - rounded).abs().mean()
    assert error < 0.1 * (unrounded - rounded).abs().mean()


def rounded_per_token(x: torch.Tensor) -> torch.Tensor:
    scales = x.abs().amax(-1, keepdim=True) / 127
    return (x / scales).round() * scales


@torch.inference_mode()
def their_logits(model: PreTrainedModel) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([TOKENS])).logits[0]
    return logits


def check_weights(folder: Path, dequantized: dict[str, torch.Tensor]) -> None:
    """Compare each quantized weight with the format's own reference, with and without threads that read ahead."""
    quantization = read_model_config(folder).quantization
    for ahead in (None, torch.device("cpu")):
        source = SafetensorsSource(folder, dtype=torch.float32, quantization=quantization, reads_ahead_to=ahead)
        for key, expected in dequantized.items():
            weight = source.take_quantized(key, tuple(expected.shape))
            assert weight is not None
            # Exact where scales have 16 bits; with scales of 32, scale · u - scale · zero is rounded once more.
            is_exact = weight.scales.dtype == torch.float16 or weight.offsets is None
            atol = 0.0 if is_exact else 1e-5 * float(expected.abs().max())
            torch.testing.assert_close(weight.dequantized(), expected, atol=atol, rtol=1e-6)
        source.close()
    assert dequantized


def test_doctor_names_the_format(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_quantized("llama-gqa-tied", CASES["gptq"], tmp_path / "quantized")
    main(["doctor", str(tmp_path / "quantized")])
    assert "LlamaForCausalLM (GPTQ, 4 bits in groups of 32)" in capfd.readouterr().out


def test_older_checkpoints_of_modelopt_have_a_file_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "quantized"
    _, dequantized = save_quantized("llama-gqa-tied", CASES["modelopt-nvfp4"], folder)
    write_config(folder, quantization_config=None)
    (folder / "hf_quant_config.json").write_text('{"producer": {}, "quantization": {"quant_algo": "NVFP4"}}')
    check_weights(folder, dequantized)


def test_rounding_again_is_refused(tmp_path: Path) -> None:
    save_quantized("llama-gqa-tied", CASES["awq"], tmp_path / "quantized")
    with pytest.raises(ConfigError, match=r"--quantization int8 is for unquantized.*AWQ, 4 bits.*leave it out"):
        LLM(str(tmp_path / "quantized"), quantization="int8")


def test_a_quantized_draft_model_drafts(tmp_path: Path) -> None:
    folder = tmp_path / "quantized"
    plain, _ = save_quantized("llama-gqa-tied", CASES["gptq"], folder)
    drafting = {"model": str(folder), "num_speculative_tokens": 4, "adaptive": False}
    llm = LLM(str(plain), dtype="float32", speculative_config=drafting)
    output = llm.generate([TOKENS], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))[0].outputs[0]
    assert output.metrics is not None
    assert output.metrics.num_accepted_tokens > 10, "its weights are the target's, so nearly all drafts are right"


REFUSED: list[tuple[dict[str, Any], str]] = table(__file__, "refused")  # type: ignore[list-item]


@pytest.mark.parametrize(("config", "words"), REFUSED)
def test_what_cannot_be_read_is_refused_by_name(config: Any, words: str, tiny_folder: str) -> None:
    raw = read_json(Path(tiny_folder) / "config.json")
    with pytest.raises(ConfigError, match=words):
        parse_model_config({**raw, "quantization_config": config}, generation={})


def test_unquantized_weights_are_not_taken_for_quantized(tiny_folder: str, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "plain")
    write_config(folder, quantization_config=CASES["awq"].config)
    with pytest.raises(ConfigError, match=r"no weight is quantized as config\.json says \(AWQ"):
        LLM(str(folder))
