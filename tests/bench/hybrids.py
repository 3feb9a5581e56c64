"""Speed of models with recurrent layers beside llama.cpp: the same random weights in Q4_0, by turns.

    PYTHONPATH=tests/support python tests/bench/hybrids.py FOLDER [--shapes lfm2-350m] [--published] [--turns 5]

Takes llama.cpp from tests/bench/peers/setup.sh. Writes FOLDER/SHAPE.gguf unless the file is there, with the tests'
vocabulary; with --published SHAPE-published.gguf, whose vocabulary is as large as the published model's. Prints tokens
per second of calls, and the median of the ratios of neighbouring turns with its range.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from gguf import GGMLQuantizationType
from gguf_files import write_model
from tiny_models import VOCAB_SIZE
from transformers import AutoModelForCausalLM, Lfm2Config, PretrainedConfig, Qwen3_5TextConfig

sys.path.insert(0, str(Path(__file__).with_name("peers")))
from processes import Worker, end_children_on_sigterm

# name → (prompts, tokens of a prompt, output tokens)
LOADS = {"1 x 32": (1, 32, 64), "8 x 128": (8, 128, 64), "prefill of 4,096": (1, 4096, 1)}
PUBLISHED_SIZES = {"lfm2-350m": 65_536, "qwen3.5-0.8b": 248_320}  # of vocabularies
FULL_LAYERS = (2, 5, 8, 10, 12, 14)  # of LFM2-350M's 16


def configs(vocab_sizes: Mapping[str, int]) -> dict[str, PretrainedConfig]:
    """Return the published shapes with vocabularies of these sizes."""
    return {
        "lfm2-350m": Lfm2Config(
            hidden_size=1024, intermediate_size=6656, num_hidden_layers=16, num_attention_heads=16,
            num_key_value_heads=8, full_attn_idxs=list(FULL_LAYERS), conv_L_cache=3,
            vocab_size=vocab_sizes["lfm2-350m"], tie_word_embeddings=True,
        ),
        "qwen3.5-0.8b": Qwen3_5TextConfig(
            hidden_size=1024, intermediate_size=3584, num_hidden_layers=24, num_attention_heads=8,
            num_key_value_heads=2, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16,
            linear_key_head_dim=128, linear_value_head_dim=128, vocab_size=vocab_sizes["qwen3.5-0.8b"],
            tie_word_embeddings=True,
        ),
    }  # fmt: skip


def write(path: Path, config: PretrainedConfig) -> None:
    """Write a model of random weights."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    write_model(path, model, is_hybrid=True, kind=GGMLQuantizationType.Q4_0)


def measure(model: Path, name: str, args: argparse.Namespace) -> str:
    """Return a row of the table; `name`: of the load."""
    num, prompt_len, output_len = LOADS[name]
    largest = {"num_seqs": num, "max_model_len": prompt_len + output_len + 16, "num_threads": args.threads}
    rng, turns, num_equal = random.Random(1), [], 0
    with ExitStack() as stack:
        settings = {"splitfuse": args.settings, "llamacpp": {}}
        workers = [stack.enter_context(Worker(peer, model, largest, fields)) for peer, fields in settings.items()]
        for turn in range(args.turns + 1):
            prompts = [[rng.randrange(5, 250) for _ in range(prompt_len)] for _ in range(num)]
            answers = []
            for worker in workers:
                answers.append(worker.ask(prompts, output_len))
                worker.rest()
            if turn:  # the first one warms up
                turns.append([seconds for seconds, _ in answers])
                num_equal += sum(a == b for a, b in zip(*(outputs for _, outputs in answers), strict=True))
    num_tokens = num * output_len if output_len > 1 else num * prompt_len
    speeds = [num_tokens / statistics.median(times) for times in zip(*turns, strict=True)]
    ratios = sorted(their / own for own, their in turns)
    row = " | ".join(f"{speed:.0f}" for speed in speeds)
    spread = f"**{statistics.median(ratios):.2f}** ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return f"| {model.stem} | {name} | {row} | {spread} | {num_equal} of {num * args.turns} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shapes", nargs="+", default=list(PUBLISHED_SIZES), choices=list(PUBLISHED_SIZES))
    parser.add_argument("--published", action="store_true", help="take the published models' sizes of vocabularies")
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--settings", type=json.loads, default={}, help="of splitfuse, as JSON")
    args = parser.parse_args()
    end_children_on_sigterm()
    sizes = PUBLISHED_SIZES if args.published else dict.fromkeys(PUBLISHED_SIZES, VOCAB_SIZE)
    paths = {shape: args.folder / f"{shape}{'-published' if args.published else ''}.gguf" for shape in args.shapes}
    for shape, path in paths.items():
        if not path.exists():
            write(path, configs(sizes)[shape])
    print("| model | load | splitfuse | llama.cpp | ratio | equal outputs |\n|---|---|---:|---:|---|---:|", flush=True)
    for path in paths.values():
        for load in args.loads:
            print(measure(path, load, args), flush=True)


if __name__ == "__main__":
    main()
