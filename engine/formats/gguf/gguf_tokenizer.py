"""Tokenizer built from a GGUF file's metadata, without the model's folder.

Kinds: byte-level BPE ("gpt2"), which splits words by a named pattern (word_splits.py), SentencePiece's BPE, which
lists scores ("llama") or merges ("gemma4"), its unigrams ("t5"), and BERT's word pieces ("bert"). llama.cpp's reader
of all: src/llama-vocab.cpp of https://github.com/ggml-org/llama.cpp.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer

from ...errors import ConfigError
from ..folder_tokenizer import TokenizerParts
from .file import GgufFile, Strings, read_gguf
from .token_types import CONTROL, NORMAL, USER_DEFINED, token_types
from .word_splits import GPT2, WORD_SPLITS, WordSplit

_PREFIX = "tokenizer.ggml."
_SPECIAL_IDS = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    "cls": "cls_token",
    "seperator": "sep_token",  # the key is spelled so
    "mask": "mask_token",
}
# Ids of a kind's special tokens in files that do not name them.
_DEFAULT_IDS = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "bert": {"cls": 101, "unknown": 100, "seperator": 102, "padding": 0, "mask": 103},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
}
_EXTRA = Regex("^ +| +$|(?<= ) +")  # SentencePiece's extra spaces: at the ends, and beside another
_WAY_OUT = "give the tokenizer of the model's own folder: --tokenizer FOLDER"


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """Vocabulary of a file: its tokens, their types, and the tokenizer's metadata."""

    architecture: str
    keys: Mapping[str, Any]  # tokenizer's metadata, without the prefix
    tokens: list[str]
    types: Sequence[int]

    @classmethod
    def of(cls, file: GgufFile) -> "_Vocabulary":
        keys = {key.removeprefix(_PREFIX): value for key, value in file.metadata.items() if key.startswith(_PREFIX)}
        tokens, embedding = list(_strings(keys, "tokens")), file.tensors.get("token_embd.weight")
        if embedding is not None and len(tokens) > embedding.shape[0]:
            raise ConfigError(f"there are more than the embeddings' tokens: {len(tokens)}; fetch the file again")
        types = token_types(tokens, keys.get("token_type"))
        return cls(str(file.metadata.get("general.architecture")), keys, tokens, types)

    @property
    def split(self) -> WordSplit:
        """Way to split words. Raises ConfigError for an unknown name, whose text would be split wrongly."""
        name = self.keys.get("pre") or "default"
        if not isinstance(name, str) or name not in WORD_SPLITS:
            raise ConfigError(
                f"{_PREFIX}pre {name!r} is not known; {_WAY_OUT}; known: {', '.join(sorted(WORD_SPLITS))}"
            )
        return WORD_SPLITS[name]

    @property
    def special_tokens(self) -> dict[str, str]:
        """Special tokens by transformers' names."""
        default = _DEFAULT_IDS.get(self.keys["model"], {})
        ids = {
            name: self.keys.get(f"{kind}_token_id", default.get(kind, len(self.tokens)))
            for kind, name in _SPECIAL_IDS.items()
        }
        named = {f"{kind}_token_id" for kind in _SPECIAL_IDS}
        if wrong := [key for key in named if self.keys.get(key, 0) >= len(self.tokens)]:
            raise ConfigError(f"{_PREFIX}{wrong[0]} is beyond the {len(self.tokens)} tokens; fetch the file again")
        return {name: self.tokens[token_id] for name, token_id in ids.items() if token_id < len(self.tokens)}


def gguf_tokenizer(path: str | Path) -> FastTokenizer:
    """Return the tokenizer of a GGUF file, with or without tensors. Raises ConfigError if it cannot be built."""
    return read_gguf_tokenizer(Path(path)).fast


def read_gguf_tokenizer(path: Path) -> TokenizerParts:
    """Build the tokenizer of a GGUF file. Raises ConfigError if it cannot be built."""
    file = read_gguf(path)
    kind = file.metadata.get(f"{_PREFIX}model")
    if not isinstance(kind, str) or kind not in _BUILDERS:
        raise ConfigError(
            f"{path}: a tokenizer of kind {kind!r} is not known; {_WAY_OUT}; known: {', '.join(_BUILDERS)}"
        )
    try:
        vocabulary = _Vocabulary.of(file)
        fast = _BUILDERS[kind](vocabulary)
        _add_tokens(fast, vocabulary)
        _add_ends(fast, vocabulary)
        return TokenizerParts(fast, vocabulary.special_tokens, _templates(file.metadata))
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    except Exception as exc:  # tokenizers raises plain Exception
        raise ConfigError(f"{path} holds no tokenizer that can be built ({exc}); fetch the file again") from exc


def _strings(keys: Mapping[str, Any], name: str) -> Strings:
    strings = keys.get(name)
    if not isinstance(strings, Strings):
        raise ConfigError(f"{_PREFIX}{name} is missing; fetch the file again")
    return strings


def _byte_level(vocabulary: _Vocabulary) -> FastTokenizer:
    split = vocabulary.split
    if not split.is_byte_level:
        return _sentencepiece(vocabulary)
    vocab = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=_listed_merges(vocabulary), ignore_merges=split.keeps_words))
    if split.composes:
        fast.normalizer = normalizers.NFC()
    ends_built_in = split.patterns[-1] == GPT2  # twice as fast as the same pattern from here
    patterns = split.patterns[: len(split.patterns) - ends_built_in]
    splits: list[Any] = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=ends_built_in)
    fast.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_])
    fast.decoder = decoders.ByteLevel()
    return fast


def _word_pieces(vocabulary: _Vocabulary) -> FastTokenizer:
    """Build BERT's word pieces: vocab.txt has ## before all but a word's first piece, the file ▁ before the first."""
    tokens = [
        token
        if kind != NORMAL or re.fullmatch(r"\[.+\]", token)
        else token[1:]
        if token.startswith("▁")
        else f"##{token}"
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]
    lowers = bool(vocabulary.keys.get("normalizer.lowercase", True))
    vocabulary.tokens[:] = tokens
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    fast = FastTokenizer(models.WordPiece(vocab=vocab, unk_token=vocabulary.special_tokens["unk_token"]))
    fast.normalizer = normalizers.BertNormalizer(
        lowercase=lowers, strip_accents=bool(vocabulary.keys.get("normalizer.strip_accents", lowers))
    )
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return fast


def _unigrams(vocabulary: _Vocabulary) -> FastTokenizer:
    """Build SentencePiece's unigrams, with the file's table of normalization."""
    scores, unk = vocabulary.keys.get("scores", ()), vocabulary.special_tokens["unk_token"]
    pairs = list(zip(vocabulary.tokens, map(float, scores), strict=True))
    fast = FastTokenizer(models.Unigram(pairs, unk_id=vocabulary.tokens.index(unk)))
    table = vocabulary.keys.get("precompiled_charsmap")
    steps = [normalizers.Precompiled(bytes(table))] if table is not None and len(table) else []
    strips = [normalizers.Replace(_EXTRA, "")] if vocabulary.keys.get("remove_extra_whitespaces", True) else []
    fast.normalizer = normalizers.Sequence([*steps, *strips])
    scheme = "always" if vocabulary.keys.get("add_space_prefix", True) else "never"
    fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    fast.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return fast


def _sentencepiece(vocabulary: _Vocabulary) -> FastTokenizer:
    """Build SentencePiece's BPE, with spaces as ▁ and with merges that follow from the scores."""
    # Gemma's tokens of several spaces have spaces in the file, not ▁.
    tokens = ["▁" * len(token) if token and not token.strip(" ") else token for token in vocabulary.tokens]
    fast = FastTokenizer(
        models.BPE(
            vocab={token: token_id for token_id, token in enumerate(tokens)},
            merges=_listed_merges(vocabulary) if "merges" in vocabulary.keys else _merges(tokens, vocabulary),
            unk_token=vocabulary.special_tokens.get("unk_token") if vocabulary.keys["model"] == "llama" else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    if "▁" not in tokens:  # spaces are lost, and still part words
        fast.pre_tokenizer = pre_tokenizers.Split("▁", behavior="removed")
    has_prefix = vocabulary.keys.get("add_space_prefix", vocabulary.keys["model"] == "llama")
    prefix, strip = ([normalizers.Prepend("▁")], [decoders.Strip(" ", 1, 0)]) if has_prefix else ([], [])
    fast.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    fast.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return fast


def _listed_merges(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    parts = (merge.partition(" ") for merge in _strings(vocabulary.keys, "merges"))
    return [(left, right) for left, _, right in parts]


def _merges(tokens: Sequence[str], vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Return all merges of two tokens into one, the merged token of the highest score first.

    Gemma's scores carry no order, so its merges are in the order of ids.
    """
    scores = vocabulary.keys.get("scores", [])
    if len(scores) != len(tokens) or vocabulary.architecture.startswith("gemma"):
        scores = range(0, -len(tokens), -1)
    token_set = set(tokens)
    token_ids = (token_id for token_id, kind in enumerate(vocabulary.types) if kind in (NORMAL, USER_DEFINED))
    return [
        (token[:cut], token[cut:])
        for token in (tokens[token_id] for token_id in sorted(token_ids, key=lambda token_id: -scores[token_id]))
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in token_set and token[cut:] in token_set
    ]


_BUILDERS: dict[str, Callable[[_Vocabulary], FastTokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "gemma4": _sentencepiece,  # with merges of its own
    "t5": _unigrams,
    "bert": _word_pieces,
}


def _add_tokens(fast: FastTokenizer, vocabulary: _Vocabulary) -> None:
    """Match control tokens and user-defined tokens whole in a text. User-defined tokens count as plain text."""
    named = {*vocabulary.special_tokens.values()}
    texts: dict[int, list[str]] = {CONTROL: [], USER_DEFINED: []}
    for text, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if (kind in texts or text in named) and text and fast.token_to_id(text) is not None:
            texts[kind if kind in texts else CONTROL].append(text)
    fast.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in texts[CONTROL]])
    fast.add_tokens([AddedToken(text, normalized=False) for text in texts[USER_DEFINED]])


def _add_ends(fast: FastTokenizer, vocabulary: _Vocabulary) -> None:
    """Add the bos token before a text and the eos token after it, if the file or llama.cpp's default says so."""
    keys, special, kind = vocabulary.keys, vocabulary.special_tokens, vocabulary.keys["model"]
    first = special.get("bos_token") or special.get("cls_token")
    last = special.get("sep_token") if kind == "bert" else special.get("eos_token")
    begins = keys.get("add_bos_token", kind in ("llama", "bert") or (kind == "gpt2" and vocabulary.split.adds_bos))
    ends = keys.get("add_eos_token", kind in ("bert", "t5"))
    before, after = [first] if begins and first else [], [last] if ends and last else []
    if before or after:
        ids = [(text, fast.token_to_id(text)) for text in {*before, *after}]
        pair = [*before, "$A", *after, *(after if kind == "t5" else []), "$B:1", *(f"{text}:1" for text in after)]
        fast.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after], pair=pair if kind in ("bert", "t5") else None, special_tokens=ids
        )


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    templates = {"default": metadata.get("tokenizer.chat_template")} | {
        key.removeprefix("tokenizer.chat_template."): value
        for key, value in metadata.items()
        if key.startswith("tokenizer.chat_template.")
    }
    return {name: text for name, text in templates.items() if isinstance(text, str)}
