"""Encoders in GGUF files: names of their tensors, and fields of their config.json. Imports no torch."""

from typing import Any

from .keys import Keys

_POOLING = {1: "MEAN", 2: "CLS", 3: "LAST"}  # values of pooling_type
BERT_NAMES = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk": "encoder.layer",
    **{f"attn_{part[0]}": f"attention.self.{part}" for part in ("query", "key", "value")},
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
    "cls": "classifier.dense",
    "cls.output": "classifier.out_proj",
}
NOMIC_NAMES = {
    **BERT_NAMES,
    "token_embd_norm": "emb_ln",
    "blk": "encoder.layers",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "attn_output_norm": "norm1",
    "ffn_up": "mlp.fc11",
    "ffn_gate": "mlp.fc12",
    "ffn_down": "mlp.fc2",
    "layer_output_norm": "norm2",
}
MODERN_NAMES = {
    "token_embd": "embeddings.tok_embeddings",
    "token_embd_norm": "embeddings.norm",
    "output_norm": "final_norm",
    "blk": "layers",
    "attn_norm": "attn_norm",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.Wo",
    "ffn_norm": "mlp_norm",
    "ffn_up": "mlp.Wi",
    "ffn_down": "mlp.Wo",
}


def _shared(keys: Keys) -> dict[str, Any]:
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
        **_shared(keys),
        "architectures": ["RobertaForSequenceClassification" if scores else "BertModel"],
        "max_position_embeddings": positions.shape[0] if positions else keys("context_length"),
        "pad_token_id": -1,  # RoBERTa's positions begin after that of the padding
        "num_labels": keys.file.tensors["cls.output.weight"].shape[0] if scores else None,
    }


def nomic_fields(keys: Keys) -> dict[str, Any]:
    """Return Nomic's fields: rotary positions."""
    return {
        **_shared(keys),
        "rope_parameters": {"rope_type": "default", "rope_theta": keys.number("rope.freq_base") or 1000.0},
        "hidden_act": "silu",
    }


def modern_fields(keys: Keys) -> dict[str, Any]:
    """Return ModernBERT's fields: windows in two layers of three, and two rotations."""
    return {
        **_shared(keys),
        "norm_eps": keys.number("attention.layer_norm_epsilon"),
        "local_attention": keys("attention.sliding_window"),
        "global_rope_theta": keys.number("rope.freq_base") or 160_000.0,
        "local_rope_theta": keys.number("rope.freq_base_swa") or 10_000.0,
        "rope_theta": None,
        "partial_rotary_factor": None,
    }
