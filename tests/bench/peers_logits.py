"""Logits of tiny random GGUF files by llama.cpp and by us, by hand: the same file read by both, in float32.

`python tests/bench/peers_logits.py PYTHON [MODEL …]`: PYTHON of llama-cpp-python's venv (peers/setup.sh). It prints a table:
the largest difference of a logit, in standard deviations of the logits, and the positions with equal likeliest tokens.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

import tiny_models
from gguf_files import GGUF_HYBRIDS, GGUF_MODELS, write_gguf
from logits import all_logits
from transformers import Gemma3nTextConfig

WORKER = Path(__file__).parent / "peers/logits_worker.py"
# llama.cpp fixes these of Gemma 3n's sizes: layers before the shared ones, ranks, widths, sparse layers, the cap.
FIXED = {
    "num_hidden_layers": 25,
    "intermediate_size": [96] * 25,
    "layer_types": ["full_attention" if layer % 5 == 4 else "sliding_attention" for layer in range(25)],
    "num_kv_shared_layers": 5,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": tiny_models.VOCAB_SIZE,
    "laurel_rank": 64,
    "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 15,
    "final_logit_softcapping": 30.0,
}


def main() -> None:
    """Compare the models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    parser.add_argument("models", nargs="*", help="none = all")
    asked = parser.parse_args()
    fields = {**tiny_models.CONFIGS["gemma3n"].to_dict(), **FIXED}
    tiny_models.CONFIGS["gemma3n"] = Gemma3nTextConfig.from_dict(fields)
    print("| model | largest difference / σ | mean | equal likeliest tokens |\n|---|---:|---:|---:|")
    for name in asked.models or (*GGUF_MODELS, *GGUF_HYBRIDS):
        with tempfile.TemporaryDirectory() as folder:
            print(f"| {name} | {compared(asked.python, Path(folder), name)} |", flush=True)


def compared(python: str, folder: Path, name: str) -> str:
    """Return the cells of a model's row."""
    path, output = folder / f"{name}.gguf", folder / "logits.npy"
    write_gguf(path, name)
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
