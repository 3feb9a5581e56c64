"""Scripts that do what vLLM's offline examples do, call by call, run with their import lines changed alone."""

import re
import sys
from types import ModuleType

import pytest

BASIC = """
from vllm import LLM, SamplingParams

prompts = ["Once upon a time", "The little dog", "In the morning", "She said"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)


def main():
    llm = LLM(model="demo")
    outputs = llm.generate(prompts, sampling_params)
    for output in outputs:
        print(f"Prompt: {output.prompt!r}, output: {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
"""
GENERATE = """
from vllm import LLM

llm = LLM(model="demo", max_num_seqs=4)
sampling_params = llm.get_default_sampling_params()
sampling_params.max_tokens = 7
sampling_params.temperature = 0.5
sampling_params.ignore_eos = True
for output in llm.generate(["Once upon a time", "The dog"], sampling_params):
    print(f"{output.prompt!r} -> {len(output.outputs[0].token_ids)} tokens")
"""
CHAT = """
from vllm import LLM, SamplingParams

llm = LLM(model="demo", disable_log_stats=True)
sampling_params = llm.get_default_sampling_params()
sampling_params.max_tokens = 8
conversation = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! How can I help?"},
    {"role": "user", "content": "Tell me a story."},
]
outputs = llm.chat(conversation, sampling_params, use_tqdm=False)
print("one:", len(outputs), repr(outputs[0].prompt), repr(outputs[0].outputs[0].text))
outputs = llm.chat([conversation for _ in range(10)], sampling_params, use_tqdm=True)
print("many:", len(outputs))
template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
outputs = llm.chat([conversation] * 2, sampling_params, use_tqdm=False, chat_template=template)
print("templated:", len(outputs))
"""
STRUCTURED = '''
import json
from enum import Enum

from pydantic import BaseModel
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

MAX_TOKENS = 50


class CarType(str, Enum):
    SEDAN = "SEDAN"
    SUV = "SUV"


class Car(BaseModel):
    brand: str
    car_type: CarType


GRAMMAR = """
root ::= select_statement
select_statement ::= "SELECT " column " from " table " where " condition
column ::= "col_1 " | "col_2 "
table ::= "table_1 " | "table_2 "
condition ::= column "= " number
number ::= "1 " | "2 "
"""
constraints = {
    "choice": StructuredOutputsParams(choice=["Positive", "Negative"]),
    "regex": StructuredOutputsParams(regex=r"\\w+@\\w+\\.com\\n"),
    "json": StructuredOutputsParams(json=Car.model_json_schema()),
    "grammar": StructuredOutputsParams(grammar=GRAMMAR),
}
llm = LLM(model="demo", max_model_len=100)
for name, structured in constraints.items():
    params = SamplingParams(structured_outputs=structured, max_tokens=MAX_TOKENS)
    outputs = llm.generate(f"An example of {name}:", sampling_params=params)
    print(f"{name}: {outputs[0].outputs[0].text!r}")
'''
PREFIX_CACHING = """
from vllm import LLM, SamplingParams

prefix = "Once upon a time there was a little dog who lived in a house by the sea with a boy and a cat. " * 4
prompts = [prefix + end for end in ("The dog", "The boy", "One day")]
sampling_params = SamplingParams(temperature=0.0)
regular_llm = LLM(model="demo", gpu_memory_utilization=0.4, enable_prefix_caching=False)
expected = [output.outputs[0].text for output in regular_llm.generate(prompts, sampling_params)]
del regular_llm

llm = LLM(model="demo", enable_prefix_caching=True, gpu_memory_utilization=0.4)
llm.generate(prompts[0], sampling_params)  # the prefix is cached from here on
outputs = llm.generate(prompts, sampling_params)
texts = [output.outputs[0].text for output in outputs]
print("same:", texts == expected, "cached:", all(output.num_cached_tokens > 0 for output in outputs))
"""
ASYNC = """
import asyncio

from vllm import SamplingParams
from vllm.config import EngineConfig
from vllm.v1.engine.async_llm import AsyncLLM


async def stream(engine, prompt, request_id):
    params = SamplingParams(max_tokens=10, temperature=0.8, seed=42)
    async for output in engine.generate(request_id=request_id, prompt=prompt, sampling_params=params):
        if output.finished:
            print(output.outputs[0].text)
            print("finished", request_id)


async def main():
    engine = AsyncLLM.from_engine_args(EngineConfig(model="demo"))
    try:
        for index, prompt in enumerate(["Once upon", "The dog"]):
            await stream(engine, prompt, f"stream-{index}")
    finally:
        engine.shutdown()


asyncio.run(main())
"""
SCRIPTS = {
    "basic": (BASIC, r"(Prompt: '.+', output: '.+'\n){4}"),
    "generate": (GENERATE, r"^'Once upon a time' -> 7 tokens\n'The dog' -> 7 tokens\n$"),
    "chat": (CHAT, r"one: 1 '<.system.>.+' '.+'\nmany: 10\ntemplated: 2\n"),
    "structured": (
        STRUCTURED,
        r"choice: '(Posi|Nega)tive'\nregex: '\w+@?.*'\njson: '\{ ?\"brand\": .*'\n"
        r"grammar: 'SELECT col_\d  from table_\d  where col_\d = \d '\n",
    ),
    "prefix_caching": (PREFIX_CACHING, r"same: True cached: True"),
    "async": (ASYNC, r"(?s)..+\nfinished stream-0\n.+\nfinished stream-1\n"),
}


def with_our_imports(script: str) -> str:
    """Change the import lines, and nothing else."""
    return re.sub(r"(?m)^from vllm\S* import ", "from splitfuse import ", script)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script, printed = SCRIPTS[name]
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "vllm", None)
    exec(compile(with_our_imports(script), f"{name}.py", "exec"), vars(module))
    assert re.search(printed, capsys.readouterr().out)
