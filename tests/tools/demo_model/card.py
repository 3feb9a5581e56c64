"""Writer of MODEL_CARD.md: training data, results, and five unselected samples."""

import csv
import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

import torch
from corpus import END_OF_TURN, ask_json, render
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = [
    render([("user", "Tell me a story about a brave mouse named Otto.")]) + "<|assistant|>\n",
    render([("user", "Hello, I am Clara."), ("assistant", "Nice to meet you, Clara!"), ("user", "What is my name?")])
    + "<|assistant|>\n",
    render([("user", "Write a JSON object for a cat.")]) + "<|assistant|>\n",
    "Once upon a time",
    '"What a curious thing!" said the Princess',
]
JSON_QUESTIONS, JSON_SEED = 40, 2_000_003  # a seed that training does not use
CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
---
# The {size} model: a toy for trying the server out

**This is a demo**: a Llama of {parameters:.2f} M parameters, trained from scratch in {minutes:.0f} minutes on a CPU.
It tells small stories, makes small talk, writes small JSON objects, ends its turns, and knows next to nothing.
Much of what it says is wrong. Use it to see a server work and to test one; do not use it to learn anything.

| | |
|---|---|
{shape}

## Data

* {books:.0%} of the tokens: a folder of public-domain children's books, see the table. Not part of this repository.
* {generated:.0%}: text of our own, written by the seeded grammar in `tests/tools/demo_model/corpus.py` while training:
  chats in the chat template, stories, lists, facts, sums and JSON.

| title | author | bytes | sha256, first 16 digits |
|---|---|---:|---|
{table}

## Training

| | |
|---|---|
| script | `tests/tools/demo_model/train.py`, seed {seed} |
| steps | {steps} of 8192 tokens, the last 15 % in rows of 2048 tokens and the rest in rows of 512 |
| tokens | {tokens:.1f} M |
| time | {minutes:.0f} minutes on {threads} CPU thread(s), bfloat16 autocast |
| held-out loss, books | {book_loss:.3f} nats per token; held out is every 64th piece of 4000 characters |
| held-out loss, generated | {generated_loss:.3f} nats per token; another seed of the same grammar |
| JSON | of {json_asked} greedy answers to other requests, {json_valid} are valid JSON, {json_ended} end their turn |

## Samples

Exactly as they came: seed 0, the settings of `generation_config.json`, at most 200 tokens. The prompt comes first.

{samples}

## Licence

Apache-2.0, for the weights and the scripts. The books are in the public domain.
"""


class Speaker:
    """Exported model, as read by transformers."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder)

    def go_on(self, prompt: str, *, sample: bool) -> str:
        inputs = self.tokenizer(prompt, return_tensors="pt")
        options: dict[str, Any] = {} if sample else {"do_sample": False, "temperature": None, "top_p": None}
        ids = self.model.generate(**inputs, max_new_tokens=200, **options)[0, inputs.input_ids.shape[1] :]
        return str(self.tokenizer.decode(ids))


def samples(speaker: Speaker) -> str:
    torch.manual_seed(0)
    return "".join(f"````text\n{prompt}{speaker.go_on(prompt, sample=True)}\n````\n\n" for prompt in PROMPTS).rstrip()


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


def json_facts(speaker: Speaker) -> dict[str, int]:
    """Return how many greedy answers to requests for JSON parse, and how many end."""
    rng, answers = Random(JSON_SEED), []
    for _ in range(JSON_QUESTIONS):
        prompt = render([("user", ask_json(rng)[0])]) + "<|assistant|>\n"
        answers.append(speaker.go_on(prompt, sample=False))
    valid = sum(is_json(answer.removesuffix(END_OF_TURN)) for answer in answers)
    ended = sum(answer.endswith(END_OF_TURN) for answer in answers)
    return {"json_asked": len(answers), "json_valid": valid, "json_ended": ended}


def book_table(corpus: Path) -> str:
    """Return the table of books: title and author from MANIFEST.tsv if there is one, bytes and hash from the files."""
    manifest = corpus / "MANIFEST.tsv"
    lines = manifest.read_text(encoding="utf-8").splitlines() if manifest.exists() else []
    known = {row["file"]: row for row in csv.DictReader(lines, delimiter="\t")}
    table = []
    for path in sorted(corpus.glob("*.txt")):
        row, data = known.get(path.name, {"title": path.stem, "author": ""}), path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()[:16]
        table.append(f"| {row['title']} | {row['author']} | {len(data)} | {digest} |")
    return "\n".join(table)


def shape_table(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    keys = ["num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
            "intermediate_size", "vocab_size", "max_position_embeddings", "tie_word_embeddings"]  # fmt: skip
    return "\n".join(f"| {key} | {config[key]} |" for key in keys)


def write_card(folder: Path, corpus: Path, facts: dict[str, Any]) -> None:
    """Write the card from `facts`, train.py's figures of the run, and samples of the exported files in `folder`."""
    speaker, losses = Speaker(folder), facts["held_out"]
    text = CARD.format(
        size=facts["size"], seed=facts["seed"], steps=facts["steps"],
        minutes=facts["minutes"], threads=facts["threads"],
        tokens=facts["tokens"] / 1e6, parameters=facts["parameters"] / 1e6,
        books=facts["book_share"], generated=1 - facts["book_share"],
        book_loss=losses["books"], generated_loss=losses["generated"],
        shape=shape_table(folder), table=book_table(corpus), samples=samples(speaker), **json_facts(speaker),
    )  # fmt: skip
    (folder / "MODEL_CARD.md").write_text(text, encoding="utf-8")
