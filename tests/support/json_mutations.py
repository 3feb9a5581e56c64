"""Mutations of JSON files, and of the JSON header of safetensors files."""

import json
import random
from typing import Any

ODD: list[Any] = [
    *(None, 0, -1, 1, 3, 5, 2**31, 2**62, 2**63, 2**70, 1e308, 0.5, True, False, "", "4", "x" * 300, [], [[]], {}),
    *({"a": 1}, "re:(.+)+x", "re:[", ["re:.*"], "int", "float", "group", "tensor", "block", "channel", "gptq", "fp8"),
]
_TEXT_ONLY: list[Any] = [
    *(float("nan"), float("inf"), -0.0, 10**400, "\0", "\ud800", "\n\x1b[31m", "(a+)+b", "(?<=x", [None] * 3, [2**31]),
    *("{{ 0 }}", "{% for", "float8_e4m3fn", "é", "../../etc/passwd"),
]
_NEAR: list[Any] = [0, 1, 2, 255, 256, 270, 271, 272, 10**6, 2**31 - 1, 2**32 - 1]
# Parts of a tokenizer.json.
_SLOW = {"Regex": "(a+)+b"}
_PARTS: dict[str, list[Any]] = {
    "normalizer": [
        *({"type": kind} for kind in ("NFC", "NFKC", "Lowercase", "StripAccents", "Nmt", "Unknown")),
        *({"type": "Replace", "pattern": {"String": text}, "content": "x" * 99} for text in ("", "a", " ")),
        *({"type": "Replace", "pattern": _SLOW, "content": ""}, {"type": "Sequence", "normalizers": []}),
        *({"type": "Prepend", "prepend": "x" * 5000}, {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    ],
    "pre_tokenizer": [
        *({"type": kind} for kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts")),
        *({"type": "Split", "pattern": _SLOW, "behavior": "Isolated", "invert": False}, None),
        *({"type": "Digits", "individual_digits": True}, {"type": "Metaspace", "replacement": "", "split": True}),
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    ],
    "decoder": [
        *({"type": kind} for kind in ("ByteFallback", "Fuse", "ByteLevel", "Unknown")),
        *(None, {"type": "Sequence", "decoders": []}, {"type": "Strip", "content": " ", "start": 9, "stop": 9}),
        *({"type": "WordPiece", "prefix": "##", "cleanup": True}, {"type": "BPEDecoder", "suffix": "</w>"}),
        {"type": "Replace", "pattern": {"String": ""}, "content": "x"},
    ],
    "post_processor": [
        {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
         "special_tokens": {}},
        {"type": "BertProcessing", "sep": ["<eos>", 2**32 - 1], "cls": ["<bos>", 0]},
        {"type": "RobertaProcessing", "sep": ["<eos>", 1], "cls": ["no", 9999], "trim_offsets": True,
         "add_prefix_space": True},
    ],
    "model": [
        {"type": "WordLevel", "vocab": {"a": 0, "once": 2**32 - 1}, "unk_token": "a"},
        {"type": "WordLevel", "vocab": {}, "unk_token": "missing"},
        {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["a", -1e308]], "byte_fallback": True},
        {"type": "Unigram", "unk_id": 9, "vocab": [], "byte_fallback": False},
        {"type": "WordPiece", "unk_token": "x", "continuing_subword_prefix": "", "max_input_chars_per_word": 0,
         "vocab": {}},
        {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.9999, "unk_token": "no", "byte_fallback": True},
    ],
    "truncation": [{"direction": "Left", "max_length": 0, "strategy": "LongestFirst", "stride": 0}],
    "padding": [
        {"strategy": {"Fixed": 2**40}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
         "pad_token": "x"},
    ],
}  # fmt: skip
_DTYPES = ["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "X"]


def odd(rng: random.Random) -> Any:
    """Return a value that hardly any field expects."""
    return rng.choice(ODD)


def change_value(rng: random.Random, value: Any, *, odd_values: list[Any] = ODD) -> None:
    """Replace or drop a value of an object at any depth."""
    place = value
    while True:
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.3:
            break
        place = place[key]
    if rng.random() < 0.2 and isinstance(place, dict):
        del place[key]
    elif type(place[key]) is int and rng.random() < 0.5:
        place[key] = rng.choice(_NEAR)
    else:
        place[key] = rng.choice(odd_values)


def changed_json(rng: random.Random, content: bytes) -> bytes:
    """Return a JSON file with a value or two changed, a key given twice, a deep value, or in another encoding."""
    value = json.loads(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if value:
            change_value(rng, value, odd_values=[*ODD, *_TEXT_ONLY])
    text = json.dumps(value)
    kind = rng.randrange(12)
    if kind == 0 and value:
        key = rng.choice(list(value))
        text = f'{{"{key}": {json.dumps(odd(rng))}, {json.dumps(value)[1:]}'
    elif kind == 1 and value:
        depth = rng.choice([100, 5_000, 100_000])
        text = f'{{"{rng.choice(list(value))}": {"[" * depth + "]" * depth}, {json.dumps(value)[1:]}'
    elif kind == 2:
        text = rng.choice(["", "null", "[]", "{}", '"x"', "1e999", "[" * 100_000, "\ufeff" + text, text + "x"])
    encoding = "utf-16" if kind == 3 else "utf-8"
    return text.encode(encoding, "surrogatepass")


def changed_tokenizer(rng: random.Random, content: bytes) -> bytes:
    """Return a tokenizer.json with another part, another id, or a token that is no longer as its neighbours expect."""
    value = json.loads(content)
    model, added = value["model"], value["added_tokens"]
    for _ in range(rng.choice([1, 1, 2])):
        how = rng.randrange(5)
        if how == 0:
            part = rng.choice(list(_PARTS))
            value[part] = rng.choice(_PARTS[part])
        elif how == 1:
            model["vocab"][rng.choice([*model["vocab"], "new", ""])] = rng.choice(_NEAR)
        elif how == 2:
            del model["vocab"][rng.choice(list(model["vocab"]))]
        elif how == 3:
            change_value(rng, rng.choice(added), odd_values=[*_NEAR, "", "a", " ", "\0", "x" * 5000, True, False])
        else:
            model["merges"] = rng.choice([[], [["t", "h"]], [["no", "such"]], [""], ["t  h"], [["t", "h"]] * 9])
    return json.dumps(value).encode()


def changed_header(rng: random.Random, content: bytes) -> bytes:
    """Return a safetensors file whose header lies about one tensor."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    names = [name for name in header if name != "__metadata__"]
    name = rng.choice(names)
    entry = header[name]
    kind = rng.randrange(8)
    if kind == 0:
        entry["dtype"] = rng.choice(_DTYPES)
    elif kind == 1:
        shape = entry["shape"]
        entry["shape"] = rng.choice([shape[::-1], [*shape, 1], [], [2**62, 4], [-1], [0], odd(rng)])
    elif kind == 2:
        offsets = [[0, 2**63], [5, 4], [0], [-8, 0], header[rng.choice(names)]["data_offsets"]]
        entry["data_offsets"] = rng.choice(offsets)
    elif kind == 3:
        del header[name]
    elif kind == 4:
        header[name + rng.choice(["_", ".weight", "\n", "\x00"])] = header.pop(name)
    elif kind == 5:  # swap two linears, or two parts of a tensor
        other = rng.choice(names)
        header[name], header[other] = header[other], header[name]
    elif kind == 6:
        del entry[rng.choice(list(entry))]
    else:
        header[name] = odd(rng)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]
