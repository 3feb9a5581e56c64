"""Logits of tiny random GGUF files by llama.cpp and by us, by hand: the same file read by both, in float32.

    PYTHONPATH=tests/support python tests/bench/peers_logits.py PYTHON [MODEL …]

PYTHON is of llama-cpp-python's venv (peers/setup.sh). It prints a table: the largest difference of a logit, in standard
deviations of the logits, and the positions with equal likeliest tokens.
"""

import argparse
import json
import random
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tiny_models
from gguf import GGMLQuantizationType as Type
from gguf_files import GGUF_HYBRIDS, GGUF_MODELS, write_model
from logits import all_logits

WORKER = Path(__file__).parent / "peers/logits_worker.py"
_NUM_LAYERS = 25
_CALM = {"gemma3n": 0.1}  # factors of norms after parts: 25 random layers make float32's rounding 0.2 σ
# llama.cpp fixes these sizes and scales, or takes no biases.
CHANGES: dict[str, dict[str, Any]] = {
    "gemma3n": {
        "num_hidden_layers": _NUM_LAYERS,
        "intermediate_size": [2048] * _NUM_LAYERS,
        "layer_types": ["sliding_attention" if layer % 5 else "full_attention" for layer in range(1, _NUM_LAYERS + 1)],
        "num_kv_shared_layers": 5,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": tiny_models.VOCAB_SIZE,
        "laurel_rank": 64,
        "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 15,
        "final_logit_softcapping": 30.0,
    },
    "gemma4": {"num_kv_shared_layers": 2},
    "gemma2": {"query_pre_attn_scalar": 24},  # llama.cpp takes the width of heads
    "gemma3": {"query_pre_attn_scalar": 24},
    "deepseek-v2": {"num_hidden_layers": 27, "topk_method": "greedy", "n_group": None, "topk_group": None},
    "deepseek-v3": {"attention_bias": False},
}


def main() -> None:
    """Compare the models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("models", nargs="*", help="none = all")
    asked = parser.parse_args()
    for name, changes in CHANGES.items():
        config = tiny_models.CONFIGS[name]
        tiny_models.CONFIGS[name] = type(config).from_dict({**config.to_dict(), **changes})
    print("| model | largest difference / σ | mean | equal likeliest tokens |\n|---|---:|---:|---:|")
    for name in asked.models or (*GGUF_MODELS, *GGUF_HYBRIDS):
        with tempfile.TemporaryDirectory() as folder:
            print(f"| {name} | {compared(asked.python, Path(folder), name)} |", flush=True)


def compared(python: str, folder: Path, name: str) -> str:
    """Return the cells of a model's row."""
    path, output = folder / f"{name}.gguf", folder / "logits.npy"
    model = tiny_models.make_model(name)
    for key, parameter in model.named_parameters():
        if "post_" in key and "norm" in key:
            parameter.data.mul_(_CALM.get(name, 1.0))
    write_model(path, model, is_hybrid=name in GGUF_HYBRIDS, kind=Type.F32)
    rng = random.Random(name)
    ids = [rng.randrange(15, tiny_models.VOCAB_SIZE) for _ in range(100)]
    command = [python, str(WORKER), str(path), json.dumps(ids), str(output)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if run.returncode:
        last = [line for line in run.stderr.splitlines() if "rror" in line or "ASSERT" in line or "refuses" in line]
        return f"not run: {' '.join(last)[:160]} | | "
    theirs = np.load(output)
    ours = all_logits(path, ids, chunks=[len(ids)], dtype="float32").numpy()
    differences = np.abs(ours - theirs) / ours.std()
    equal = int((ours.argmax(1) == theirs.argmax(1)).sum())
    return f"{differences.max():.1e} | {differences.mean():.1e} | {equal} of {len(ids)}"


if __name__ == "__main__":
    main()
