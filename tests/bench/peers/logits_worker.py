"""Worker of peers_logits.py, in llama.cpp's venv: logits of one sequence. `python logits_worker.py FILE IDS OUTPUT`."""

import json
import os
import sys

import llama_cpp as lib
import numpy as np


def main(file: str, ids: list[int], output: str) -> None:
    """Write the logits [T, vocab_size] of these ids, computed in float32 by one thread."""
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(file.encode(), lib.llama_model_default_params())
    if not model:
        sys.exit("llama.cpp refuses the file")
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = len(ids)
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = lib.GGML_TYPE_F32
    params.flash_attn_type = 0
    context = lib.llama_init_from_model(model, params)
    batch = lib.llama_batch_init(len(ids), 0, 1)
    for place, token in enumerate(ids):
        batch.token[place], batch.pos[place], batch.logits[place] = token, place, 1
        batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
    batch.n_tokens = len(ids)
    if lib.llama_decode(context, batch):
        sys.exit("llama_decode failed")
    vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    rows = [np.ctypeslib.as_array(lib.llama_get_logits_ith(context, row), (vocab_size,)) for row in range(len(ids))]
    np.save(output, np.stack(rows))
    sys.stdout.flush()
    os._exit(0)  # llama.cpp's order of ends is its own


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
