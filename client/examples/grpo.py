"""GRPO with trl: rollouts by a splitfuse server over HTTP, and the trained weights pushed back after each step.

    pip install trl datasets
    splitfuse serve smollm2-folder --dtype float32 --port 8000 &      # a folder in Hugging Face's format
    python client/examples/grpo.py --model smollm2-folder --steps 5

After each rollout the server scores the sampled tokens again as a prompt. Its logprobs are equal to the bit, so the
mean of rollout minus rescored, the estimate of KL that trainers watch, is exactly 0. The last line of the output says
so.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from splitfuse.client import Client

PROMPTS = ["Count from one to five:", "My favourite number is", "The answer to everything is", "Seven plus five is"]


class Rollouts:
    """Sampling and rescoring by the server; keeps the largest difference between the two."""

    def __init__(self, client: Client, *, max_tokens: int) -> None:
        self._client = client
        self._max_tokens = max_tokens
        self.num_tokens = 0
        self.num_different = 0
        self.sum_of_differences = 0.0
        self.versions: set[int | None] = set()

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """Return token ids and logprobs, as trl's `rollout_func`."""
        tokenizer = trainer.processing_class
        prompt_ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
        seeds = range(self.num_tokens, self.num_tokens + len(prompts))
        with ThreadPoolExecutor(len(prompts)) as pool:
            outputs = list(pool.map(self._sample, prompt_ids, seeds))
            list(pool.map(self._rescore, prompt_ids, *zip(*outputs, strict=True)))
        completion_ids, logprobs = (list(column) for column in zip(*outputs, strict=True))
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": logprobs}

    def _sample(self, prompt_ids: list[int], seed: int) -> tuple[list[int], list[float]]:
        result = self._client.generate(
            prompt_ids, temperature=1.0, top_p=1.0, top_k=0, seed=seed, max_tokens=self._max_tokens, logprobs=0
        )
        self.versions.add(result.weights_version)
        return result.token_ids, [item["logprob"] for item in result.outputs[0].logprobs]

    def _rescore(self, prompt_ids: list[int], token_ids: list[int], logprobs: list[float]) -> None:
        scored = self._client.generate([*prompt_ids, *token_ids], max_tokens=1, prompt_logprobs=0)
        for position, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True), len(prompt_ids)):
            difference = logprob - scored.prompt_logprobs[position][str(token_id)]["logprob"]
            self.num_tokens += 1
            self.num_different += difference != 0.0
            self.sum_of_differences += difference


def reward(completions: list[str], **_: Any) -> list[float]:
    """Return the share of digits in each completion: easy to learn within a few steps."""
    return [sum(letter.isdigit() for letter in text) / max(1, len(text)) for text in completions]


def train(model: str, *, steps: int, output: Path, client: Client, max_tokens: int = 24) -> Rollouts:
    """Train a model folder for some steps; the server samples with the weights of the step before."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class PushWeights(TrainerCallback):  # type: ignore[misc]  # transformers' classes are Any
        """Push the weights to the server after each step."""

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            folder = output / f"step-{state.global_step % 2}"
            more["model"].save_pretrained(folder)
            answer = client.update_weights(str(folder.resolve()))
            print(f"step {state.global_step}: weights {answer}", flush=True)

    rollouts = Rollouts(client, max_tokens=max_tokens)
    config = GRPOConfig(
        output_dir=str(output),
        max_steps=steps,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=max_tokens,
        learning_rate=2e-5,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS] * 8),
        rollout_func=rollouts,
        callbacks=[PushWeights()],
    )
    trainer.train()
    return rollouts


def main() -> None:
    """Train, and print whether rollouts and rescoring had equal logprobs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the model that the server serves")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("grpo-output"))
    args = parser.parse_args()
    with Client(args.url, timeout=600) as client:
        done = train(args.model, steps=args.steps, output=args.output, client=client)
    mean = done.sum_of_differences / done.num_tokens
    print(f"{done.num_tokens} tokens, versions {sorted(map(str, done.versions))}: KL(rollout, rescored) = {mean}")
    print(f"{done.num_different} logprobs differ")


if __name__ == "__main__":
    main()
