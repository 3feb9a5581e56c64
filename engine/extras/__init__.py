"""Extras: options of the engine, a folder each, which declare themselves. Any folder can be deleted."""

from collections.abc import Mapping

# Settings and calls of LLM by folder, so that what needs a deleted folder says which one. A test compares them.
NAMES: Mapping[str, str] = {
    "deadlines": "target_itl_ms ttft_ms itl_ms",
    "disk_cache": "prefix_cache_dir prefix_cache_disk_bytes",
    "forks": "fork",
    "lora": "enable_lora lora_modules max_loras max_lora_rank lora_request",
    "pooling": "pooler_config embed classify encode score",
    "simulation": "record",
    "spec_decode": "speculative_config",
    "thinking": "thinking_budget thinking_message",
    "weight_updates": "update_weights sleep wake_up",
}
