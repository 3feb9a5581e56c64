"""`splitfuse bisect A B`: the first token, and the first layer, at which two models or servers differ.

A answers greedily, or is a file of greedy answers; B reads each answer in one pass and says which of its tokens B would
have chosen. Nothing is generated twice, so B may be a hundred times slower than A.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
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
        from ...engine import LLM, LoRARequest

        own = dict(settings)
        folder = own.pop("adapter", None)
        self._lora = LoRARequest("b", 1, folder) if folder else None
        self._llm = LLM(model, **own, **({"enable_lora": True} if folder else {}))
        self.close = self._llm.close

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt."""
        return list(self._llm.get_tokenizer().encode(text))

    def answers(self, prompts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
        """Answer prompts greedily."""
        return [list(output.outputs[0].token_ids) for output in self._run(prompts, max_tokens=max_tokens)]

    def scores(self, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> list[list[Score]]:
        """Score the tokens of answers, in one pass a prompt."""
        whole = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        outputs = zip(prompts, self._run(whole, max_tokens=1, prompt_logprobs=1), strict=True)
        return [[Score(one.rank, one.top[0][0]) for one in [*out.prompt_logprobs][len(own) :]] for own, out in outputs]

    def text(self, token_id: int) -> str:
        """Return a token's text; empty if it is not known."""
        return self._llm.tokenizer.decode([token_id], skip_special_tokens=False) if self._llm.tokenizer else ""

    def _run(self, prompts: Sequence[list[int]], **fields: Any) -> list[Any]:
        from ...engine import SamplingParams

        params = SamplingParams(temperature=0, **fields)
        return list(self._llm.generate(list(prompts), params, use_tqdm=False, lora_request=self._lora))


class Remote:
    """Running server of splitfuse, with the methods of Local."""

    def __init__(self, url: str, settings: Mapping[str, Any], api_key: str | None) -> None:
        from ...client import Client

        self._fields = {"temperature": 0, **({"model": settings["adapter"]} if "adapter" in settings else {})}
        if unknown := sorted(settings.keys() - {"adapter"}):
            raise ConfigError(f"{unknown[0]} is a setting of {url}'s own; set it where that server starts")
        self._client = Client(url.rstrip("/").removesuffix("/v1"), api_key, timeout=600)
        self.encode, self.close = self._client.tokenize, self._client.close

    def answers(self, prompts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
        jobs = [self._client.submit(prompt, max_tokens=max_tokens, **self._fields) for prompt in prompts]
        return [job.result(wait=600).token_ids for job in jobs]

    def scores(self, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> list[list[Score]]:
        fields = {"max_tokens": 1, "prompt_logprobs": 1, **self._fields}
        found = []
        for prompt, answer in zip(prompts, answers, strict=True):
            places = self._client.generate(prompt + answer, **fields).prompt_logprobs[len(prompt) :]
            found.append([_score(token_id, place) for token_id, place in zip(answer, places, strict=True)])
        return found

    def text(self, token_id: int) -> str:
        return ""


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
    found = [
        Difference(number, position, token_id, score.token_id, score.rank)
        for number, places in enumerate(scores)
        for position, (token_id, score) in enumerate(zip(answers[number], places, strict=True))
        if score.rank > 1
    ]
    first = {one.prompt: one for one in reversed(found)}
    return sorted(first.values(), key=lambda one: (one.position, one.prompt))


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
    is_recorded, report = Path(a).suffix in (".json", ".jsonl"), {"a": a, "b": b}
    if is_recorded:
        prompts, answers = recorded(Path(a))
    else:
        with closing(_opened(a, settings[0], api_key)) as first:  # models are loaded one after the other
            prompts = [first.encode(text) for text in texts]
            answers = first.answers(prompts, max_tokens)
    with closing(_opened(b, settings[1], api_key)) as second:
        if not is_recorded and [second.encode(text) for text in texts] != prompts:
            raise ConfigError(f"{a} and {b} split texts into tokens differently; compare models of one tokenizer")
        differences = first_difference(answers, second.scores(prompts, answers))
        one = next(iter(differences), None)
        texts_of = {} if one is None else {"a_text": second.text(one.a_token_id), "b_text": second.text(one.b_token_id)}
    layer = None
    if one and not (is_recorded or any(map(_is_url, (a, b))) or any("adapter" in own for own in settings)):
        compare = load_extra("bench.divergence", needed_for="bisect").first_layer
        token_ids = prompts[one.prompt] + answers[one.prompt][: one.position]
        layer = compare((a, b), settings, token_ids, tolerance=tolerance)
    return report | {
        "prompts": len(prompts),
        "tokens": sum(map(len, answers)),
        "equal": len(prompts) - len(differences),
        "first": one and {**one._asdict(), **texts_of},
        "layer": layer,
    }


def _opened(name: str, settings: Mapping[str, Any], api_key: str | None) -> Any:
    return Remote(name, settings, api_key) if _is_url(name) else Local(name, settings)


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


def run(
    a: str, b: str, *, settings_a: Any, settings_b: Any, prompts: Path | None, as_json: bool, **options: Any
) -> int:
    """Print what `bisect` finds; 1 if A and B differ."""
    if prompts is not None:
        try:
            options["texts"] = [line for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeError) as exc:
            raise ConfigError(f"--prompts {prompts}: {exc}") from exc
        if not options["texts"]:
            raise ConfigError(f"--prompts {prompts}: a prompt a line")
    report = bisect(a, b, settings=[*map(read_settings, (settings_a, settings_b))], **options)
    print(json.dumps(report) if as_json else "\n".join(_lines(**report)))
    return int(report["first"] is not None)


def _lines(a: str, b: str, prompts: int, equal: int, first: Any, layer: Any, **_: Any) -> Iterator[str]:
    yield f"{equal} of {prompts} answers of A, {a}, are those of B, {b}"
    if first is not None:
        yield (
            "first difference: prompt {prompt}, token {position}: {a_token_id} {a_text!r}, in B's order number {rank}; "
            "B's choice is {b_token_id} {b_text!r}"
        ).format(**first)
    if layer is not None:
        yield layer["text"]
