"""WordSplit: how byte-level BPE cuts a text into words, by the name in `tokenizer.ggml.pre`. A table of facts.

Names: llama.cpp's of 2026-11 (src/llama-vocab.cpp). Patterns: the models' own in tokenizer.json, which llama.cpp
writes without classes that its own matcher lacks. Patterns are tried one after the other, each within the words that
the patterns before it made.
"""

from dataclasses import dataclass, replace

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_ENGLISH}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}"
_QWEN2 = rf"{_ENGLISH}|{_WORD}|\p{{N}}|{_MARKS}"
_QWEN35 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased(ending: str, *, without: str = "") -> str:
    """Return the pattern of words that change from upper to lower case, with an ending."""
    upper, lower = f"[{_UPPER}{without}]", f"[{_LOWER}{without}]"
    return rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{ending}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{ending}"


_SLASHED = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_TEKKEN = rf"{_cased('')}|\p{{N}}|{_SLASHED}"
_GPT4O = rf"{_cased(_ENGLISH + '?')}|\p{{N}}{{1,3}}|{_SLASHED}"
_NOT_HAN = r"&&[^\p{Han}]"
_KIMI = rf"\p{{Han}}+|{_cased(_ENGLISH + '?', without=_NOT_HAN)}|\p{{N}}{{1,3}}|{_MARKS}"
_BAILING = rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SPACED = r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"
_EXAONE = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?{_SPACED}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
_CHAMELEON = ("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", GPT2)
_ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK_WORD = rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_DEEPSEEK3 = rf"{_DEEPSEEK_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_SPARK = rf"{_DEEPSEEK_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+"
# Letters with upper and lower case, of the Unicode version that DeepSeek's first models were made with.
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7d"
    "ᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇ"
    "Ꞌ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_EAST = "[一-龥ࠀ-一가-\ud7ff]+"
_WIDE_MARKS = r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"
_DEEPSEEK_LLM = (r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+", _WIDE_MARKS, r"\s+$", _EAST, r"\p{N}+")
_ASIAN = "[一-鿿㐀-䶿\uf900-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+"
_YOUTU_EAST = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_THREES_FROM_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_POWERS_OF_TWO = "|".join(rf"\s{{{num}}}(?!\S)" for num in (512, 256, 128, 64, 32, 16, 8, 4))
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True, slots=True)
class WordSplit:
    """Patterns of a name, and what its tokenizers do beside them."""

    patterns: tuple[str, ...] = ()
    keeps_words: bool = False  # a word that is a token is not cut further
    adds_bos: bool = False  # if the file says nothing
    composes: bool = False  # Unicode's NFC, as the model's own tokenizer does and llama.cpp does not
    is_byte_level: bool = True  # False: SentencePiece's ▁ for spaces, and tokens for bytes


_DIGITS_FIRST = WordSplit((r"\p{N}", GPT2))
_LLAMA = WordSplit((_LLAMA3,), keeps_words=True, adds_bos=True)
_QWEN = WordSplit((_QWEN2,))
_LINES = WordSplit((r"[^\n]+|\n+",), is_byte_level=False)
_ROWS: tuple[tuple[str, WordSplit], ...] = (
    ("default", WordSplit((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
    (
        "gpt-2 a.x-4.0 exaone4 gigachat granite-docling jais jina-de jina-es jina-v1-en jina-v2-code jina-v2-de "
        "jina-v2-es mellum modern-bert phi-2 roberta-bpe trillion",
        WordSplit((GPT2,)),
    ),
    ("mpt olmo", WordSplit((GPT2,), composes=True)),  # GPT-NeoX's tokenizer
    ("starcoder codeshell exaone mellum2 minerva-7b refact smollm", _DIGITS_FIRST),
    ("command-r cohere2_moe", replace(_DIGITS_FIRST, composes=True)),
    ("dbrx smaug-bpe glm4 glm5 chatglm-bpe", WordSplit((_LLAMA3,))),
    ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 jina-v5-nano lfm2 midm-2.0 pixtral", _LLAMA),
    ("minicpm5", WordSplit((r"\p{N}{1,3}", _LLAMA3), keeps_words=True)),
    ("jais-2", WordSplit((_LLAMA3.replace(r"\s+(?!\S)|\s+", rf"{_POWERS_OF_TWO}|\s{{1,2}}(?!\S)|\s"),))),
    ("qwen2", replace(_QWEN, composes=True)),
    ("deepseek-r1-qwen f2llmv2 grok-2 hunyuan kormo megrez openpangu solar-open stablelm2", _QWEN),
    ("qwen35", WordSplit((_QWEN35,), composes=True)),
    ("laguna", WordSplit((r"[^\n]+|\n+", _QWEN2))),
    ("ufakzeka", WordSplit((_QWEN2.removeprefix(f"{_ENGLISH}|"),))),
    ("seed-coder", WordSplit((rf"{_ENGLISH}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",))),
    ("bailingmoe bailingmoe2 llada-moe", WordSplit((_BAILING,))),
    ("exaone-moe", WordSplit((_EXAONE,))),
    ("tekken", WordSplit((_TEKKEN,), keeps_words=True, adds_bos=True)),
    ("gpt-4o kanana2 llama4 minimax-m2 talkie", WordSplit((_GPT4O,))),
    ("granite-embed-multi-97m", WordSplit((_GPT4O,), keeps_words=True)),
    ("tiny_aya cohere2moe", WordSplit((_THREES_FROM_RIGHT, _GPT4O))),
    ("youtu", WordSplit((_YOUTU_EAST, _GPT4O.replace(r"\p{N}{1,3}", r"\p{N}")), keeps_words=True)),
    ("kimi-k2 kimi-k25", WordSplit((_KIMI,))),
    ("deepseek-llm", WordSplit(_DEEPSEEK_LLM)),
    ("deepseek-coder", WordSplit((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST, r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", WordSplit((r"\p{N}{1,3}", _CJK, _DEEPSEEK3))),
    ("spark2_5", WordSplit((r"\p{N}{1,3}", _CJK, _SPARK, r"\p{N}"))),
    ("afmoe", WordSplit((_THREES_FROM_RIGHT, _ASIAN, _DEEPSEEK3))),
    ("falcon", WordSplit((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"))),
    ("bloom gpt3-finnish poro-chat", WordSplit((_BLOOM,))),
    ("viking", WordSplit((_BLOOM, r"\p{N}"))),
    ("superbpe", WordSplit((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
    ("chameleon", WordSplit(_CHAMELEON, adds_bos=True)),
    ("gemma4 granite-embed-multi-311m", replace(_LINES, adds_bos=True)),
    ("sarvam-moe", _LINES),
)
WORD_SPLITS = {name: split for names, split in _ROWS for name in names.split()}
