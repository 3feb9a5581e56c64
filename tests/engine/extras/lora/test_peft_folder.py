"""Folders of peft: peft's own answers, and one line for each fault."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tables import table
from tiny_adapters import random_adapter, save_adapter
from tiny_models import greedy, make_model, save_model

from splitfuse.engine import LLM, LoRARequest, SamplingParams
from splitfuse.engine.errors import ConfigError, InvalidRequestError
from splitfuse.engine.extras.lora.adapters import Adapters
from splitfuse.engine.extras.lora.peft_folder import read_folder

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = list(range(20, 90))
Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("model")
    save_model("llama-gqa-tied", folder)
    return LLM(str(folder), dtype="float32", enable_lora=True, max_lora_rank=64)


@pytest.mark.parametrize(
    "fields",
    [
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 3, "layers.1.mlp.up_proj": 9}, "alpha_pattern": {"v_proj": 40}},
        {"layers_to_transform": [1]},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft's, of transformers
def test_it_answers_like_peft(fields: dict[str, Any], llm: LLM, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    targets = ["q_proj", "v_proj", "up_proj", "down_proj"]
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=targets, init_lora_weights=False, **fields)
    torch.manual_seed(1)
    model = peft.get_peft_model(make_model("llama-gqa-tied"), config)
    model.save_pretrained(tmp_path)
    expected = greedy(model.merge_and_unload(), PROMPT, 12)
    output = llm.generate(PROMPT, GREEDY, lora_request=LoRARequest(tmp_path.name, str(tmp_path)))
    assert list(output[0].outputs[0].token_ids) == expected


@pytest.mark.parametrize(("fields", "fault"), table(__file__, "not built"))
def test_fields_that_are_not_built_are_refused_by_name(
    fields: dict[str, Any], fault: str, llm: LLM, tmp_path: Path
) -> None:
    tensors = {
        name: torch.ones(2, 64) if "lora_A" in name else torch.ones(64, 2) for name in (Q, Q.replace("_A", "_B"))
    }
    with pytest.raises(ConfigError, match=fault.replace("(", r"\(")) as caught:
        read_folder(save_adapter(tmp_path, tensors, **fields))
    assert "\n" not in str(caught.value)


def test_a_pattern_that_backtracking_would_never_end_takes_no_time(llm: LLM, tmp_path: Path) -> None:
    tensors = {
        name: torch.ones(2, 64) if "lora_A" in name else torch.ones(64, 2) for name in (Q, Q.replace("_A", "_B"))
    }
    folder = save_adapter(
        tmp_path, tensors, alpha_pattern={r"(([a-z._0-9]*)*)*\$": 1, "v_proj|q_proj": 6}, lora_alpha=4
    )
    start = time.thread_time()
    (pair,) = read_folder(folder).pairs.values()
    assert pair.scale == 3
    assert time.thread_time() - start < 0.5


def damage(kind: str, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    weights = folder / "adapter_model.safetensors"
    if kind == "torn":
        weights.write_bytes(weights.read_bytes()[:-9])
    elif kind == "pickle":
        weights.rename(folder / "adapter_model.bin")
    elif kind == "alpha 1e308":
        save_adapter(folder, tensors, lora_alpha=1e308)
    elif kind.startswith("pipe"):
        pipe = folder / "adapter_config.json" if kind == "pipe as config" else weights
        pipe.unlink()
        os.mkfifo(pipe)
    elif kind == "no config":
        (folder / "adapter_config.json").unlink()
    elif kind == "bad config":
        (folder / "adapter_config.json").write_text("[" * 100_000)
    else:
        a, b = tensors[Q], tensors[Q.replace("_A", "_B")]
        changed = {
            "half": {name: tensor for name, tensor in tensors.items() if name != Q},
            "empty": {},
            "nan": tensors | {Q: a * float("nan")},
            "other model": tensors | {Q: torch.ones(8, 32)},
            "ranks": tensors | {Q: torch.ones(7, 64)},
            "large rank": tensors | {Q: torch.ones(65, 64), Q.replace("_A", "_B"): torch.ones(len(b), 65)},
            "head": {name.replace("model.layers.0.self_attn.q_proj", "lm_head"): t for name, t in tensors.items()},
            "1e300": tensors | {Q: a.double() * 1e300},
            "3e38": tensors | {Q: torch.full_like(a, 3e38)},
            "0-d": tensors | {Q: torch.tensor(1.0)},
            "bias": tensors | {Q.replace("lora_A.weight", "bias"): torch.ones(64)},
        }[kind]
        save_file(changed, weights)


@pytest.mark.parametrize(("kind", "fault"), table(__file__, "damages"))
def test_a_damaged_adapter_is_one_line_and_changes_nothing(kind: str, fault: str, llm: LLM, tmp_path: Path) -> None:
    before = llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids
    folder = save_adapter(tmp_path, random_adapter(make_model("llama-gqa-tied"), seed=1))
    damage(kind, folder, load_file(folder / "adapter_model.safetensors"))
    with pytest.raises(InvalidRequestError, match=fault) as caught:
        llm.generate(PROMPT, GREEDY, lora_request=LoRARequest(f"bad {kind}", 1, str(folder)))
    assert "\n" not in str(caught.value)
    assert not llm.engine.part(Adapters).has(f"bad {kind}")
    assert llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids == before


def test_files_that_change_are_noticed(llm: LLM, tmp_path: Path) -> None:
    model = make_model("llama-gqa-tied")
    request = LoRARequest("changing", 1, str(save_adapter(tmp_path / "a", random_adapter(model, seed=1))))
    llm.generate(PROMPT, GREEDY, lora_request=request)
    for seed in range(2, 12):  # it leaves memory
        path = save_adapter(tmp_path / str(seed), random_adapter(model, seed=seed))
        llm.generate(PROMPT, GREEDY, lora_request=LoRARequest(str(path), str(path)))
    save_adapter(tmp_path / "a", random_adapter(model, seed=20))
    with pytest.raises(InvalidRequestError, match="has changed since"):
        llm.generate(PROMPT, GREEDY, lora_request=request)


def test_requests_need_the_setting_and_a_request(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="must be a LoRARequest"):
        llm.generate(PROMPT, GREEDY, lora_request="a")
    with pytest.raises(InvalidRequestError, match="is not loaded; give its path"):
        llm.generate(PROMPT, GREEDY, lora_request=LoRARequest("nobody"))
