"""Training of the demo model from scratch on a folder of .txt files and the generated corpus, into Hugging Face files.

    python tests/tools/demo_model/train.py FOLDER [--out DIR] [--size demo|draft] [--minutes N|--steps N] [--resume]

The draft model's tokenizer is the demo's: `--size draft --tokenizer engine/demo_model/tokenizer.json --minutes 35`; of
the files written, draft/ keeps weights, config and card.

Training exports every few minutes, so a usable model is always there, and ends with the model card.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from card import write_card
from corpus import END_OF_TEXT, SPECIAL_TOKENS, documents
from export import export
from model import CONTEXT, SIZES, VOCABULARY, Llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

TOKENS_PER_STEP = 8192
SHORT, LONG_FROM = 512, 0.85  # rows of 512 tokens, and of the whole context for the last 15 % of the run
BOOK_SHARE = 0.45  # share of the tokens; the rest is generated
HELD_OUT_SEED = 1_000_003
SAVE_SECONDS, LOG_SECONDS = 300, 30
Ids = np.ndarray[tuple[int], np.dtype[np.uint16]]

# ---------------------------------------------------------------- the text


def read_books(folder: Path) -> tuple[list[str], list[str]]:
    """Return the books, and held-out pieces of about 4000 characters: every 64th of all books, at paragraph ends."""
    kept: list[str] = []
    held: list[str] = []
    number = 0
    for path in sorted(folder.glob("*.txt")):
        pieces: list[str] = [""]
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            pieces[-1] += paragraph.strip("\n") + "\n\n"
            if len(pieces[-1]) > 4000:
                pieces.append("")
        kept.append("")
        for piece in pieces:
            number += 1
            if number % 64 == 0:
                held.append(piece)
            else:
                kept[-1] += piece
    if not kept:
        raise SystemExit(f"no .txt files in {folder}")
    return kept, held


def train_tokenizer(books: list[str], seed: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*books, *islice(documents(seed), 20_000)], trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> Ids:
    """Return one array of ids, with <|endoftext|> after each text."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return np.concatenate([np.array([*encoding.ids, end], np.uint16) for encoding in encodings])


class Rows:
    """Rows of training: books from random places, generated text in order, so rows begin both within and at texts."""

    def __init__(self, tokenizer: Tokenizer, books: Ids, seed: int) -> None:
        self.random = Random(seed)
        self.tokenizer = tokenizer
        self.books = books
        newline = books[: -CONTEXT - 1] == tokenizer.token_to_id("Ċ")
        self.paragraphs = np.flatnonzero(newline[1:] & newline[:-1]) + 2
        self.generated = self.encoded_documents(seed)

    def encoded_documents(self, seed: int) -> Iterator[Ids]:
        source = documents(seed)
        while True:
            for text in list(islice(source, 500)):
                yield encode(self.tokenizer, [text])

    def book_row(self, length: int) -> Ids:
        if self.random.random() < 0.5:
            start = int(self.paragraphs[self.random.randrange(len(self.paragraphs))])
        else:
            start = self.random.randrange(len(self.books) - length)
        return self.books[start : start + length]

    def generated_row(self, length: int) -> Ids:
        parts: list[Ids] = []
        while (missing := length - sum(map(len, parts))) > 0:
            parts.append(next(self.generated)[:missing] if parts or self.random.random() < 0.5 else self.middle())
        return np.concatenate(parts)[:length]

    def middle(self) -> Ids:
        document = next(self.generated)
        return document[self.random.randrange(len(document)) :]

    def batch(self, count: int, length: int) -> Tensor:
        rows = [
            self.book_row(length) if self.random.random() < BOOK_SHARE else self.generated_row(length)
            for _ in range(count)
        ]
        return torch.from_numpy(np.stack([row[:length] for row in rows]).astype(np.int64))


# ---------------------------------------------------------------- training


def optimizers(model: Llama) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices, and AdamW for the embedding and the norms."""
    matrices = [weight for weight in model.layers.parameters() if weight.dim() == 2]
    others = [weight for weight in model.parameters() if not any(weight is matrix for matrix in matrices)]
    muon = torch.optim.Muon(matrices, lr=4e-3, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return [muon, adam]


def rate(progress: float, step: int) -> float:
    """Return the learning rate: warm up for 100 steps, stay, then fall linearly to zero over the last 55 %."""
    return min(1.0, (step + 1) / 100, max(0.0, (1.0 - progress) / 0.55))


@torch.no_grad()
def held_out_loss(model: Llama, ids: Ids, *, max_rows: int) -> float:
    rows = torch.from_numpy(ids[: len(ids) // SHORT * SHORT].astype(np.int64)).view(-1, SHORT)[:max_rows]
    with torch.autocast("cpu", torch.bfloat16):
        return float(sum(model(row[None]).item() for row in rows) / len(rows))


class Run:
    """Training run. Its clock is processor time, so a run that was stopped for a while loses nothing."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.args, self.shape = args, SIZES[args.size]
        self.step, self.tokens, self.seconds_before = 0, 0, 0.0
        self.started, self.cpu_started = time.time(), time.process_time()
        self.model = Llama(self.shape)
        self.optimizers = optimizers(self.model)
        self.checkpoint = Path(args.checkpoint) / f"{args.size}.pt"
        saved: dict[str, Any] = torch.load(self.checkpoint) if args.resume or args.finalize else {}
        books, held = read_books(args.corpus)
        self.tokenizer = self.load_tokenizer(saved, books)
        if saved:
            self.restore(saved)
        self.rows = Rows(self.tokenizer, encode(self.tokenizer, books), args.seed + self.step)
        self.held = {"books": encode(self.tokenizer, held),
                     "generated": encode(self.tokenizer, list(islice(documents(HELD_OUT_SEED), 2000)))}  # fmt: skip

    def load_tokenizer(self, saved: dict[str, Any], books: list[str]) -> Tokenizer:
        if saved:
            return Tokenizer.from_str(saved["tokenizer"])
        if self.args.tokenizer:
            return Tokenizer.from_file(self.args.tokenizer)
        return train_tokenizer(books, self.args.seed)

    def restore(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.step, self.tokens, self.seconds_before = saved["step"], saved["tokens"], saved["seconds"]

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(), "optimizers": [o.state_dict() for o in self.optimizers],
            "tokenizer": self.tokenizer.to_str(), "step": self.step, "tokens": self.tokens, "seconds": self.seconds,
        }  # fmt: skip
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        part = self.checkpoint.with_suffix(".part")
        torch.save(state, part)
        part.replace(self.checkpoint)
        export(self.args.out, self.model, self.tokenizer, self.shape)

    @property
    def seconds(self) -> float:
        return self.seconds_before + (time.process_time() - self.cpu_started) / float(self.args.threads)

    @property
    def progress(self) -> float:
        if self.args.steps:
            return float(self.step / self.args.steps)
        spent = self.seconds / (60 * self.args.minutes)
        if self.args.deadline:
            spent = max(spent, (time.time() - self.started) / (self.args.deadline - self.started))
        return float(spent)

    def train_step(self, compiled: Any) -> float:
        length = CONTEXT if self.progress >= LONG_FROM else SHORT
        per_pass = max(1, 1024 // length)  # 1024 tokens keep the logits in the cache
        passes, total = TOKENS_PER_STEP // (per_pass * length), 0.0
        for _ in range(passes):
            with torch.autocast("cpu", torch.bfloat16):
                loss = compiled(self.rows.batch(per_pass, length + 1)) / passes
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate(self.progress, self.step)
            optimizer.step()
            optimizer.zero_grad()
        self.step, self.tokens = self.step + 1, self.tokens + passes * per_pass * length
        return total

    def __str__(self) -> str:
        speed = self.tokens / max(self.seconds, 1.0)
        return (
            f"step {self.step} tokens {self.tokens / 1e6:.2f}M cpu {self.seconds:.0f}s {speed:.0f} tok/s "
            f"progress {self.progress:.3f}"
        )

    def train(self) -> None:
        compiled = torch.compile(self.model) if self.args.compile else self.model
        logged = saved = time.time()
        losses: list[float] = []
        while self.progress < 1:
            losses.append(self.train_step(compiled))
            if time.time() - logged > LOG_SECONDS:
                print(f"{self} loss {sum(losses) / len(losses):.3f}", flush=True)
                losses, logged = [], time.time()
            if time.time() - saved > SAVE_SECONDS:
                self.save()
                print("held out:", self.evaluate(max_rows=24), flush=True)
                saved = time.time()
        self.save()

    def evaluate(self, *, max_rows: int = 1000) -> dict[str, float]:
        return {name: round(held_out_loss(self.model, ids, max_rows=max_rows), 3) for name, ids in self.held.items()}

    def finish(self) -> None:
        facts = {
            "size": self.args.size, "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "seed": self.args.seed, "steps": self.step, "tokens": self.tokens, "minutes": self.seconds / 60,
            "threads": self.args.threads, "held_out": self.evaluate(max_rows=200), "book_share": BOOK_SHARE,
        }  # fmt: skip
        write_card(self.args.out, self.args.corpus, facts)


def utc_today(text: str) -> float:
    """Return the next HH:MM in UTC as a timestamp."""
    now = datetime.now(UTC)
    hour, minute = (int(part) for part in text.split(":"))
    then = now.replace(hour=hour, minute=minute, second=0)
    return (then if then > now else then + timedelta(days=1)).timestamp()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="folder of .txt files, with a MANIFEST.tsv for the card")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[3] / "engine/demo_model")
    parser.add_argument("--size", choices=SIZES, default="demo")
    parser.add_argument("--minutes", type=float, default=95.0, help="processor time per thread")
    parser.add_argument("--steps", type=int, default=0, help="instead of --minutes")
    parser.add_argument("--deadline", type=utc_today, help="HH:MM UTC by which training has ended")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", help="tokenizer.json to use again, e.g. for --size draft")
    parser.add_argument("--checkpoint", default=os.path.join(tempfile.gettempdir(), "demo_ckpt"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--finalize", action="store_true", help="only export and write the card, from the checkpoint")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    run = Run(args)
    if args.finalize:
        export(args.out, run.model, run.tokenizer, run.shape)
    else:
        run.save()
        run.train()
    run.finish()


if __name__ == "__main__":
    main()
