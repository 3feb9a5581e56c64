"""Divergence: the distributions of two forms of a model over the next token of texts, compared position by position."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....kernels.ops import RaggedBatch, StateBatch
from ...config import EngineConfig
from ...errors import ConfigError
from ...execution.models.forward_inputs import Inputs
from ...execution.models.resolved_model import resolve
from ...execution.runner.model_runner import ModelRunner
from ...formats.checkpoint import model_folder
from ...language.text.tokenizer import Tokenizer
from ...serving.loading import load_runner

BLOCK_SIZE = 16
_CHUNK = 64  # tokens of a pass: the logits of a vocabulary of 256k take 64 MB
# The file's weights as they are, and everything else in float32.
_REFERENCE = {"dtype": "float32", "quantization_activations": "none", "kv_cache_dtype": "auto"}


class Figures(NamedTuple):
    """Figures of one text. Divergence: Kullback and Leibler's, in nats, of the model's next token from the reference's.

    `equal_tokens`: share of positions at which both find the same token the likeliest.
    """

    num_tokens: int
    divergence: float
    divergence_p99: float
    equal_tokens: float
    perplexity: float
    reference_perplexity: float


def compare(
    model: str,
    texts: Mapping[str, str],
    *,
    reference: str,
    num_tokens: int,
    num_threads: int,
    settings: Mapping[str, Any],
) -> dict[str, Figures]:
    """Return the figures by name of a text, and of "all". Runs on the CPU. Raises ConfigError."""
    tokenizer = Tokenizer(model_folder(EngineConfig(model=reference), reference))
    ids = {name: tokenizer.encode(text)[:num_tokens] for name, text in texts.items()}
    if short := [name for name, tokens in ids.items() if len(tokens) < 3]:
        raise ConfigError(f"{short[0]}: a text of at least three tokens")
    longest = max(map(len, ids.values()))
    ours = new_runner(model, num_threads=num_threads, longest=longest, **settings)
    theirs = new_runner(reference, num_threads=num_threads, longest=longest, **_REFERENCE)
    columns = {name: _columns(ours, theirs, tokens) for name, tokens in ids.items()}
    columns["all"] = torch.cat([*columns.values()], dim=1)
    return {name: _figures(column) for name, column in columns.items()}


def new_runner(name: str, *, longest: int, **settings: Any) -> ModelRunner:
    """Load a model on the CPU, with a cache for one sequence of `longest` tokens. Raises ConfigError."""
    folder = model_folder(EngineConfig(model=name), name)
    blocks: dict[str, Any] = {
        "num_kv_blocks": -(-longest // BLOCK_SIZE),
        "block_size": BLOCK_SIZE,
        "max_model_len": longest,
    }
    config = EngineConfig(**{**settings, "model": name, "device": "cpu", **blocks})
    return load_runner(resolve(config, folder))


def _columns(runner: ModelRunner, reference: ModelRunner, token_ids: list[int]) -> Tensor:
    """Return four rows of a column for each position: divergence, equal, and the two log-likelihoods of its token.

    The first position is left out: without a context Qwen2.5-Coder-1.5B diverges by 0.6 there, by 0.0006 after it.
    """
    columns, start, num_tokens = [], 0, len(token_ids)
    chunks = [min(_CHUNK, num_tokens - begin) for begin in range(0, num_tokens, _CHUNK)]
    both = (all_logits(one, token_ids, chunks=chunks) for one in (runner, reference))
    for ours, theirs in zip(*both, strict=True):
        ours, theirs = (logits[: num_tokens - 1 - start].double().log_softmax(1) for logits in (ours, theirs))
        start += len(ours)
        following = torch.tensor(token_ids[start - len(ours) + 1 : start + 1])[:, None]
        divergence = (theirs.exp() * (theirs - ours)).sum(1).clamp(min=0)
        equal = (ours.argmax(1) == theirs.argmax(1)).double()
        columns.append(torch.stack([divergence, equal, *(logs.gather(1, following)[:, 0] for logs in (ours, theirs))]))
    return torch.cat(columns, dim=1)[:, 1:]


def _figures(columns: Tensor) -> Figures:
    divergence, equal, ours, theirs = columns
    return Figures(
        num_tokens=len(divergence),
        divergence=divergence.mean().item(),
        divergence_p99=divergence.quantile(0.99).item(),
        equal_tokens=equal.mean().item(),
        perplexity=math.exp(-ours.mean().item()),
        reference_perplexity=math.exp(-theirs.mean().item()),
    )


@torch.inference_mode()
def all_logits(runner: ModelRunner, token_ids: list[int], *, chunks: Iterable[int]) -> Iterator[Tensor]:
    """Yield the logits [chunk, vocab_size] of a sequence, pass by pass, as float32.

    The runner's cache must hold the sequence; what is in it is lost.
    """
    start = 0
    for number, length in enumerate(chunks):
        inputs = _inputs(runner, token_ids, range(start, start + length), torch.arange(length), number=number)
        yield runner.model.logits(runner.model.forward(inputs, runner.cache)).float()
        start += length


def _inputs(runner: ModelRunner, token_ids: list[int], chunk: range, rows: Tensor, *, number: int) -> Inputs:
    """Return the inputs of a sequence's pass of this number, with logits of these rows."""
    positions, length = torch.arange(chunk.start, chunk.stop), len(chunk)
    ragged = RaggedBatch(
        query_start_loc=torch.tensor([0, length], dtype=torch.int32),
        seq_lens=torch.tensor([chunk.stop], dtype=torch.int32),
        block_tables=torch.arange(-(-len(token_ids) // BLOCK_SIZE), dtype=torch.int32)[None],
        num_decodes=int(length == 1),
        max_query_len=length,
        max_seq_len=chunk.stop,
    )
    states = None if runner.loaded.states is None else turn_about(number)
    return Inputs(torch.tensor(token_ids[chunk.start : chunk.stop]), positions, positions, ragged, rows, states)


def turn_about(number: int) -> StateBatch:
    """Return the slots of a sequence's pass of this number: two slots, read and written by turns."""
    fields: tuple[list[int], ...] = ([number % 2 if number else -1], [(number + 1) % 2], [0], [0], [0, 0], [], [])
    return StateBatch(*(torch.tensor(field, dtype=torch.int32) for field in fields))


def first_layer(
    names: Sequence[str], settings: Sequence[Mapping[str, Any]], token_ids: list[int], *, tolerance: float
) -> dict[str, Any]:
    """Return the first layer behind which the last token's stream differs by more than `tolerance` of its length.

    Runs on the CPU. Raises ConfigError.
    """
    ours, theirs = (_streams(name, own, token_ids) for name, own in zip(names, settings, strict=True))
    if len(ours) != len(theirs):
        return {"number": None, "text": f"the models have {len(ours)} and {len(theirs)} layers"}
    differences = [float((x - y).norm() / x.norm().clamp_min(1e-30)) for x, y in zip(ours, theirs, strict=True)]
    number = next((number for number, one in enumerate(differences) if one > tolerance), None)
    known = {"number": number, "num_layers": len(ours), "differences": differences}
    if number is None:
        return {**known, "text": f"no layer's output differs by more than {tolerance:.1%}; {max(differences):.2%} most"}
    text = f"layer {number} of {len(ours)} is the first whose output differs by more than {tolerance:.1%}"
    return {**known, "text": f"{text}: by {differences[number]:.1%}"}


@torch.inference_mode()
def _streams(name: str, settings: Mapping[str, Any], token_ids: list[int]) -> list[Tensor]:
    runner = new_runner(name, longest=len(token_ids), **settings)
    inputs = _inputs(runner, token_ids, range(len(token_ids)), torch.tensor([len(token_ids) - 1]), number=0)
    streams: list[Tensor] = runner.model.streams(inputs, runner.cache)
    runner.close()
    return streams
