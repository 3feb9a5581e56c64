"""Plain Llama for training on a CPU, with the weight names of a Hugging Face checkpoint."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, CONTEXT, ROPE_THETA = 4096, 2048, 10000.0
ATTENTION_CHUNK = 256  # queries per block; 8.0k tokens/s on one core, where torch's fused CPU attention gives 4.8k


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int = 64


SIZES = {"demo": Shape(6, 256, 688, 4, 2), "draft": Shape(4, 128, 344, 2, 1)}


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention of queries (rows, kv heads, group, tokens, head_dim), a block of queries at a time."""
    rows, kv_heads, group, tokens, width = q.shape
    outputs = []
    for start in range(0, tokens, ATTENTION_CHUNK):
        end = min(tokens, start + ATTENTION_CHUNK)
        block = (q[:, :, :, start:end] * width**-0.5).reshape(rows, kv_heads, -1, width)
        scores = (block @ k[:, :, :end].transpose(-1, -2)).view(rows, kv_heads, group, end - start, end)
        mask = torch.ones(end - start, end, dtype=torch.bool).triu(start + 1)
        weights = scores.masked_fill(mask, -torch.inf).softmax(-1).to(v.dtype).view(rows, kv_heads, -1, end)
        outputs.append((weights @ v[:, :, :end]).view(rows, kv_heads, group, end - start, width))
    return torch.cat(outputs, 3)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        kv_heads, width = self.shape.kv_heads, self.shape.head_dim
        q = self.q_proj(x).view(rows, tokens, kv_heads, -1, width).permute(0, 2, 3, 1, 4)
        k = self.k_proj(x).view(rows, tokens, kv_heads, width).transpose(1, 2)
        v = self.v_proj(x).view(rows, tokens, kv_heads, width).transpose(1, 2)
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        mixed = attend(rotate(q, cos, sin), rotate(k, cos, sin), v)
        out: Tensor = self.o_proj(mixed.permute(0, 3, 1, 2, 4).reshape(rows, tokens, -1))
        return out


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.down_proj = nn.Linear(shape.mlp, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=1e-5)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Llama(nn.Module):
    """Llama: ids (rows, tokens + 1) -> mean cross entropy of next tokens; the head shares the embedding's weight."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5)
        frequencies = ROPE_THETA ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        angles = torch.outer(torch.arange(CONTEXT), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * shape.layers) if residual else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x, tokens = self.embed_tokens(ids[:, :-1]), ids.shape[1] - 1
        cos, sin = self.get_buffer("cos")[:tokens], self.get_buffer("sin")[:tokens]
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = F.linear(self.norm(x), self.embed_tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
