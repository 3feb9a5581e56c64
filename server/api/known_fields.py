"""The one table of fields that clients of OpenAI, vLLM, TGI, SGLang and llama.cpp send and that are no fields of ours.

A field that is known but not acted on is a hint or has harmless values; any other field is an error that names the
nearest. What stands here holds for every route that generates, but where a route declares a field of that name.
"""

from collections.abc import Mapping
from typing import Any

NOTHING: tuple[Any, ...] = (False, "", [], {})  # null is absent everywhere

# Without effect here, whatever they say: named in X-Ignored-Fields, unless the value asks for nothing.
HINTS: Mapping[str, tuple[Any, ...]] = {
    "store": NOTHING,
    "metadata": NOTHING,
    "service_tier": (*NOTHING, "auto", "default"),
    "safety_identifier": NOTHING,
    "prompt_cache_key": NOTHING,
    "prompt_cache_retention": NOTHING,
    "prompt_cache_options": NOTHING,
    "verbosity": (*NOTHING, "medium"),
    "prediction": NOTHING,
    "context_management": NOTHING,
    "mm_processor_kwargs": NOTHING,
    "guided_decoding_backend": NOTHING,
    "cache_prompt": NOTHING,
    "nvext": NOTHING,
    "provider": NOTHING,
}

# These would change the answer and are not built: only values that ask for nothing are accepted.
HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "use_beam_search": NOTHING,
    "best_of": (*NOTHING, 1),
    "echo": NOTHING,
    "suffix": NOTHING,
    "length_penalty": (*NOTHING, 1, 1.0),
    "early_stopping": NOTHING,
    "spaces_between_special_tokens": (*NOTHING, True),
    "detokenize": (*NOTHING, True),
    "include_reasoning": (*NOTHING, True),
    "separate_reasoning": (*NOTHING, True),
    "stream_reasoning": (*NOTHING, True),
    "return_token_ids": NOTHING,
    "return_tokens_as_token_ids": NOTHING,
    "return_hidden_states": NOTHING,
    "no_stop_trim": NOTHING,
    "typical_p": (*NOTHING, 1, 1.0),
    "documents": NOTHING,
    "logits_processors": NOTHING,
    "prompt_embeds": NOTHING,
    "kv_transfer_params": NOTHING,
    "vllm_xargs": NOTHING,
    "structural_tag": NOTHING,
    "lora_path": NOTHING,
}

# Other names of a constraint: what each is called in structured_outputs.
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

# Refused by --strict-fields whatever they say: other servers' names, for which there is nothing or another one here.
FOREIGN = frozenset({*HARMLESS, *CONSTRAINTS})

# Keys inside messages, items and parts that templates do not get. Clients send back what they received, and more.
MESSAGE_FIELDS = frozenset(
    {
        "role",
        "content",
        "name",
        "tool_calls",
        "tool_call_id",
        "reasoning_content",
        "reasoning",
        "function_call",
        "audio",
    }
)
ITEM_FIELDS = frozenset({"type", "id", "status", "call_id", "arguments", "output", "summary", *MESSAGE_FIELDS})
PART_FIELDS = frozenset({"type", "text"})
TOOL_FIELDS = frozenset({"type", "function"})
IGNORED_KEYS = frozenset(
    {
        *("id", "type", "status", "object", "index", "created_at", "timestamp", "model", "usage", "metadata"),
        *("refusal", "annotations", "logprobs", "citations", "parsed", "phase", "encrypted_content", "cache_control"),
        *("reasoning_details", "thinking_blocks", "provider_specific_fields", "extra_content", "additional_kwargs"),
        *("response_metadata", "namespace", "caller", "prefix", "partial", "strict", "prompt_cache_breakpoint"),
    }
)

# What a part may hold beside text, and what we call it.
MEDIA: Mapping[str, str] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "image_embeds": "image",
    "file": "file",
    "input_file": "file",
    "document": "file",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
}


def asks_for_nothing(value: object, harmless: tuple[Any, ...]) -> bool:
    """Whether the value is one of these; True is not 1."""
    return any(type(value) is type(each) and value == each for each in harmless)
