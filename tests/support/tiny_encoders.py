"""Small random models that pool, made with transformers' own classes, and their files of sentence-transformers.

tiny_encoders.json has each model's config class, the base of its fields, and the fields that it has beside them.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tiny_models import byte_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoModel, AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel

_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text())
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    "max_position_embeddings",
)


def _configs(kind: str) -> dict[str, PretrainedConfig]:
    configs = {}
    for name, (class_name, base, fields) in _TABLES[kind].items():
        configs[name] = getattr(transformers, class_name)(**_TABLES["bases"][base] | fields)
    return configs


ENCODERS, DECODERS = _configs("encoders"), _configs("decoders")
# Configs that differ from the published ones; None: the sizes alone, so that all else is the class's default.
OTHER_CONFIGS: dict[str, list[dict[str, Any] | None]] = _TABLES["other configs"]
_CONFIGS = ENCODERS | DECODERS
PAIR_IDS = {"<bos>": 0, "<eos>": 1}


def save_pooled(
    name: str,
    folder: Path,
    *,
    num_labels: int = 0,
    changes: dict[str, Any] | None = None,
    is_bare: bool = False,
    **described: Any,
) -> PreTrainedModel:
    """Save a random embedder, or with `num_labels` a classifier, and return it. `described`: see `describe`.

    `changes`: other fields of the config. `is_bare`: config.json has the sizes alone.
    """
    torch.manual_seed(0)
    fields = _CONFIGS[name].to_dict()
    names = [*_SIZES, *["pad_token_id"] * (name == "modernbert")]  # the default is no token of a small vocabulary
    if is_bare:
        fields = {**{key: fields[key] for key in names}, "initializer_range": 0.2}
    labels = {"num_labels": num_labels} if num_labels else {}
    config = type(_CONFIGS[name])(**{**fields, **labels, **(changes or {})})
    model = (AutoModelForSequenceClassification if num_labels else AutoModel).from_config(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():  # biases and norms begin as zeros and ones
            if key.endswith("bias") or "norm" in key.lower():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    if is_bare:
        saved = json.loads((folder / "config.json").read_text())
        write(folder / "config.json", {key: saved[key] for key in (*names, "architectures", "model_type")})
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> $B:1 <eos>:1", special_tokens=list(PAIR_IDS.items())
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    if not num_labels:
        describe(folder, **described)
    return model


def describe(
    folder: Path,
    *,
    pooling: str = "mean",
    normalize: bool = True,
    dense: tuple[int, int] | None = None,
    prompts: dict[str, str] | None = None,
    default_prompt: str | None = None,
) -> None:
    """Write the files of sentence-transformers. `pooling`: mean, cls or lasttoken; `dense`: a matrix's sizes."""
    kinds = ["Transformer", "Pooling", *["Dense"] * bool(dense), *["Normalize"] * normalize]
    modules = [
        {"idx": index, "name": str(index), "path": f"{index}_{kind}" if index else "", "type": f"st.models.{kind}"}
        for index, kind in enumerate(kinds)
    ]
    write(folder / "modules.json", modules)
    modes = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}
    write(folder / "1_Pooling/config.json", {f"pooling_mode_{key}": mode == pooling for mode, key in modes.items()})
    write(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": default_prompt})
    if dense is not None:
        num_inputs, num_outputs = dense
        write(folder / "2_Dense/config.json", {"activation_function": "torch.nn.modules.linear.Identity"})
        torch.manual_seed(1)
        save_file({"linear.weight": torch.randn(num_outputs, num_inputs)}, folder / "2_Dense/model.safetensors")


def write(path: Path, value: Any) -> None:
    """Write JSON, in a folder that may not be there yet."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))
