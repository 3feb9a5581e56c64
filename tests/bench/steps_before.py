"""Compare the speed of greedy decoding with that of an earlier commit's kernels, by turns in one process, one thread.

    python tests/bench/steps_before.py COMMIT MODEL [MODEL …] [--dtype float32]

A round is the processor time of ROUND requests of TOKENS tokens. Prints the median ratio of speeds, now to before.
"""

import argparse
import statistics
import tempfile
import time

import torch
from attention_before import library_of

from splitfuse.engine import LLM, SamplingParams
from splitfuse.kernels.cpu import build

ROUNDS = [(1, 32), (8, 64), (32, 48)]


def seconds_of(llm: LLM, num_requests: int, num_tokens: int) -> float:
    """Return the processor time of a round."""
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    start = time.process_time()
    llm.generate([f"Tell me all about number {index}, please" for index in range(num_requests)], params)
    return time.process_time() - start


def main(args: argparse.Namespace) -> None:
    """Print a line for each model and round."""
    torch.set_num_threads(1)
    now = build.library()
    with tempfile.TemporaryDirectory() as folder:
        libraries = [library_of(args.commit, folder), now]
    for num_requests, num_tokens in ROUNDS:
        for model in args.models:
            llms = []
            for library in libraries:
                build.library = lambda library=library: library  # packed weights keep the library's functions
                llms.append(LLM(model, device="cpu", dtype=args.dtype, max_model_len=512, num_kv_blocks=800))
                llms[-1].generate(["warm"], SamplingParams(max_tokens=4))
            turns = []
            for _ in range(args.turns):
                turn = []
                for llm, library in zip(llms, libraries, strict=True):
                    build.library = lambda library=library: library
                    turn.append(seconds_of(llm, num_requests, num_tokens))
                turns.append(turn)
            ratios = sorted(before / after for before, after in turns)
            least = [min(times) * 1e3 / num_tokens for times in zip(*turns, strict=True)]
            print(
                f"{model[-30:]} {num_requests} x {num_tokens}: {statistics.median(ratios):.3f} "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f}), least ms a token {least[0]:.2f} {least[1]:.2f}",
                flush=True,
            )
            for llm in llms:
                llm.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--turns", type=int, default=5)
    main(parser.parse_args())
