"""Worker of embeddings.py, in llama.cpp's venv: `python embedding_worker.py FILE SETTINGS` (of Llama, as JSON).

One JSON line per JSON line: {"texts": [text]} gives {"wall": s, "cpu": s, "vectors": [[number]]}.
"""

import json
import os
import sys
import time

from llama_cpp import Llama


def main(file: str, settings: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stdout must hold answers only
    model = Llama(file, embedding=True, verbose=False, **json.loads(settings))
    for line in sys.stdin:
        texts = json.loads(line)["texts"]
        wall, cpu = time.perf_counter(), time.process_time()
        vectors = model.embed(texts)
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps(times | {"vectors": vectors}), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
