"""Cost of grammars in a step: `python tests/bench/grammar.py [FOLDER...]` prints us per row for each tokenizer.

A FOLDER holds a tokenizer.json; the default is the demo model's. Rows are at random positions of JSON under one
schema. `mask`: catch up by a token and compute the next tokens allowed, on the host. `apply`: add it to the logits.
"""

import random
import statistics
import sys
import time
from pathlib import Path

import torch

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.execution.models.config import ModelConfig
from splitfuse.engine.execution.models.registry import read_model_config
from splitfuse.engine.execution.sampling.sampler import add_masks
from splitfuse.engine.extras.structured_output.compiler import GrammarCompiler
from splitfuse.engine.extras.structured_output.grammar import CompiledGrammar, Grammar
from splitfuse.engine.extras.structured_output.params import StructuredOutputs
from splitfuse.engine.text.tokenizer import Tokenizer

STEPS = 60
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 200},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 4},
        "kind": {"enum": ["cat", "dog", "bird"]},
    },
    "required": ["name", "age", "tags", "kind"],
    "additionalProperties": False,
}


def compile_for(folder: Path) -> CompiledGrammar:
    """Compile the schema for this tokenizer, and print the time."""
    raw = {**read_model_config(DEMO_FOLDER).__dict__}
    tokenizer = Tokenizer(folder)
    start = time.perf_counter()
    compiler = GrammarCompiler(tokenizer, ModelConfig(**raw | {"vocab_size": tokenizer.vocab_size}))
    built = time.perf_counter()
    compiler.compile(StructuredOutputs(regex="the sandbox is there")).result()
    ready = time.perf_counter()
    compiled = compiler.compile(StructuredOutputs(json=SCHEMA)).result()
    seconds = (built - start, ready - built, time.perf_counter() - ready)
    print(f"{tokenizer.vocab_size} entries: tokenizer, first grammar, next grammar: ", end="")
    print(", ".join(f"{1e3 * second:.0f} ms" for second in seconds))
    return compiled


def measure(compiled: CompiledGrammar, num_rows: int) -> tuple[list[float], list[float]]:
    """Return the seconds of every step's masks and of their application, for that many rows."""
    rng = random.Random(0)
    outputs: list[list[int]] = [[] for _ in range(num_rows)]
    grammars: list[Grammar] = [compiled.begin() for _ in range(num_rows)]
    maker, making, applying = grammars[0].new_mask_maker(), [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        for grammar, output in zip(grammars, outputs, strict=True):
            grammar.follow(output, num_prompt_tokens=0)
        allowed = torch.zeros(num_rows, -(-compiled.vocab_size // 32), dtype=torch.int32)
        maker.fill(grammars, [()] * num_rows, allowed)
        making.append(time.perf_counter() - start)
        logits = torch.rand(num_rows, compiled.vocab_size)
        start = time.perf_counter()
        add_masks(logits, range(num_rows), allowed)
        applying.append(time.perf_counter() - start)
        for row, output in enumerate(outputs):
            choices = logits[row].isfinite().nonzero().flatten().tolist()
            output.append(rng.choice(choices))
            if output[-1] in compiled.eos_token_ids:
                outputs[row], grammars[row] = [], compiled.begin()
    return making[5:], applying[5:]


def main(folders: list[str]) -> None:
    """Print one line per tokenizer and number of rows."""
    for folder in map(Path, folders or [str(DEMO_FOLDER)]):
        compiled = compile_for(folder)
        for num_rows in (1, 16, 64):
            making, applying = measure(compiled, num_rows)
            mean, worst, apply = (
                1e6 * spent / num_rows for spent in (statistics.mean(making), max(making), statistics.mean(applying))
            )
            print(f"  {num_rows:3} rows: mask {mean:6.1f} (worst step {worst:7.1f}), apply {apply:5.1f} us per row")


if __name__ == "__main__":
    main(sys.argv[1:])
