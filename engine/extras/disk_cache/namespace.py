"""Namespace: everything that decides the bytes of a block, beside its tokens: weights, arithmetic, layout, versions."""

import hashlib
import platform
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ...config import ResolvedConfig
from ...execution.runner.model_runner import LoadedModel
from ...extension import load_extra

# Instructions by which sums or products differ.
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8", "asimddp", "i8mm")


def namespace(config: ResolvedConfig, loaded: LoadedModel, *, path: Path, fingerprint: str, layout: str) -> bytes:
    """Return the namespace of a model from `path`. Reads its weights whole, unless their hash is remembered.

    `fingerprint`: the model's when its weights were loaded. Raises UnavailableError if the files have changed since.
    """
    identity = load_extra("receipts.identity", needed_for="--prefix-cache-dir").Identity
    # An engine as far as an Identity looks at it. Tokenizer and template decide the tokens, not a block's bytes.
    engine: Any = SimpleNamespace(
        tokenizer=None,
        config=replace(config, fingerprint=fingerprint),
        loaded=loaded,
        weights_version=0,
        weights_path=path,
    )
    versions = (torch.__version__, _release())
    lengths = (config.block_size, loaded.max_model_len, repr(config.rope_scaling), config.kv_cache_dtype)
    parts = (identity.of(engine).to_dict(), fingerprint, layout, lengths, versions, _instructions())
    return hashlib.sha256(repr(parts).encode()).digest()


def _release() -> str:
    try:
        return version("splitfuse")
    except PackageNotFoundError:  # run from its sources
        return ""


def _instructions() -> tuple[str, ...]:
    """Name the processor's kind and its instructions that matter."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    flags = next((set(line.split()) for line in lines if line.startswith(("flags", "Features"))), set())
    return (platform.machine(), *(name for name in _INSTRUCTIONS if name in flags))
