"""Adapters in llama.cpp's format answer like peft's folders."""

from pathlib import Path

import gguf
import pytest
import torch
from gguf_files import write_gguf
from tiny_adapters import merged, random_adapter
from tiny_models import greedy, save_model

from splitfuse.engine import LLM, LoRARequest, SamplingParams
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extras.lora.gguf_file import read_file

NAMES = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
    "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip


def write_adapter(path: Path, tensors: dict[str, torch.Tensor], *, alpha: float, num_heads: dict[str, int]) -> Path:
    """Write an adapter as llama.cpp's converter does: the rows of q and k are permuted, so are B's."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for key, tensor in tensors.items():
        layer, leaf, half = (key.split(".")[i] for i in (4, 6, 7))
        values = tensor
        if half == "lora_B" and leaf in num_heads:
            heads = num_heads[leaf]
            values = values.view(heads, 2, len(values) // heads // 2, -1).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(f"blk.{layer}.{NAMES[leaf]}.weight.{half.lower()}", values.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("base", ["safetensors", "gguf"])
def test_it_answers_like_the_merged_model(base: str, tmp_path: Path) -> None:
    name = "llama-gqa-tied"
    if base == "gguf":
        model, path = write_gguf(tmp_path / "model.gguf", name), tmp_path / "model.gguf"
    else:
        model, path = save_model(name, tmp_path / "model"), tmp_path / "model"
    tensors = random_adapter(model, seed=3, rank=4)
    heads = {"q_proj": 4, "k_proj": 2}
    adapter = write_adapter(tmp_path / "adapter.gguf", tensors, alpha=6.0, num_heads=heads)
    changed = merged(model, tensors, scale=1.5)
    prompts = [list(range(20, 90)), [5, 7, 9]]
    llm = LLM(str(path), dtype="float32", enable_lora=True)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    outputs = llm.generate(prompts, params, lora_request=LoRARequest("g", 1, str(adapter)))
    assert [list(o.outputs[0].token_ids) for o in outputs] == [greedy(changed, prompt, 12) for prompt in prompts]


def test_a_model_is_no_adapter(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "llama-gqa-tied")
    with pytest.raises(ConfigError, match="is no adapter"):
        read_file(tmp_path / "model.gguf")
    data = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "torn.gguf").write_bytes(data[: len(data) // 2])
    with pytest.raises(ConfigError, match=r"torn\.gguf"):
        read_file(tmp_path / "torn.gguf")
