"""A server that speculates, and what it tells about it."""

from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import ServerProcess

from splitfuse.client import Client
from splitfuse.engine import LLM, SamplingParams

SMALL = ("--dtype", "float32", "--num-kv-blocks", "128", "--max-model-len", "512")
PROMPT = "<|user|>\nTell me a story about a brave mouse named Otto.<|end|>\n<|assistant|>\n"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    settings = '{"method": "draft_model", "model": "demo-draft", "num_speculative_tokens": 3, "adaptive": false}'
    with ServerProcess(*SMALL, "--speculative-config", settings) as server:
        yield server


def counts(server: ServerProcess) -> dict[tuple[str, str], float]:
    text = httpx.get(f"{server.url}/metrics").text
    return {
        (sample.name.removeprefix("splitfuse:"), sample.labels.get("position", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_acceptance_is_told(server: ServerProcess) -> None:
    before = counts(server)
    with Client(server.url) as client:
        result = client.generate(PROMPT, max_tokens=60, temperature=0, ignore_eos=True)
    plain = LLM(dtype="float32", max_model_len=512, num_kv_blocks=128)
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    assert result.token_ids == plain.generate([PROMPT], params)[0].outputs[0].token_ids

    timings, after = result.timings, counts(server)
    assert 20 < timings.num_accepted_tokens < timings.num_draft_tokens <= 180
    grown = {key: value - before.get(key, 0) for key, value in after.items()}
    assert grown["spec_decode_num_draft_tokens_total", ""] == timings.num_draft_tokens
    assert grown["spec_decode_num_accepted_tokens_total", ""] == timings.num_accepted_tokens
    per_pos = [grown["spec_decode_num_accepted_tokens_per_pos_total", str(place)] for place in range(3)]
    assert sum(per_pos) == timings.num_accepted_tokens
    assert grown["spec_decode_num_drafts_total", ""] >= per_pos[0] >= per_pos[1] >= per_pos[2] > 0
    assert grown["generation_tokens_total", ""] == 60, "tokens, not steps"

    stats = httpx.get(f"{server.url}/stats").json()["speculation"]
    assert stats["num_accepted_tokens"] / stats["num_draft_tokens"] == stats["acceptance"]
    assert stats["num_draft_tokens"] == after["spec_decode_num_draft_tokens_total", ""]
    assert stats["draft_s"] > 0


async def test_who_does_not_speculate_says_nothing_of_it(live: httpx.AsyncClient) -> None:
    assert (await live.get("/stats")).json()["speculation"] is None
    assert "spec_decode" not in (await live.get("/metrics")).text
    result = (await live.post("/generate", json={"prompt": "x", "max_tokens": 2})).json()
    done = (await live.get(result["result_url"] + "?wait=60")).json()
    assert "num_draft_tokens" not in done["timings"]
