"""Bodies of the kills campaign: a request of every kind whose results must survive on disk."""

from dataclasses import dataclass, field
from typing import Any

PROMPT = "Once upon a time there was a"
_OBJECT = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_TOOL = {"type": "function", "name": "weather", "parameters": _OBJECT}


@dataclass(frozen=True)
class Kind:
    """Kind of request; without its own seed a body has another answer every time."""

    name: str
    body: dict[str, Any]
    path: str = "/generate"
    has_fixed_answer: bool = field(default=True)


def _generate(name: str, *, has_fixed_answer: bool = True, **fields: Any) -> Kind:
    return Kind(name, {"prompt": PROMPT, **fields}, has_fixed_answer=has_fixed_answer)


KINDS = (
    _generate("greedy", max_tokens=160, temperature=0, ignore_eos=True),
    _generate("seeded", max_tokens=90, seed=7, top_p=0.9, ignore_eos=True),
    _generate("unseeded", max_tokens=90, ignore_eos=True, has_fixed_answer=False),
    _generate("four outputs", max_tokens=50, seed=3, n=4, ignore_eos=True),
    _generate("schema", max_tokens=70, seed=1, structured_outputs={"json": {"type": "array", "items": _OBJECT}}),
    _generate("stop strings", max_tokens=120, seed=2, stop=["day", "the"], min_tokens=30),
    _generate("logprobs", max_tokens=60, seed=11, logprobs=3, prompt_logprobs=2),
    _generate("penalties", max_tokens=60, seed=9, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2),
    _generate("bad words", max_tokens=60, seed=4, bad_words=["the", "little"]),
    Kind(
        "tools",
        {"input": "Weather in Oslo?", "background": True, "tools": [_TOOL], "tool_choice": "required", "seed": 5}
        | {"max_output_tokens": 60},
        path="/v1/responses",
    ),
)
