"""`splitfuse bisect A B`: the first token, and the first layer, at which two models or servers differ.

A answers greedily, or is a file of greedy answers; B reads each answer in one pass and says which of its tokens B would
have chosen. Nothing is generated twice, so B may be a hundred times slower than A.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ...engine.config import EngineConfig
from ...engine.errors import ConfigError
from ...engine.extension import load_extra

_TEXTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time there was",
    "Q: What is 17 + 25?\nA:",
    "The three laws of motion are",
    '{"name": "Ada", "born":',
    "Der schnellste Weg nach Hause",
    "1, 1, 2, 3, 5, 8,",
)


class Score(NamedTuple):
    """Place of an answer's token in a model's order, and the model's own choice."""

    rank: int
    token_id: int


class Local:
    """Model that is loaded into this process. `settings`: as EngineConfig's; `adapter`: folder of a LoRA."""

    def __init__(self, model: str, settings: Mapping[str, Any]) -> None:
        from ...engine import LLM

        self._adapter = settings.get("adapter")
        lora = {"enable_lora": True} if self._adapter else {}
        own = {name: value for name, value in settings.items() if name != "adapter"}
        self._llm = LLM(model, **own, **lora)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt."""
        return list(self._llm.get_tokenizer().encode(text))

    def answers(self, prompts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
        """Answer prompts greedily."""
        outputs = self._run(prompts, {"max_tokens": max_tokens})
        return [list(output.outputs[0].token_ids) for output in outputs]

    def scores(self, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> list[list[Score]]:
        """Score the tokens of answers, in one pass a prompt."""
        whole = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        outputs = self._run(whole, {"max_tokens": 1, "prompt_logprobs": 1})
        return [
            [Score(one.rank, one.top[0][0]) for one in list(output.prompt_logprobs)[len(prompt) :]]
            for prompt, output in zip(prompts, outputs, strict=True)
        ]

    def text(self, token_id: int) -> str:
        """Return a token's text; empty if it is not known."""
        return self._llm.tokenizer.decode([token_id], skip_special_tokens=False) if self._llm.tokenizer else ""

    def close(self) -> None:
        """Free what was opened."""
        self._llm.close()

    def _run(self, prompts: Sequence[list[int]], fields: Mapping[str, Any]) -> list[Any]:
        from ...engine import LoRARequest, SamplingParams

        lora = LoRARequest("b", 1, self._adapter) if self._adapter else None
        params = SamplingParams(temperature=0, **fields)
        return list(self._llm.generate(list(prompts), params, use_tqdm=False, lora_request=lora))


class Remote:
    """Running server of splitfuse, with the methods of Local."""

    def __init__(self, url: str, settings: Mapping[str, Any], api_key: str | None) -> None:
        from ...client import Client

        self._fields = {"model": settings["adapter"]} if "adapter" in settings else {}
        if unknown := sorted(settings.keys() - {"adapter"}):
            raise ConfigError(f"{unknown[0]} is a setting of {url}'s own; set it where that server starts")
        self._client = Client(url.rstrip("/").removesuffix("/v1"), api_key, timeout=600)

    def encode(self, text: str) -> list[int]:
        return self._client.tokenize(text)

    def answers(self, prompts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
        jobs = [self._client.submit(prompt, temperature=0, max_tokens=max_tokens, **self._fields) for prompt in prompts]
        return [job.result(wait=600).token_ids for job in jobs]

    def scores(self, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> list[list[Score]]:
        found = []
        for prompt, answer in zip(prompts, answers, strict=True):
            fields = {"temperature": 0, "max_tokens": 1, "prompt_logprobs": 1, **self._fields}
            result = self._client.generate(prompt + answer, **fields)
            places = zip(answer, result.prompt_logprobs[len(prompt) :], strict=True)
            found.append([_score(token_id, place) for token_id, place in places])
        return found

    def text(self, token_id: int) -> str:
        return ""

    def close(self) -> None:
        self._client.close()


def _score(token_id: int, place: Mapping[str, Mapping[str, Any]]) -> Score:
    best = next(own for own, entry in place.items() if entry["rank"] == 1)
    return Score(place[str(token_id)]["rank"], int(best))


def recorded(path: Path) -> tuple[list[list[int]], list[list[int]]]:
    """Read prompts and greedy answers from a file of receipts, or of results with token ids. Raises ConfigError."""
    prompts, answers = [], []
    try:
        text = path.read_text(encoding="utf-8")
        lines = [text] if path.suffix == ".json" else text.splitlines()
        for item in (json.loads(line) for line in lines if line.strip()):
            result = item.get("receipt") or item
            request = result.get("request", {"temperature": 0})
            if request["temperature"] and request["top_k"] != 1:
                raise ConfigError(f"{path}: an answer was sampled; bisect compares greedy answers, of temperature 0")
            for output in result["outputs"]:
                prompts.append(list(result["prompt_token_ids"]))
                answers.append(list(output["token_ids"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as exc:
        raise ConfigError(f"{path}: one answer a line, with its receipt or with return_token_ids ({exc!r})") from exc
    return prompts, answers


class Difference(NamedTuple):
    """First token at which B would have chosen another one."""

    prompt: int
    position: int
    a_token_id: int
    b_token_id: int
    rank: int  # of A's token, in B's order


def first_difference(answers: Sequence[list[int]], scores: Sequence[list[Score]]) -> list[Difference]:
    """Return the first difference of each answer that has one, earliest position first."""
    found = []
    for prompt, (answer, places) in enumerate(zip(answers, scores, strict=True)):
        for position, (token_id, score) in enumerate(zip(answer, places, strict=True)):
            if score.rank > 1:
                found.append(Difference(prompt, position, token_id, score.token_id, score.rank))
                break
    return sorted(found, key=lambda one: one.position)


def bisect(
    a: str,
    b: str,
    *,
    settings: Sequence[Mapping[str, Any]],
    texts: Sequence[str] = _TEXTS,
    max_tokens: int = 64,
    tolerance: float = 0.02,
    api_key: str | None = None,
) -> dict[str, Any]:
    """Compare A and B, whose settings are given in this order. Raises ConfigError."""
    sides = [  # models are loaded one after the other
        partial(Remote, name, own, api_key) if _is_url(name) else partial(Local, name, own)
        for name, own in zip((a, b), settings, strict=True)
    ]
    is_recorded = Path(a).suffix in (".json", ".jsonl")
    if is_recorded:
        prompts, answers = recorded(Path(a))
    else:
        first: Local | Remote = sides[0]()
        try:
            prompts = [first.encode(text) for text in texts]
            answers = first.answers(prompts, max_tokens)
        finally:
            first.close()
    second: Local | Remote = sides[1]()
    try:
        if not is_recorded and [second.encode(text) for text in texts] != prompts:
            raise ConfigError(f"{a} and {b} split texts into tokens differently; compare models of one tokenizer")
        differences = first_difference(answers, second.scores(prompts, answers))
        names = {token_id: second.text(token_id) for one in differences[:1] for token_id in one[2:4]}
    finally:
        second.close()
    report: dict[str, Any] = {
        "a": a,
        "b": b,
        "prompts": len(prompts),
        "tokens": sum(map(len, answers)),
        "equal": len(prompts) - len(differences),
        "first": None,
        "layer": None,
    }
    if differences:
        one = differences[0]
        report["first"] = {**one._asdict(), "a_text": names[one.a_token_id], "b_text": names[one.b_token_id]}
        if not is_recorded and not any(map(_is_url, (a, b))) and not any("adapter" in own for own in settings):
            compare = load_extra("bench.divergence", needed_for="bisect").first_layer
            token_ids = prompts[one.prompt] + answers[one.prompt][: one.position]
            report["layer"] = compare((a, b), settings, token_ids, tolerance=tolerance)
    return report


def _is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """Read NAME=VALUE of the engine's settings, or adapter=FOLDER. Raises ConfigError."""
    found: dict[str, Any] = {}
    for word in words:
        name, has_value, value = word.partition("=")
        name = name.lstrip("-").replace("-", "_")
        if not has_value or (name != "adapter" and name not in EngineConfig.__dataclass_fields__):
            raise ConfigError(f"{word}: settings are NAME=VALUE, as quantization=int8, or adapter=FOLDER")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def run(a: str, b: str, *, words: Sequence[Sequence[str]], prompts: Path | None, as_json: bool, **options: Any) -> int:
    """Print what `bisect` finds; 1 if A and B differ."""
    if prompts is not None:
        try:
            lines = [line for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeError) as exc:
            raise ConfigError(f"--prompts {prompts}: {exc}") from exc
        if not lines:
            raise ConfigError(f"--prompts {prompts}: a prompt a line")
        options["texts"] = lines
    report = bisect(a, b, settings=[read_settings(own) for own in words], **options)
    if as_json:
        print(json.dumps(report))
    else:
        print(*_lines(report), sep="\n")
    return int(report["first"] is not None)


def _lines(report: Mapping[str, Any]) -> list[str]:
    lines = [f"{report['equal']} of {report['prompts']} answers of A, {report['a']}, are those of B, {report['b']}"]
    if (first := report["first"]) is not None:
        lines.append(
            f"first difference: prompt {first['prompt']}, token {first['position']}: {first['a_token_id']} "
            f"{first['a_text']!r}, in B's order number {first['rank']}; B's choice is {first['b_token_id']} "
            f"{first['b_text']!r}"
        )
    if (layer := report["layer"]) is not None:
        lines.append(layer["text"])
    return lines
