"""Cost of quantized weights: perplexity of text outside the training data, by prompt_logprobs.

`python tests/bench/quantization.py`: the demo model on documents of its training grammar, under a seed of their own.
`python tests/bench/quantization.py MODEL --texts FILE…`: another model, on text in windows of --window tokens; GGUF
files after --llama-cpp get equal ids under llama.cpp (peers/setup.sh makes its venv).
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).with_name("peers")))
from processes import environment_of, python_of

from splitfuse.engine import LLM, SamplingParams

TRAINING = Path(__file__).parents[1] / "tools/demo_model"
HELD_OUT_SEED = 1_000_003  # the training script counts up from 0
SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "int8 cache": {"kv_cache_dtype": "int8"},
    "int8, int8 inputs": {"quantization": "int8", "quantization_activations": "int8"},
    "int4, int8 inputs": {"quantization": "int4", "quantization_activations": "int8"},
}


def documents(count: int) -> list[str]:
    """Return the first `count` held-out documents."""
    sys.path.insert(0, str(TRAINING))  # the training scripts import each other by name
    from corpus import documents

    return list(islice(documents(HELD_OUT_SEED), count))


def windows(llm: LLM, files: list[Path], *, num_tokens: int, window: int) -> list[list[int]]:
    """Return windows from the middle of the files, an equal share of tokens from each; a rest is left out."""
    share = num_tokens // len(files)
    found = []
    for file in files:
        text = file.read_text()
        assert llm.tokenizer is not None
        ids = llm.tokenizer.encode(text[len(text) // 2 :][: 8 * share], add_special_tokens=False)[:share]
        found += [ids[start : start + window] for start in range(0, len(ids) - window + 1, window)]
    return found


def perplexity(llm: LLM, prompts: list[Any]) -> tuple[float, int]:
    """Return (e^mean negative log-likelihood, number of counted tokens): all but each prompt's first token count."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    logprobs = [
        scored.logprob
        for output in llm.generate(prompts, params)
        for scored in output.prompt_logprobs or []
        if scored is not None
    ]
    return math.exp(-sum(logprobs) / len(logprobs)), len(logprobs)


def llama_cpp(file: Path, prompts: list[list[int]]) -> float:
    """Return llama.cpp's perplexity, computed in its own venv."""
    script = Path(__file__).parent / "peers/perplexity.py"
    with tempfile.NamedTemporaryFile("w", suffix=".json") as ids:
        json.dump(prompts, ids)
        ids.flush()
        command = [python_of("llamacpp"), str(script), str(file), ids.name]
        done = subprocess.run(command, env=environment_of("llamacpp"), check=True, capture_output=True, text=True)
        return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--documents", type=int, default=200, help="of the demo model's training grammar")
    parser.add_argument("--texts", type=Path, nargs="*", default=[])
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--llama-cpp", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    prompts: list[Any] = []
    plain = 0.0
    for name in options.settings:
        llm = LLM(options.model, dtype=options.dtype, max_num_seqs=16, **SETTINGS[name])
        if not prompts:
            prompts = (
                windows(llm, options.texts, num_tokens=options.tokens, window=options.window)
                if options.texts
                else documents(options.documents)
            )
        found, count = perplexity(llm, prompts)
        plain = plain or found
        _tell(name, found, plain, count)
    for file in options.llama_cpp:
        _tell(f"llama.cpp {file.name}", llama_cpp(file, prompts), plain, count)


def _tell(name: str, found: float, plain: float, count: int) -> None:
    print(f"{name:28} {found:.4f}  {100 * (found / plain - 1):+.2f} %  ({count} tokens)", flush=True)


if __name__ == "__main__":
    main()
