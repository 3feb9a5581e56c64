"""Texts per second of embeddings: LLM.embed and its peers by turns, on the same weights of the same number of bits.

    python tests/bench/embeddings.py FOLDER [--peers sentence-transformers llamacpp] [--bits 32] [--lengths 32 256]

FOLDER has sentence-transformers' files; a new one gets BERT-base's shape with random weights. sentence-transformers
runs in this process and needs its package. llama.cpp runs in its own (tests/bench/peers/setup.sh llamacpp), with a GGUF
file of each type that has these bits, and is stopped while another runs. A round before the first pair warms up and
compares the vectors. Wall and CPU seconds of each: on a busy machine CPU seconds say more, with --threads 1 only, since
llama.cpp's threads spin while they wait for each other.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import gguf
import torch

sys.path.insert(0, str(Path(__file__).with_name("peers")))
from bert_file import WORDS, write_bert, write_bert_base
from processes import LineWorker, end_children_on_sigterm

from splitfuse.engine import LLM

_WORKER = Path(__file__).with_name("peers") / "embedding_worker.py"
OURS = "splitfuse"
SETTINGS: dict[int, dict[str, Any]] = {
    32: {"dtype": "float32"},
    16: {"dtype": "bfloat16"},
    8: {"dtype": "bfloat16", "quantization": "int8"},
}
# llama.cpp's fastest type of 16 bits depends on the processor.
GGUF_TYPES = {32: ["F32"], 16: ["F16", "BF16"], 8: ["Q8_0"]}
LEAST_COSINE = 0.9999  # in float32; one word more or less gives 0.9990 to 0.9994


@dataclass(frozen=True)
class Turn:
    """One embedder's seconds for a list of texts, and the vectors."""

    wall: float
    cpu: float
    vectors: torch.Tensor


Embedder = Callable[[list[str]], Turn]


def here(embed: Callable[[list[str]], Any]) -> Embedder:
    """Return an embedder in this process."""

    def run(texts: list[str]) -> Turn:
        wall, cpu = time.perf_counter(), time.process_time()
        vectors = embed(texts)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return Turn(wall, cpu, torch.as_tensor(vectors).float())

    return run


def splitfuse(args: argparse.Namespace) -> Embedder:
    settings = SETTINGS[args.bits] | {"quantization_activations": args.quantization_activations}
    llm = LLM(str(args.folder), num_threads=args.threads, **settings)
    return here(lambda texts: [output.outputs.embedding for output in llm.embed(texts)])


def sentence_transformers(args: argparse.Namespace) -> Embedder:
    """Load sentence-transformers; without int8, it has bfloat16 for 8 bits."""
    from sentence_transformers import SentenceTransformer

    dtype = getattr(torch, SETTINGS[args.bits]["dtype"])
    model = SentenceTransformer(str(args.folder), device="cpu", model_kwargs={"dtype": dtype})
    model.max_seq_length = 512
    return here(lambda texts: model.encode(texts, batch_size=32))


def llamacpp(args: argparse.Namespace, kind: str, stack: ExitStack) -> Embedder:
    """Load a file of that type. A batch is one pass: an encoder sees all tokens at once.

    Flash attention gives 1.1 to 1.3 times the texts, other sizes of batches (128 to 1,024) nothing beside it.
    """
    file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / f"{kind}.gguf"
    write_bert(args.folder, file, gguf.GGMLQuantizationType[kind])
    settings = {"flash_attn": True} | dict.fromkeys(("n_threads", "n_threads_batch"), args.threads)
    worker = stack.enter_context(LineWorker("llamacpp", _WORKER, str(file), json.dumps(settings)))

    def run(texts: list[str]) -> Turn:
        answer = worker.exchange({"texts": texts})
        worker.rest()
        return Turn(answer["wall"], answer["cpu"], torch.tensor(answer["vectors"]))

    return run


def embedders(args: argparse.Namespace, stack: ExitStack) -> dict[str, Embedder]:
    """Return this engine and the peers by name."""
    loaded = {OURS: splitfuse(args)}
    if "sentence-transformers" in args.peers:
        loaded["sentence-transformers"] = sentence_transformers(args)
    if "llamacpp" in args.peers:
        loaded |= {f"llamacpp {kind}": llamacpp(args, kind, stack) for kind in GGUF_TYPES[args.bits]}
    torch.set_num_threads(args.threads)
    return loaded


def texts_of(length: int, count: int) -> list[str]:
    """Return random words that make `length` tokens with the special ones."""
    rng = random.Random(length)
    return [" ".join(rng.choices(WORDS, k=length - 2)) for _ in range(count)]


def compared(loaded: dict[str, Embedder], texts: list[str], bits: int) -> dict[str, float]:
    """Warm up. Return the least cosine of a peer's vector and ours. Exits if other numbers come in float32."""
    vectors = {name: run(texts).vectors for name, run in loaded.items()}
    ours = vectors[OURS]
    cosines = {name: torch.cosine_similarity(ours, theirs).min().item() for name, theirs in vectors.items()}
    if bits == 32 and min(cosines.values()) < LEAST_COSINE:
        sys.exit(f"vectors differ: {cosines}")
    return cosines


def show(length: int, num_texts: int, turns: dict[str, list[Turn]], cosines: dict[str, float]) -> None:
    """Print a line for each embedder. A ratio is the peer's seconds to ours, of each pair."""
    print(f"{length} tokens, {num_texts} texts in a call, load {os.getloadavg()[0]:.1f}")
    for name, series in turns.items():
        line = f"{name:>22}"
        for kind in ("wall", "cpu"):
            seconds = [getattr(turn, kind) for turn in series]
            line += f"  {kind} {num_texts / median(seconds):7.1f} texts/s"
            if name != OURS:
                ratios = [theirs / getattr(ours, kind) for theirs, ours in zip(seconds, turns[OURS], strict=True)]
                line += f", ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(line if name == OURS else f"{line}  cosine {cosines[name]:.7f}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("folder", type=Path)
    add("--peers", nargs="*", choices=["sentence-transformers", "llamacpp"], default=["sentence-transformers"])
    add("--bits", type=int, choices=SETTINGS, default=32, help="of weights: float32, bfloat16, int8")
    add("--quantization-activations", default="none", help="ours, with 8 bits; llama.cpp's are int8 then")
    add("--lengths", type=int, nargs="+", default=[32, 256])
    add("--count", type=int, default=0, help="texts in a call; default: 4,096 tokens")
    add("--pairs", type=int, default=5)
    add("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    args = parse()
    end_children_on_sigterm()
    if not (args.folder / "config.json").exists():
        write_bert_base(args.folder)
    with ExitStack() as stack:
        loaded = embedders(args, stack)
        for length in args.lengths:
            texts = texts_of(length, args.count or 4096 // length)
            cosines = compared(loaded, texts, args.bits)
            turns: dict[str, list[Turn]] = {name: [] for name in loaded}
            for _ in range(args.pairs):
                for name, run in loaded.items():
                    turns[name].append(run(texts))
            show(length, len(texts), turns, cosines)


if __name__ == "__main__":
    main()
