"""Real GGUF files: in parts, with types mixed as their publishers mix them, and over random schedules.

SPLITFUSE_TEST_MODELS=FOLDER holds the files; without it all are skipped.
"""

import functools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import quantized
from random_schedule import Arrival, random_llm, run_schedule

from splitfuse.engine import LLM, SamplingParams

FILES = sorted(Path(os.environ.get("SPLITFUSE_TEST_MODELS", "no-models")).glob("*.gguf"))
pytestmark = [pytest.mark.thorough, pytest.mark.skipif(not FILES, reason="needs SPLITFUSE_TEST_MODELS=FOLDER")]
LARGEST = max(FILES, key=lambda path: path.stat().st_size, default=Path())
PROMPTS = ["def fibonacci(n):\n", "The capital of France is", "Es war einmal"]
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
Tensor = tuple[str, np.ndarray[Any, Any], Type]
reader_of = functools.cache(gguf.GGUFReader)  # 262,144 tokens take the package 10 s


def tensors_of(path: Path) -> Iterator[Tensor]:
    for tensor in reader_of(path).tensors:
        yield tensor.name, tensor.data, tensor.tensor_type


def rewritten(path: Path, target: Path, tensors: Iterator[Tensor], *, max_bytes: int = 0) -> None:
    """Write a file with the metadata of another one and these tensors, in parts of at most so many bytes."""
    fields = reader_of(path).fields
    writer = gguf.GGUFWriter(target, fields["general.architecture"].contents(), split_max_size=max_bytes)
    for name, field in fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kinds = field.types if len(field.types) > 1 else [*field.types, None]
            writer.add_key_value(name, field.contents(), kinds[0], kinds[-1])
    for name, data, kind in tensors:
        writer.add_tensor(name, data, raw_dtype=kind)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()


def answers(path: Path) -> list[list[int]]:
    with LLM(str(path), dtype="float32", max_model_len=256) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS)]


@pytest.mark.timeout(3600)
def test_a_split_in_three_opens_by_any_part_or_its_folder(tmp_path: Path) -> None:
    size = LARGEST.stat().st_size
    rewritten(LARGEST, tmp_path / "m.gguf", tensors_of(LARGEST), max_bytes=int(size * 0.36))
    parts = sorted(tmp_path.glob("*.gguf"))
    assert [path.name for path in parts] == [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    expected = answers(LARGEST)
    for given in (*parts, tmp_path):
        assert answers(given) == expected, given


def mixed(tensors: Iterator[Tensor]) -> Iterator[Tensor]:
    """Give some matrices of each layer other types; some have no quantizer in the package, so a few values suffer."""
    kinds = {"attn_v": Type.Q8_0, "attn_output": Type.Q5_1, "ffn_gate": Type.MXFP4}
    for name, data, kind in tensors:
        _, layer, leaf, *_ = [*name.split("."), "", "", ""]
        chosen = kinds.get(leaf, kind) if layer.isdigit() and int(layer) % 2 else kind
        if leaf == "attn_k" and layer in ("3", "5", "7"):
            chosen = {"3": Type.IQ4_XS, "5": Type.IQ3_S, "7": Type.BF16}[layer]
        if chosen is kind or name.endswith(".bias") or data.ndim < 2:
            yield name, data, kind
            continue
        values = gguf.dequantize(data, kind)
        if values.shape[-1] % gguf.GGML_QUANT_SIZES[chosen][0] == 0:
            yield name, quantized(values, chosen), chosen
        else:
            yield name, values, Type.F32


def plain(tensors: Iterator[Tensor]) -> Iterator[Tensor]:
    """Give matrices of mixed types as the floats that the package reads."""
    for name, data, kind in tensors:
        is_mixed = kind in (Type.Q8_0, Type.Q5_1, Type.MXFP4, Type.IQ4_XS, Type.IQ3_S, Type.BF16)
        yield (name, gguf.dequantize(data, kind), Type.F32) if is_mixed else (name, data, kind)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_mix_of_types_gives_the_tokens_of_its_values(path: Path, tmp_path: Path) -> None:
    rewritten(path, tmp_path / "mix.gguf", mixed(tensors_of(path)))
    assert len({kind for _, _, kind in tensors_of(tmp_path / "mix.gguf")}) >= 7
    rewritten(path, tmp_path / "plain.gguf", plain(tensors_of(tmp_path / "mix.gguf")))
    assert answers(tmp_path / "mix.gguf") == answers(tmp_path / "plain.gguf")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_schedule_changes_a_token(path: Path) -> None:
    rng, num_tokens = random.Random(path.name), 12
    prompts = [[rng.randrange(1000, 50_000) for _ in range(rng.choice((3, 20, 60)))] for _ in range(5)]
    params = [
        SamplingParams(temperature=rng.choice((0, 0.8)), seed=index, max_tokens=num_tokens, ignore_eos=True)
        for index in range(len(prompts))
    ]
    alone: list[list[int]] = []
    for number in range(1 + int(os.environ.get("SPLITFUSE_TEST_SCHEDULES", "20"))):
        arrivals = [Arrival(*pair, at_step=rng.randint(0, 12)) for pair in zip(prompts, params, strict=True)]
        options: dict[str, Any] = {"max_model_len": 128}
        if number:
            llm = random_llm(
                rng, str(path), max_tokens_of_one=80, block_sizes=(8, 16), dtype="bfloat16", swap_space=0,
                preemption_mode="auto", **options,
            )  # fmt: skip
        else:
            llm = LLM(str(path), dtype="bfloat16", max_num_seqs=1, enable_prefix_caching=False, **options)
        with llm:
            run_schedule(llm, arrivals)
        tokens = [arrival.output.token_ids for arrival in arrivals]
        alone = alone or tokens
        assert tokens == alone, (number, llm.config)
