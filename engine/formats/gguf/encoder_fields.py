"""Fields of config.json that encoders need, from a GGUF's metadata. Imports no torch."""

from typing import Any

from .keys import Keys

_POOLING = {1: "MEAN", 2: "CLS", 3: "LAST"}  # values of pooling_type


def encoder_fields(keys: Keys) -> dict[str, Any]:
    """Return the fields of all encoders."""
    types = keys.file.tensors.get("token_types.weight")
    return {
        "layer_norm_eps": keys.number("attention.layer_norm_epsilon"),
        "type_vocab_size": types.shape[0] if types else 1,
        "pooling_type": _POOLING.get(keys("pooling_type")),
    }


def bert_fields(keys: Keys) -> dict[str, Any]:
    """Return BERT's fields. A RoBERTa is one, too: the converter cuts the positions that no token has."""
    positions = keys.file.tensors.get("position_embd.weight")
    scores = "cls.output.weight" in keys.file.tensors
    return {
        "architectures": ["RobertaForSequenceClassification" if scores else "BertModel"],
        "max_position_embeddings": positions.shape[0] if positions else keys("context_length"),
        "pad_token_id": -1,  # RoBERTa's positions begin after that of the padding
        "num_labels": keys.file.tensors["cls.output.weight"].shape[0] if scores else None,
    }


def nomic_fields(keys: Keys) -> dict[str, Any]:
    """Return Nomic's fields: rotary positions."""
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": keys.number("rope.freq_base") or 1000.0},
        "hidden_act": "silu",
    }


def modern_fields(keys: Keys) -> dict[str, Any]:
    """Return ModernBERT's fields: windows in two layers of three, and two rotations."""
    return {
        "global_rope_theta": keys.number("rope.freq_base") or 160_000.0,
        "local_rope_theta": keys.number("rope.freq_base_swa") or 10_000.0,
    }
