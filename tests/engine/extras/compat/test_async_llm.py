"""AsyncLLM yields what LLM returns."""

import asyncio
from typing import Any

import pytest

from splitfuse.engine import LLM, AsyncLLM, EngineConfig, SamplingParams
from splitfuse.engine.errors import InvalidRequestError
from splitfuse.engine.serving.request_output import RequestOutput

FIELDS: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "n": 2, "seed": 3, "logprobs": 1}


@pytest.fixture(scope="module")
def expected(tiny_folder: str) -> RequestOutput:
    with LLM(tiny_folder, dtype="float32") as llm:
        return llm.generate("hello", **FIELDS)[0]


def outputs_of(folder: str) -> list[RequestOutput]:
    async def ask() -> list[RequestOutput]:
        engine = AsyncLLM.from_engine_args(EngineConfig(model=folder, dtype="float32", max_num_seqs=4))
        params = SamplingParams(**FIELDS)
        outputs = [output async for output in engine.generate("hello", params, "a", priority=2)]
        assert await engine.get_tokenizer() is engine.engine.tokenizer
        with pytest.raises(InvalidRequestError, match="lora_request"):
            async for _ in engine.generate("hello", params, "b", lora_request=1):  # type: ignore[arg-type]
                pass
        await engine.stop()
        return outputs

    return asyncio.run(ask())


def test_outputs_grow(tiny_folder: str, expected: RequestOutput) -> None:
    outputs = outputs_of(tiny_folder)
    lengths = [sum(len(completion.token_ids) for completion in output.outputs) for output in outputs]
    assert lengths == list(range(1, 13))
    assert [output.finished for output in outputs] == [False] * 11 + [True]
    assert [o.token_ids for o in outputs[-1].outputs] == [o.token_ids for o in expected.outputs]
    assert outputs[-1].outputs[0].logprobs == expected.outputs[0].logprobs
    position = (outputs[0].outputs[0].logprobs or [])[0]
    assert {item.decoded_token for item in position.values()} != {None}


def test_leaving_an_iteration_aborts(tiny_folder: str) -> None:
    async def leave() -> int:
        async with AsyncLLM(EngineConfig(model=tiny_folder, dtype="float32")) as engine:
            answer = engine.generate("hello", SamplingParams(max_tokens=200, ignore_eos=True), "a")
            await anext(answer)
            await answer.aclose()  # type: ignore[attr-defined]
            await engine.abort("unknown")
            return engine.engine.core.num_unfinished

    assert asyncio.run(leave()) == 0
