"""Perplexity (e^mean negative log-likelihood) of token ids under llama.cpp: `python perplexity.py FILE.gguf IDS.json`.

Runs in llama.cpp's own venv. IDS.json is a list of windows of ids; the first id of each does not count.
"""

import json
import sys
from pathlib import Path

import llama_cpp as lib
import numpy as np


def perplexity(file: str, windows: list[list[int]]) -> float:
    """Return the perplexity, with every window on its own and logits in float64."""
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(file.encode(), lib.llama_model_default_params())
    vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = max(map(len, windows))
    context = lib.llama_init_from_model(model, params)
    batch = lib.llama_batch_init(params.n_batch, 0, 1)
    losses: list[float] = []
    for window in windows:
        lib.llama_memory_clear(lib.llama_get_memory(context), False)
        for place, token in enumerate(window):
            batch.token[place], batch.pos[place], batch.logits[place] = token, place, True
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
        batch.n_tokens = len(window)
        if lib.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        for place, target in enumerate(window[1:]):
            row = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, place), (vocab_size,)).astype(np.float64)
            losses.append(float(np.logaddexp.reduce(row) - row[target]))
    return float(np.exp(np.mean(losses)))


if __name__ == "__main__":
    print(f"{perplexity(sys.argv[1], json.loads(Path(sys.argv[2]).read_text())):.4f}")
