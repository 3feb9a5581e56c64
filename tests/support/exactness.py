"""Combinations of dtype, weights, activations and cache, and their answers to the bit under random schedules."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf import GGMLQuantizationType as Type
from gguf_files import write_gguf
from quantized_checkpoints import Case, awq, compressed, fp8, gptq, save_quantized
from random_schedule import Arrival, random_llm, run_schedule
from tiny_models import VOCAB_SIZE, save_model

from splitfuse.engine import LLM, SamplingParams

LONGEST, NUM_NEW = 200, 8
_TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


@dataclass(frozen=True)
class Combination:
    """Tiny model in one form, and the settings that it is served with."""

    model: str = "llama-gqa-tied"
    gguf: Type | None = None
    checkpoint: Case | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> str:
        """Write the model into the folder and return its path."""
        if self.gguf is not None:
            write_gguf(folder / "model.gguf", self.model, kind=self.gguf)
            return str(folder / "model.gguf")
        if self.checkpoint is not None:
            save_quantized(self.model, self.checkpoint, folder / "quantized")
            return str(folder / "quantized")
        save_model(self.model, folder)
        return str(folder)


def _with(form: Combination, **options: Any) -> Combination:
    return Combination(form.model, form.gguf, form.checkpoint, {**form.options, **options})


def _forms() -> dict[str, Combination]:
    return {
        "plain": Combination(),
        "int8": Combination(options={"quantization": "int8"}),
        "int4": Combination(options={"quantization": "int4"}),
        "e4m3 at load": Combination(options={"quantization": "fp8"}),
        "Q4_0": Combination(gguf=Type.Q4_0),
        "Q4_1": Combination(gguf=Type.Q4_1),
        "Q5_0": Combination(gguf=Type.Q5_0),
        "Q8_0": Combination(gguf=Type.Q8_0),
        "BF16": Combination(gguf=Type.BF16),
        "awq": Combination(checkpoint=awq(4, 32)),
        "gptq": Combination(checkpoint=gptq(4, 32)),
        "gptq in activation order": Combination(checkpoint=gptq(4, 32, act_order=True)),
        "fp8 blocks": Combination(checkpoint=fp8((64, 64))),
        "fp8 tensor": Combination(checkpoint=fp8(None)),
        "w4a16": Combination(
            checkpoint=compressed({"num_bits": 4, "strategy": "group", "group_size": 32}, packed=True)
        ),
        "w8a8": Combination(checkpoint=compressed({"num_bits": 8, "strategy": "channel"}, _TOKEN)),
    }


_PLAIN = ("plain", "e4m3 at load", "BF16", "fp8 blocks", "fp8 tensor", "w8a8")  # forms whose inputs no setting rounds
_FAMILIES = (
    *("mistral-window", "gemma2", "qwen3-moe", "gpt2", "stablelm", "llama-mqa-head24", "qwen2-moe"),
    *("lfm2", "qwen3.5", "deepseek-v3", "gemma3n", "gemma4", "gpt-oss"),
)
_PACKED = {
    "qwen3-moe": ("int8", "int4", "Q4_0", "Q8_0"),
    **dict.fromkeys(("lfm2", "qwen3.5", "deepseek-v3", "gpt-oss"), ("int8", "int4")),
}


def combinations() -> dict[str, Combination]:
    """Return all combinations that a file and the settings can express."""
    found: dict[str, Combination] = {}
    for name, form in _forms().items():
        for dtype in ("bfloat16", "float32"):
            for cache in ("auto", "int8"):
                rounded = ("none", "int8") if dtype == "float32" else ("auto", "none", "int8")
                for activations in ("none",) if name in _PLAIN else rounded:
                    found[f"{name}, {dtype}, activations {activations}, cache {cache}"] = _with(
                        form, dtype=dtype, kv_cache_dtype=cache, quantization_activations=activations
                    )
    for family in _FAMILIES:
        for dtype in ("bfloat16", "float32"):
            found[f"{family}, {dtype}"] = Combination(family, options={"dtype": dtype})
    for family, names in _PACKED.items():
        for name in names:
            form = _forms()[name]
            packed = Combination(family, form.gguf, None, {**form.options, "dtype": "bfloat16"})
            found[f"{family} in {name}"] = packed
    return found


@dataclass(frozen=True)
class Question:
    """Prompt with its parameters."""

    prompt: list[int]
    params: SamplingParams


def questions(count: int, rng: random.Random) -> list[Question]:
    """Return prompts of 1 to LONGEST tokens, of which some begin alike, with parameters of several kinds."""
    found: list[Question] = []
    for number in range(count):
        prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([1, 2, 15, 16, 33, rng.randint(1, LONGEST)]))]
        if found and rng.random() < 0.4:
            beginning = rng.choice(found).prompt
            prompt = (beginning[: rng.randint(1, len(beginning))] + prompt)[:LONGEST]
        sampled = {"temperature": 0.9, "seed": number, "n": rng.choice([1, 1, 2])}
        kind: dict[str, Any] = rng.choice([{"temperature": 0}, sampled, {"temperature": 0, "prompt_logprobs": 1}])
        found.append(Question(prompt, SamplingParams(max_tokens=NUM_NEW, ignore_eos=True, logprobs=2, **kind)))
    return found


# Tokens of all outputs, and the logprobs of outputs and prompt.
Answer = tuple[list[list[int]], torch.Tensor]


def answers(llm: LLM, asked: Sequence[Question], rng: random.Random | None = None) -> list[Answer]:
    """Return the answers under a random schedule, or all at once."""
    arrivals = [
        Arrival(question.prompt, question.params, at_step=rng.randint(0, len(asked)) if rng else 0)
        for question in asked
    ]
    run_schedule(llm, arrivals)
    return [([output.token_ids for output in arrival.outputs], _logprobs(arrival)) for arrival in arrivals]


def _logprobs(arrival: Arrival) -> torch.Tensor:
    items = [item for output in arrival.outputs for item in output.logprobs or ()]
    items += [item for item in arrival.prompt_logprobs or () if item is not None]
    numbers = [[item.logprob, *(logprob for _, logprob in item.top)] for item in items]
    return torch.tensor([number for numbers_of_token in numbers for number in numbers_of_token], dtype=torch.float64)


def num_different(some: Sequence[Answer], others: Sequence[Answer]) -> int:
    """Count the answers whose tokens differ or whose logprobs differ in a bit."""
    return sum(
        tokens != other_tokens or not torch.equal(logprobs, other_logprobs)
        for (tokens, logprobs), (other_tokens, other_logprobs) in zip(some, others, strict=True)
    )


def reference_answers(path: str, combination: Combination, asked: Sequence[Question]) -> list[Answer]:
    """Return each question's answers when it is alone and its prompt is one chunk."""
    llm = LLM(path, device="cpu", enable_prefix_caching=False, num_kv_blocks=64, **combination.options)
    assert llm.engine.runner.loaded.inexact is None
    return [answer for question in asked for answer in answers(llm, [question])]


def scheduled_answers(
    path: str, combination: Combination, asked: Sequence[Question], rng: random.Random
) -> list[Answer]:
    """Return the answers under a random schedule of a random engine."""
    llm = random_llm(rng, path, max_tokens_of_one=LONGEST + NUM_NEW, block_sizes=(1, 4, 16, 32), **combination.options)
    return answers(llm, asked, rng)


def requantize(source: Path, target: Path, kind: Type) -> None:
    """Write a GGUF file again with all of its matrices as `kind`."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, value in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            sub_type = value.types[-1] if value.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, value.contents(), value.types[0], sub_type=sub_type)
    for tensor in reader.tensors:
        own = tensor.tensor_type if len(tensor.shape) == 1 else kind
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, gguf.quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
