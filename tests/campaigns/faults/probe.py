"""Probe of a server from a process of its own: `python -m faults.probe KIND URL`, until stdin ends.

KIND is `gaps` (seconds between the events of endless streams) or a path (seconds per GET, and the statuses). Prints a
JSON list [quiet, values]: the largest value before the first line of stdin, and all values after it.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator

import httpx

_STREAM = {"prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "temperature": 0, "stream": True}
_PAUSE_S = 0.02


def main() -> None:
    kind, url = sys.argv[1:]
    began, ended = threading.Event(), threading.Event()
    threading.Thread(target=_follow, args=(began, ended), daemon=True).start()
    quiet, values = [0.0], [0.0]
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        while not ended.is_set():
            for seconds in _gaps(client) if kind == "gaps" else _answers(client, kind):
                (values if began.is_set() else quiet).append(seconds)
                if ended.is_set():
                    break
    print(json.dumps([max(quiet), values]))


def _follow(began: threading.Event, ended: threading.Event) -> None:
    sys.stdin.readline()
    began.set()
    sys.stdin.read()
    ended.set()


def _gaps(client: httpx.Client) -> Iterator[float]:
    with client.stream("POST", "/generate", json=_STREAM) as response:
        last = None
        for line in response.iter_lines():
            if line.startswith("data"):
                now = time.monotonic()
                if last is not None:
                    yield now - last
                last = now


def _answers(client: httpx.Client, path: str) -> Iterator[float]:
    start = time.monotonic()
    assert client.get(path).status_code == 200
    yield time.monotonic() - start
    time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
