"""Tokenizer built from a GGUF file's metadata, without the model's folder.

Kinds: byte-level BPE ("gpt2"), which splits words by a named pattern, and SentencePiece's BPE, which lists scores
("llama") or merges ("gemma4"). llama.cpp's reader of both: src/llama-vocab.cpp of
https://github.com/ggml-org/llama.cpp.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer

from ...errors import ConfigError
from ..tokenizer_parts import TokenizerParts
from .config_fields import CONTROL
from .file import GgufFile, Strings, read_gguf

_NORMAL, _USER_DEFINED = 1, 4  # types of tokens
_PREFIX = "tokenizer.ggml."
_SPECIAL_IDS = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}{_REST}"
_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENGLISH}"
    rf"|\p{{N}}{{1,3}}{_REST}"
)
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"
# Name in `tokenizer.ggml.pre` -> the patterns that split a text into words, one after the other.
_SPLITS: dict[str, tuple[str, ...]] = {
    "default": (_PUNCTUATION, _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(("dbrx", "falcon3", "llama-bpe", "llama-v3", "llama3", "pixtral", "smaug-bpe"), (_LLAMA3,)),
    **dict.fromkeys(("chatglm-bpe", "glm4"), (_LLAMA3,)),
    **dict.fromkeys(("deepseek-r1-qwen", "hunyuan", "megrez", "qwen2", "stablelm2"), (_LLAMA3.replace("{1,3}", ""),)),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), (_GPT4O,)),
}
# Names for GPT-2's own pattern, which `tokenizers` has built in; True: each digit is split off first.
_BUILT_IN = {
    **dict.fromkeys(("exaone4", "gpt-2", "jais", "mpt", "olmo", "phi-2", "roberta-bpe", "trillion"), False),
    **dict.fromkeys(("codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder"), True),
}
# Names whose tokenizers keep a word that is a token whole, and add the bos token if the file does not forbid it.
_WHOLE_WORDS = {"falcon3", "llama-bpe", "llama-v3", "llama3", "pixtral", "tekken"}


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
        tokens, embedding = _strings(keys, "tokens"), file.tensors.get("token_embd.weight")
        if embedding is None or len(tokens) > embedding.shape[0]:
            raise ConfigError(f"there are more than the embeddings' tokens: {len(tokens)}; fetch the file again")
        types = keys.get("token_type", [_NORMAL] * len(tokens))
        if len(types) != len(tokens):
            raise ConfigError(f"{_PREFIX}token_type has {len(types)} entries for {len(tokens)} tokens")
        return cls(str(file.metadata.get("general.architecture")), keys, list(tokens), types)

    @property
    def special_tokens(self) -> dict[str, str]:
        """Special tokens by transformers' names."""
        ids = {name: self.keys.get(f"{kind}_token_id") for kind, name in _SPECIAL_IDS.items()}
        return {name: self.tokens[token_id] for name, token_id in ids.items() if token_id is not None}


def read_gguf_tokenizer(path: Path) -> TokenizerParts:
    """Build the tokenizer of a GGUF file. Raises ConfigError if it cannot be built."""
    file = read_gguf(path)
    kind = file.metadata.get(f"{_PREFIX}model")
    if not isinstance(kind, str) or kind not in _BUILDERS:
        raise ConfigError(f"{path}: a tokenizer of kind {kind!r} is not known; known: {', '.join(_BUILDERS)}")
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
    pre = vocabulary.keys.get("pre", "default")
    splits = _word_splits(pre)
    vocab = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    merges = _listed_merges(vocabulary)
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre in _WHOLE_WORDS))
    if pre == "qwen2":
        fast.normalizer = normalizers.NFC()
    fast.pre_tokenizer = pre_tokenizers.Sequence(splits)
    fast.decoder = decoders.ByteLevel()
    return fast


def _word_splits(pre: object) -> list[Any]:
    """Return the splitters for a name. Raises ConfigError for an unknown name, whose text would be split wrongly."""
    if isinstance(pre, str) and pre in _BUILT_IN:
        digits = [pre_tokenizers.Digits(individual_digits=True)] if _BUILT_IN[pre] else []
        return [*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if isinstance(pre, str) and pre in _SPLITS:
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in _SPLITS[pre]]
        return [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    raise ConfigError(f"{_PREFIX}pre {pre!r} is not known; known: {', '.join(sorted(_SPLITS | _BUILT_IN))}")


def _sentencepiece(vocabulary: _Vocabulary) -> FastTokenizer:
    """Build SentencePiece's BPE, with spaces as ▁ and with merges that follow from the scores."""
    # Gemma's tokens of several spaces have spaces in the file, not ▁.
    tokens = ["▁" * len(token) if token and not token.strip(" ") else token for token in vocabulary.tokens]
    unk = vocabulary.keys.get("unknown_token_id")
    fast = FastTokenizer(
        models.BPE(
            vocab={token: token_id for token_id, token in enumerate(tokens)},
            merges=_listed_merges(vocabulary) if "merges" in vocabulary.keys else _merges(tokens, vocabulary),
            unk_token=None if unk is None else tokens[unk],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    has_prefix = vocabulary.keys.get("add_space_prefix", True)
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
    token_ids = (token_id for token_id, kind in enumerate(vocabulary.types) if kind in (_NORMAL, _USER_DEFINED))
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
}


def _add_tokens(fast: FastTokenizer, vocabulary: _Vocabulary) -> None:
    """Match control tokens and user-defined tokens whole in a text. User-defined tokens count as plain text."""
    for kind, add in ((CONTROL, fast.add_special_tokens), (_USER_DEFINED, fast.add_tokens)):
        pairs = zip(vocabulary.tokens, vocabulary.types, strict=True)
        texts = [token for token, type_ in pairs if type_ == kind and token and fast.token_to_id(token) is not None]
        add([AddedToken(text, normalized=False, special=kind == CONTROL) for text in texts])


def _add_ends(fast: FastTokenizer, vocabulary: _Vocabulary) -> None:
    """Add the bos token before a text and the eos token after it, if the file or llama.cpp's default says so."""
    keys, special = vocabulary.keys, vocabulary.special_tokens
    begins = keys.get("add_bos_token", keys["model"] == "llama" or keys.get("pre") in _WHOLE_WORDS)
    first = [special["bos_token"]] if begins and "bos_token" in special else []
    last = [special["eos_token"]] if keys.get("add_eos_token", False) and "eos_token" in special else []
    if first or last:
        ids = [(text, fast.token_to_id(text)) for text in {*first, *last}]
        fast.post_processor = processors.TemplateProcessing(single=[*first, "$A", *last], special_tokens=ids)


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    templates = {"default": metadata.get("tokenizer.chat_template")} | {
        key.removeprefix("tokenizer.chat_template."): value
        for key, value in metadata.items()
        if key.startswith("tokenizer.chat_template.")
    }
    return {name: text for name, text in templates.items() if isinstance(text, str)}
