"""`splitfuse bisect`: tokens by one pass of the second model, and the layer in which one weight was changed."""

import json
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file
from serving import ServerProcess
from tiny_models import save_model

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.errors import ConfigError
from splitfuse.server.commands.bisect import Score, bisect, first_difference, read_settings, recorded
from splitfuse.server.commands.command_line import run

FLOAT32 = {"dtype": "float32", "device": "cpu"}
LAYER = 1


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and the same with a changed weight in a layer."""
    folder = tmp_path_factory.mktemp("models")
    for name in "ab":
        save_model("llama-gqa-tied", folder / name)
    path = folder / "b" / "model.safetensors"
    tensors = load_file(path)
    tensors[f"model.layers.{LAYER}.mlp.down_proj.weight"] *= -1
    save_file(tensors, path, metadata={"format": "pt"})
    return folder / "a", folder / "b"


def test_the_token_and_the_layer_of_a_changed_weight(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    generate = LLM.generate

    def counted(self, prompts, params, **options):
        passes.append(len(prompts) if params.prompt_logprobs else 0)
        return generate(self, prompts, params, **options)

    monkeypatch.setattr(LLM, "generate", counted)
    report = bisect(*map(str, models), settings=[FLOAT32, FLOAT32], texts=["abc", "a b c", "zz"], max_tokens=12)
    assert passes == [0, 3], "the second model reads each answer in one pass, and generates nothing"
    first, layer = report["first"], report["layer"]
    assert layer["number"] == LAYER
    assert layer["differences"][:LAYER] == [0.0] * LAYER
    prompt = LLM(str(models[0]), **FLOAT32).get_tokenizer().encode(["abc", "a b c", "zz"][first["prompt"]])
    params = SamplingParams(temperature=0, max_tokens=12)
    ours, theirs = (LLM(str(model), **FLOAT32).generate([prompt], params)[0].outputs[0].token_ids for model in models)
    position = next(place for place, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    assert (first["position"], first["a_token_id"], first["b_token_id"]) == (position, ours[position], theirs[position])


def test_a_model_is_its_own_equal(models: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    same = [str(models[0])] * 2
    assert (
        run(
            ["bisect", *same, "--settings-a", "dtype=float32", "--settings-b", "dtype=float32", "-n", "8"],
            is_debug=False,
        )
        == 0
    )
    assert "8 of 8 answers of A" in capsys.readouterr().out


def test_a_server_is_compared_with_a_model(models: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    with ServerProcess(str(models[0]), "--dtype", "float32") as server:
        url = server.url
        arguments = ["bisect", url, str(models[1]), "--settings-b", "dtype=float32", "-n", "8", "--json"]
        assert run(arguments, is_debug=False) == 1
        report = json.loads(capsys.readouterr().out)
        assert report["first"] is not None
        assert report["layer"] is None
        assert run(["bisect", str(models[0]), url, "--settings-a", "dtype=float32", "-n", "8"], is_debug=False) == 0


def test_recorded_answers_are_compared_with_a_model(
    models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, greedy = tmp_path / "answers.jsonl", {"temperature": 0, "max_tokens": 8}
    with ServerProcess(str(models[0]), "--dtype", "float32") as server, httpx.Client(base_url=server.url) as client:
        bodies = [greedy | {"prompt": "abc", "return_token_ids": True}, greedy | {"prompt": "zz", "receipt": True}]
        answers = [
            client.post("/generate", json=body, headers={"Prefer": "wait=60"}, timeout=60).text for body in bodies
        ]
    file.write_text("\n".join(answers))
    of_b = ["--settings-b", "dtype=float32", "--json"]
    assert run(["bisect", str(file), str(models[0]), *of_b], is_debug=False) == 0
    assert json.loads(capsys.readouterr().out) | {"a": "", "b": ""} == {
        "a": "", "b": "", "prompts": 2, "tokens": 16, "equal": 2, "first": None, "layer": None
    }  # fmt: skip
    assert run(["bisect", str(file), str(models[1]), *of_b], is_debug=False) == 1
    report = json.loads(capsys.readouterr().out)
    live = bisect(*map(str, models), settings=[FLOAT32, FLOAT32], texts=["abc", "zz"], max_tokens=8)
    assert report["first"] == live["first"]
    for text in ("{}", "[1]", "no JSON", json.dumps({"request": {"temperature": 1, "top_k": 0}})):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"answers\.jsonl: "):
            recorded(file)


def test_the_earliest_difference_comes_first() -> None:
    good, other = Score(1, 5), Score(3, 9)
    found = first_difference([[5, 5, 5], [5, 5], [5]], [[good, good, other], [good, other], [good]])
    assert [(one.prompt, one.position, one.b_token_id, one.rank) for one in found] == [(1, 1, 9, 3), (0, 2, 9, 3)]


def test_settings_are_read_by_name() -> None:
    assert read_settings(["max-num-seqs=4", "dtype=float32"]) == {"max_num_seqs": 4, "dtype": "float32"}
    with pytest.raises(ConfigError, match="dtyp=x: settings are NAME=VALUE"):
        read_settings(["dtyp=x"])
