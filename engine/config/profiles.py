"""Profiles: named bundles of settings for `--profile`. A setting with a value of its own wins. Imports no torch.

Numbers are of tests/bench/RESULTS.md: SmolLM2-135M on two cores, output tokens/s and gaps between tokens.
"""

import shutil
from collections.abc import Mapping
from typing import Any

CPU, GPU = "cpu", "cuda"
# P99 gap 142 ms instead of 924 beside long prompts, their first token after 6.0 s instead of 5.6; before `auto` was.
_LATENCY = {"target_itl_ms": 120.0}
# In float32 processors of other classes give equal bits too; no schedule changes a bit in bfloat16 either.
_EXACT = {"dtype": "float32", "quantization_activations": "none", "kv_cache_dtype": "auto"}
# By profile and device.
PROFILES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "throughput": {
        CPU: {
            # 1.05 to 1.1 times auto's tokens/s at 8 x 128; perplexity up to 0.2 % higher. Weights in 16 bits stay
            # as they are.
            "quantization_activations": "int8",
            "kv_cache_dtype": "int8",  # 1.9 times the tokens in the same memory; 1.05 times the speed at 32 x 256
            "max_num_batched_tokens": 1024,  # half the steps of long prompts; 1.04 and 0.95 of 512's rate at 32 x 256
            "long_prefill_token_threshold": 0,  # prompts of 1,500 tokens take 0.93 s instead of 1.02
        },
        GPU: {"max_num_batched_tokens": 4096},  # unmeasured, as all on GPUs
    },
    "latency": {CPU: _LATENCY, GPU: _LATENCY},
    "exact": {CPU: _EXACT, GPU: {**_EXACT, "exact": True}},
}


def profile_values(name: str, *, device: str) -> Mapping[str, Any]:
    """Return the settings of a profile. `device`: the setting; "auto" is a GPU if an NVIDIA driver is installed."""
    has_gpu = device == GPU or (device == "auto" and shutil.which("nvidia-smi") is not None)
    return PROFILES[name][GPU if has_gpu else CPU]
