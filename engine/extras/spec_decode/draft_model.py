"""DraftModel: a smaller model drafts (Leviathan et al. 2023; Chen et al. 2023). Its vocabulary must be the target's.

The draft model's keys and values are in its own blocks of the same numbers, so the target's block tables serve both.
The two caches are not synchronised: before each draft the draft model computes the tokens it has not seen: a prompt
once, then the verified tokens. It samples with the target's own parameters and noise, which makes agreement likeliest
(see acceptance.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from operator import eq
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ...config import EngineConfig
from ...core.batch import BatchRow
from ...core.request import Request
from ...errors import ConfigError
from ...execution.models.forward_inputs import Inputs, with_plans
from ...execution.models.kv_cache import KVCache
from ...execution.models.registry import model_class, read_model_config
from ...execution.runner.batch_arrays import lay_out
from ...execution.runner.model_runner import LoadedModel
from ...execution.runner.transfer import DirectTransfer
from ...execution.sampling.sampled import NOT_FINITE_TOKEN, SampleIndex
from ...execution.sampling.sampler import Sampler, sample_indices
from ...formats.weights import weight_source

# Limit of tokens read in one step, over all requests: reading delays the step's own tokens.
_MAX_READ = 256


@dataclass(slots=True)
class _Read:
    """Progress in reading a request: [0, num_tokens) known tokens | then its own drafts, right or wrong."""

    num_preemptions: int
    num_tokens: int = 0
    drafts: list[int] = field(default_factory=list)
    num_marked_blocks: int = 0


class DraftModel:
    """Drafter with a model, which loads on construction; raises ConfigError. For the step's thread."""

    confidence = None

    def __init__(self, config: EngineConfig, folder: Path, target: LoadedModel) -> None:
        """Load the model, with the target's sizes, dtype and device."""
        model_config = read_model_config(folder)
        if model_config.is_recurrent:
            raise ConfigError(f"{model_config.architecture} as a draft model is not built: it has recurrent layers")
        build = model_class(model_config.architecture, impl=model_config.impl)
        dtype, device = target.dtype, target.device
        self._max_len = min(target.max_model_len, model_config.max_position_embeddings)
        with weight_source(
            folder,
            load_format=config.load_format,
            dtype=dtype,
            seed=config.seed,
            device=device,
            quantization=model_config.quantization,
            is_text_part=bool(model_config.hf_config.get("is_text_part")),
        ) as source:
            self._model = build(model_config, source, device=device, max_model_len=self._max_len, dtype=dtype)
        self._cache = KVCache(
            model_config, num_blocks=target.cache.num_blocks, block_size=config.block_size, dtype=dtype, device=device
        )
        self._planner = self._cache.decode_planner(model_config.sliding_windows, dtype)
        self._transfer = DirectTransfer(device)
        self._sampler = Sampler(device)
        self._vocab_size = target.model_config.vocab_size
        self._own_vocab_size = model_config.vocab_size
        self._reads: dict[Request, _Read] = {}
        self._content: dict[int, bytes] = {}  # block → hash of the full block whose keys and values it holds

    @torch.inference_mode()
    def draft(self, wanted: Mapping[Request, int]) -> dict[Request, list[int]]:
        """Like Drafter.draft: one pass over the unread tokens, then one pass per further token, for all requests."""
        rows = self._unread_rows(wanted)
        drafts: dict[Request, list[int]] = {row.request: [] for row in rows if row.needs_sampling}
        self._extend(drafts, rows)
        for row in rows:
            self._mark_read(row)
        for length in range(1, max(wanted.values(), default=0)):
            rows = [
                BatchRow(request, request.num_tokens + length - 1, 1, needs_sampling=True, draft_token_ids=(draft[-1],))
                for request, draft in drafts.items()
                if len(draft) == length < wanted[request] and request.num_tokens + length <= self._max_len
            ]
            if not rows:
                break
            self._extend(drafts, rows)
            for row in rows:
                self._reads[row.request].drafts += row.draft_token_ids
        return drafts

    def _unread_rows(self, wanted: Mapping[Request, int]) -> list[BatchRow]:
        """Return a row per request to read, up to the limit of tokens; requests with few unread tokens come first."""
        rows, tokens_left = [], _MAX_READ
        for request in sorted(wanted, key=self.num_unread_tokens):
            start = self._num_read(request)
            num_unread = request.num_tokens - start
            num_tokens = num_unread if num_unread == 1 else min(num_unread, tokens_left)
            if num_tokens and wanted[request] and request.num_tokens <= self._max_len:
                rows.append(BatchRow(request, start, num_tokens, needs_sampling=num_tokens == num_unread))
                tokens_left -= num_tokens if num_unread > 1 else 0
        rows.sort(key=lambda row: row.num_tokens > 1)
        return rows

    def _extend(self, drafts: dict[Request, list[int]], rows: list[BatchRow]) -> None:
        """Compute the rows, and append the next token to the drafts of the rows that sample."""
        if not rows:
            return
        arrays, bounds = lay_out(rows, block_size=self._cache.block_size)
        fields, _ = self._transfer.send(with_plans(arrays, self._planner, is_fixed=False) or arrays, {})
        inputs = Inputs.of(fields, bounds)
        if self._own_vocab_size < self._vocab_size:
            inputs = inputs._replace(token_ids=inputs.token_ids.clamp(max=self._own_vocab_size - 1))
        sampling = [row.request for row in rows if row.needs_sampling]
        hidden = self._model.forward(inputs, self._cache)[: len(sampling)]
        logits = self._fit_to_target_vocab(self._model.logits(hidden))
        indices = [SampleIndex(request, tuple(drafts[request])) for request in sampling]
        for request, token_id in zip(sampling, sample_indices(logits, indices, self._sampler), strict=True):
            if token_id != NOT_FINITE_TOKEN:
                drafts[request].append(token_id)

    def _fit_to_target_vocab(self, logits: Tensor) -> Tensor:
        missing = self._vocab_size - logits.shape[1]
        if missing > 0:
            return F.pad(logits, (0, missing), value=float("-inf"))
        return logits[:, : self._vocab_size].contiguous() if missing else logits

    def num_unread_tokens(self, request: Request) -> int:
        """Like Drafter.num_unread_tokens. The last token, which is always read, does not count."""
        return request.num_tokens - self._num_read(request) - 1

    def _num_read(self, request: Request) -> int:
        """Return the number of tokens in the draft model's cache, without the last, which is read to sample from."""
        read = self._reads.get(request)
        if read is None or read.num_preemptions != request.num_preemptions:
            return min(self._num_shared_tokens(request), request.num_tokens - 1)
        after = request.token_ids[read.num_tokens : read.num_tokens + len(read.drafts)]
        return min(read.num_tokens + _num_equal(read.drafts, after), request.num_tokens - 1)

    def _num_shared_tokens(self, request: Request) -> int:
        """Return the number of tokens in shared blocks that were read for another request."""
        return _num_equal(map(self._content.get, request.block_table), request.block_hashes) * self._cache.block_size

    def _mark_read(self, row: BatchRow) -> None:
        """Note that a request was read up to a row's end: earlier blocks hold its tokens, later ones may get drafts."""
        request, end = row.request, row.end
        read = self._reads.get(request)
        if read is None or read.num_preemptions != request.num_preemptions:
            read = self._reads[request] = _Read(request.num_preemptions)
        read.num_tokens, read.drafts = end, []
        num_full = min(end // self._cache.block_size, len(request.block_hashes))
        for index in range(read.num_marked_blocks, num_full):
            self._content[request.block_table[index]] = request.block_hashes[index]
        read.num_marked_blocks = num_full
        for block in request.block_table[num_full:]:
            self._content.pop(block, None)

    def forget(self, request: Request) -> None:
        """Drop the state of a request that has ended."""
        self._reads.pop(request, None)


def _num_equal(first: Iterable[object], second: Iterable[object]) -> int:
    """Return the length of the common prefix of both."""
    return sum(takewhile(bool, map(eq, first, second)))
