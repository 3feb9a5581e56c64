"""The engine in this process, without a server: a batch of prompts, each with its own sampling."""

from splitfuse.engine import LLM, SamplingParams

llm = LLM(device="cpu", max_num_seqs=8)  # no model: the bundled demo
outputs = llm.generate(
    ["Once upon a time", "The little dog"],
    [SamplingParams(temperature=0, max_tokens=24), SamplingParams(temperature=0.8, seed=1, max_tokens=24)],
)
for output in outputs:
    print(f"{len(output.prompt_token_ids)} prompt tokens -> {output.outputs[0].text!r}")
