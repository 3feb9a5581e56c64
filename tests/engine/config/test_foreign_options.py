"""Other servers' options: an option is ours, is translated to ours, has no effect, or is refused with a reason."""

import argparse

import pytest
from tables import table

from splitfuse.engine.config.foreign_options import FOREIGN_OPTIONS, supported_keywords, translated
from splitfuse.engine.errors import ConfigError
from splitfuse.server.commands.setting_flags import add_flags
from splitfuse.server.commands.settings_sources import ALL_FIELDS, ENGINE_FIELDS

# `vllm serve --help` of 0.11, without what is for several machines, images and plug-ins.
VLLM = """
--allowed-headers --allowed-methods --allowed-origins --api-key --api-server-count --async-scheduling --block-size
--chat-template --chat-template-content-format --code-revision --compilation-config --config --config-format --convert
--cpu-offload-gb --cuda-graph-sizes --data-parallel-size --data-parallel-size-local --decode-context-parallel-size
--disable-cascade-attn --disable-custom-all-reduce --disable-frontend-multiprocessing --disable-log-requests
--disable-log-stats --disable-sliding-window --disable-uvicorn-access-log --distributed-executor-backend
--download-dir --dtype --enable-auto-tool-choice --enable-chunked-prefill --enable-log-requests --enable-lora
--enable-prefix-caching --enable-prompt-tokens-details --enable-request-id-headers --enable-sleep-mode --enforce-eager
--generation-config --gpu-memory-utilization --guided-decoding-backend --hf-overrides --hf-token --host
--kv-cache-dtype --kv-cache-memory-bytes --limit-mm-per-prompt --load-format --log-config-file --logits-processors
--logprobs-mode --long-prefill-token-threshold --lora-modules --max-cpu-loras --max-log-len --max-logprobs
--max-long-partial-prefills --max-lora-rank --max-loras --max-model-len --max-num-batched-tokens
--max-num-partial-prefills --max-num-seqs --max-parallel-loading-workers --max-seq-len-to-capture --middleware --model
--model-impl --no-enable-log-requests --no-enable-prefix-caching --num-gpu-blocks-override --num-scheduler-steps
--otlp-traces-endpoint --override-generation-config --override-pooler-config --pipeline-parallel-size --port
--preemption-mode --prefix-caching-hash-algo --quantization --reasoning-parser --response-role --revision --root-path
--rope-scaling --rope-theta --runner --safetensors-load-strategy --scheduling-policy --seed --served-model-name
--speculative-config --ssl-ca-certs --ssl-certfile --ssl-keyfile --stream-interval --structured-outputs-config
--swap-space --task --tensor-parallel-size --tokenizer --tokenizer-mode --tokenizer-revision --tool-call-parser
--tool-parser-plugin --trust-remote-code --uds --use-tqdm-on-load --uvicorn-log-level -O -asc -dcp -dp -dpl -pp -q -tp
"""
OTHERS = """
--model-path --dp --mem-fraction-static --context-length --max-running-requests --chunked-prefill-size
--model-id --num-shard --max-input-tokens --max-total-tokens --max-batch-prefill-tokens --max-concurrent-requests
--max-cpu-loras --speculative-model --num-speculative-tokens --tenant-goals --profile
-m -c --ctx-size -ngl --n-gpu-layers --gpu-layers -np --parallel -t --threads -b -hf --alias
"""


def ours() -> set[str]:
    parser = argparse.ArgumentParser()
    add_flags(parser, ALL_FIELDS)
    return {flag for action in parser._actions for flag in action.option_strings}


def test_every_flag_of_vllm_is_ours_or_in_the_table() -> None:
    assert {*VLLM.split()} - ours() - FOREIGN_OPTIONS.keys() == set()


def test_the_table_holds_none_of_ours_and_says_why_it_refuses() -> None:
    assert FOREIGN_OPTIONS.keys() & ours() == set()
    for flag, option in FOREIGN_OPTIONS.items():
        assert option.words is not None or option.harmless is None or option.why, flag


@pytest.mark.parametrize("flag", OTHERS.split())
def test_common_flags_of_other_servers_are_explained(flag: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{flag} 4 is not taken: here it is .") as info:
        translated([flag, "4"])
    named = [word.strip(",;:") for word in str(info.value).split() if word.startswith("--")]
    assert {*named[flag.startswith("--") :]} <= ours(), "it names a flag that there is"


@pytest.mark.parametrize(("options", "expected"), table(__file__, "taken"))
def test_what_is_taken(options: str, expected: str) -> None:
    assert translated(options.split()) == expected.split()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--pipeline-parallel-size 2", "--pipeline-parallel-size 2 is not taken: --tensor-parallel-size N"),
        ("-pp=4", "-pp 4 is not taken: --tensor-parallel-size N"),
        ("--trust-remote-code", "code of a model repository is never run"),
        ("--tokenizer-revision v2", "hf download"),
        ("--hf-token x", "set HF_TOKEN"),
        ("--results-key-file x", "encrypted disk"),
        ("--webhook-targets a=https://b", "wait=30"),
        ("--no-enable-chunked-prefill", "long prompts are always split over steps"),
    ],
)
def test_what_is_refused(options: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        translated(options.split())


def test_keywords_of_vllms_llm() -> None:
    harmless = {
        "pipeline_parallel_size": 1, "trust_remote_code": False, "enable_chunked_prefill": True,
        "tokenizer_mode": "auto", "code_revision": None, "disable_log_stats": True, "task": "generate",
        "cpu_offload_gb": 0, "max_seq_len_to_capture": 8192, "disable_log_requests": True,
    }  # fmt: skip
    assert supported_keywords({"model": "m", **harmless}, ENGINE_FIELDS) == {"model": "m"}
    assert supported_keywords({"tensor_parallel_size": 2}, ENGINE_FIELDS) == {"tensor_parallel_size": 2}
    options = {"dtype": "half", "num_gpu_blocks_override": 9, "quantization": "awq", "enforce_eager": True}
    assert supported_keywords(options, ENGINE_FIELDS) == {"dtype": "float16", "num_kv_blocks": 9, "enforce_eager": True}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2 is not taken: --tensor-parallel-size N"),
        ({"trust_remote_code": True}, "trust_remote_code=True is not taken: code"),
        ({"enable_chunked_prefill": False}, "enable_chunked_prefill=False is not taken: long prompts are always split"),
        ({"max_num_seq": 1}, "max_num_seq is not known; did you mean max_num_seqs"),
        ({"zzz": 1}, "zzz is not known$"),
    ],
)
def test_keywords_that_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        supported_keywords(options, ENGINE_FIELDS)
