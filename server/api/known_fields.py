"""Table of fields that clients of OpenAI, vLLM, TGI, SGLang and llama.cpp send and that are not fields of ours.

A known field is either a hint, which is ignored, or has harmless values; any other field is an error that names the
nearest known one. The table holds for every route that generates, except where a route declares the field itself.
"""

from collections.abc import Mapping
from typing import Any

NOTHING: tuple[Any, ...] = (False, "", [], {})  # null counts as absent everywhere

# Ignored whatever their value. X-Ignored-Fields names them, unless the value asks for nothing.
HINTS: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("store", "metadata", "safety_identifier", "prediction", "context_management"), NOTHING),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_prompt"), NOTHING),
    **dict.fromkeys(("mm_processor_kwargs", "guided_decoding_backend", "nvext", "provider"), NOTHING),
    "service_tier": (*NOTHING, "auto", "default"),
    "verbosity": (*NOTHING, "medium"),
}

# Not built, and would change the answer: only values that ask for nothing are accepted.
HARMLESS: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("use_beam_search", "early_stopping", "echo", "suffix", "no_stop_trim", "logits_processors"), NOTHING
    ),
    **dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids", "return_hidden_states"), NOTHING),
    **dict.fromkeys(("documents", "prompt_embeds", "structural_tag"), NOTHING),
    **dict.fromkeys(("kv_transfer_params", "vllm_xargs"), NOTHING),
    **dict.fromkeys(("spaces_between_special_tokens", "detokenize"), (*NOTHING, True)),
    **dict.fromkeys(("include_reasoning", "separate_reasoning", "stream_reasoning"), (*NOTHING, True)),
    **dict.fromkeys(("length_penalty", "typical_p"), (*NOTHING, 1, 1.0)),
    "best_of": (*NOTHING, 1),
}

# Other servers' names of constraints, and their names in structured_outputs.
CONSTRAINTS: Mapping[str, str] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "guided_whitespace_pattern": "whitespace_pattern",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
}

# Other servers' names of fields that mean the same: vLLM's, then llama.cpp's.
OTHER_NAMES = dict.fromkeys(("thinking_token_budget", "thinking_budget_tokens", "reasoning_budget"), "thinking_budget")

# Refused by --strict-fields whatever their value: other servers' names, with another name here or no counterpart.
FOREIGN = frozenset({*HARMLESS, *CONSTRAINTS})

# Known keys of messages, items and parts that templates do not get. Clients send back received keys, and more.
MESSAGE_FIELDS = frozenset(
    {
        *("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning"),
        *("function_call", "audio", "refusal"),
    }
)
ITEM_FIELDS = frozenset({"type", "id", "status", "call_id", "arguments", "output", "input", "summary", *MESSAGE_FIELDS})
PART_FIELDS = frozenset({"type", "text", "refusal"})
TOOL_FIELDS = frozenset({"type", "function"})
IGNORED_KEYS = frozenset(
    {
        *("id", "type", "status", "object", "index", "created_at", "timestamp", "model", "usage", "metadata"),
        *("refusal", "annotations", "logprobs", "citations", "parsed", "phase", "encrypted_content", "cache_control"),
        *("reasoning_details", "thinking_blocks", "provider_specific_fields", "extra_content", "additional_kwargs"),
        *("response_metadata", "namespace", "caller", "prefix", "partial", "strict", "prompt_cache_breakpoint"),
    }
)

# Types of parts other than text, and the word for each in our errors.
MEDIA: Mapping[str, str] = {
    **dict.fromkeys(("image", "image_url", "input_image", "image_embeds"), "image"),
    **dict.fromkeys(("file", "input_file", "document"), "file"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
    **dict.fromkeys(("video", "video_url"), "video"),
}


def asks_for_nothing(value: object, harmless: tuple[Any, ...]) -> bool:
    """True if the value equals one of these, in value and type: True is not 1."""
    return any(type(value) is type(harmless_value) and value == harmless_value for harmless_value in harmless)
