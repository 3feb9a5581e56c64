"""Worker process of one peer: loads, then answers one JSON line per JSON line until its input ends.

`python worker.py PEER FOLDER LARGEST SETTINGS` (the last two are JSON objects). {"prompts": [[id]], "output_len": n}
gives {"seconds": s, "outputs": [[id]], "first_seconds": s or null}.
"""

import json
import os
import sys
import time
from pathlib import Path

from engines import PEERS, Largest, first_seconds


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # peers may print to stdout, which must hold answers only
    peer, folder, largest, settings = sys.argv[1:]
    generate = PEERS[peer.partition("@")[0]](Path(folder), Largest(**json.loads(largest)), **json.loads(settings))
    for line in sys.stdin:
        ask = json.loads(line)
        start = time.perf_counter()
        outputs = generate(ask["prompts"], ask["output_len"])
        seconds = time.perf_counter() - start
        first = first_seconds.pop() if first_seconds else None
        print(json.dumps({"seconds": seconds, "outputs": outputs, "first_seconds": first}), file=answers, flush=True)


if __name__ == "__main__":
    main()
