"""LLMEngine returns what each step adds, and LLM's answers at the end."""

from typing import Any

import pytest

from splitfuse.engine import LLM, EngineArgs, LLMEngine, SamplingParams


def test_requests_are_stepped_by_hand(tiny_folder: str) -> None:
    fields: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    args = EngineArgs(tiny_folder, dtype="float32")
    engine = LLMEngine.from_engine_args(args)
    for name, num_tokens in (("a", 3), ("b", 6), ("c", 40)):
        engine.add_request(name, f"hello {name}", SamplingParams(**fields, max_tokens=num_tokens))
    with pytest.raises(ValueError, match="in use"):
        engine.add_request("a", "hello", SamplingParams())
    lengths: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    finished = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            lengths[output.request_id].append(len(output.outputs[0].token_ids))
            if output.finished:
                finished[output.request_id] = output.outputs[0].token_ids
        if len(lengths["b"]) == 6:
            engine.abort_request(["c", "unknown"])
    assert lengths["a"] == [1, 2, 3]
    assert lengths["b"] == [1, 2, 3, 4, 5, 6]
    assert finished.keys() == {"a", "b"}
    assert engine.get_num_unfinished_requests() == 0
    assert engine.step() == []
    with LLM(tiny_folder, dtype="float32") as llm:
        assert llm.generate("hello b", **fields, max_tokens=6)[0].outputs[0].token_ids == finished["b"]
