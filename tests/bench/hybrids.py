"""Speed of models with recurrent layers, or with latents, beside llama.cpp: the same random weights in Q4_0, by turns.

    PYTHONPATH=tests/support python tests/bench/hybrids.py FOLDER PYTHON_OF_LLAMA_CPP [--shapes lfm2-350m] [--turns 5]

Writes FOLDER/SHAPE.gguf unless the file is there. The vocabulary is the tests'. Prints tokens per second of calls,
and the median of the ratios of neighbouring turns with its range.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType
from gguf_files import write_model
from mixture_files import write_latent
from tiny_models import VOCAB_SIZE
from transformers import AutoModelForCausalLM, Lfm2Config, PretrainedConfig, Qwen3_5TextConfig

WORKER = Path(__file__).parent / "peers" / "worker.py"
# (name, prompts, tokens of a prompt, output tokens)
LOADS = [("1 x 32", 1, 32, 64), ("8 x 128", 8, 128, 64), ("prefill of 4,096", 1, 4096, 1)]
LATENT = "deepseek-v2-lite-4-layers"
LATENT_LOADS = [*LOADS[:2], ("prefill of 2,048", 1, 2048, 1)]
FULL_LAYERS = (2, 5, 8, 10, 12, 14)  # of LFM2-350M's 16


def configs() -> dict[str, PretrainedConfig]:
    """Return the published shapes but for the vocabulary."""
    common: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "tie_word_embeddings": True}
    return {
        "lfm2-350m": Lfm2Config(
            hidden_size=1024, intermediate_size=6656, num_hidden_layers=16, num_attention_heads=16,
            num_key_value_heads=8, full_attn_idxs=list(FULL_LAYERS), conv_L_cache=3, **common,
        ),
        "qwen3.5-0.8b": Qwen3_5TextConfig(
            hidden_size=1024, intermediate_size=3584, num_hidden_layers=24, num_attention_heads=8,
            num_key_value_heads=2, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16,
            linear_key_head_dim=128, linear_value_head_dim=128, **common,
        ),
    }  # fmt: skip


def write(path: Path, config: PretrainedConfig | None) -> None:
    """Write a model of random weights."""
    if path.stem == LATENT:
        write_latent(path)
        return
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    write_model(path, model, is_hybrid=True, kind=GGMLQuantizationType.Q4_0)


class Peer:
    """Process of an engine with a model."""

    def __init__(self, python: str, engine: str, model: Path, largest: dict[str, int]) -> None:
        command = [python, str(WORKER), engine, str(model), json.dumps(largest), "{}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def answer(self, prompts: list[list[int]], output_len: int) -> dict[str, Any]:
        """Return seconds and outputs of a call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"prompts": prompts, "output_len": output_len}), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def stop(self) -> None:
        self._process.communicate()


def measure(model: Path, pythons: list[str], load: tuple[str, int, int, int], args: argparse.Namespace) -> str:
    """Return a row of the table."""
    name, num, prompt_len, output_len = load
    largest = {"num_seqs": num, "max_model_len": prompt_len + output_len + 16, "num_threads": args.threads}
    ours, theirs = peers = [
        Peer(python, engine, model, largest) for python, engine in zip(pythons, ("splitfuse", "llamacpp"), strict=True)
    ]
    rng, turns, num_equal = random.Random(1), [], 0
    for turn in range(args.turns + 1):
        prompts = [[rng.randrange(5, 250) for _ in range(prompt_len)] for _ in range(num)]
        answers = [ours.answer(prompts, output_len), theirs.answer(prompts, output_len)]
        if turn:  # the first one warms up
            turns.append([answer["seconds"] for answer in answers])
            num_equal += sum(a == b for a, b in zip(*(answer["outputs"] for answer in answers), strict=True))
    for peer in peers:
        peer.stop()
    num_tokens = num * output_len if output_len > 1 else num * prompt_len
    speeds = [num_tokens / statistics.median(times) for times in zip(*turns, strict=True)]
    ratios = sorted(their / own for own, their in turns)
    row = " | ".join(f"{speed:.0f}" for speed in speeds)
    spread = f"**{statistics.median(ratios):.2f}** ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return f"| {model.stem} | {name} | {row} | {spread} | {num_equal} of {num * args.turns} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("python", help="interpreter of a venv with llama-cpp-python and numpy")
    parser.add_argument("--shapes", nargs="+", default=list(configs()), choices=[*configs(), LATENT])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print("| model | load | splitfuse | llama.cpp | ratio | equal outputs |\n|---|---|---:|---:|---|---:|")
    for shape in args.shapes:
        path = args.folder / f"{shape}.gguf"
        if not path.exists():
            write(path, configs().get(shape))
        for load in LATENT_LOADS if shape == LATENT else LOADS:
            print(measure(path, [sys.executable, args.python], load, args), flush=True)


if __name__ == "__main__":
    main()
