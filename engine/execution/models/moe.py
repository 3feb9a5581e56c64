"""SparseDecoder: some MLPs are mixtures of experts, whose router sends each token to a few of many small MLPs.

A checkpoint has one tensor per expert's matrix, under the family's own names, or, like transformers 5 in memory, one
tensor for all experts of a layer. Both load, one expert at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_int, positive_number
from .decoder import Decoder
from .forward_inputs import Inputs
from .kv_cache import KVCache
from .tensor_parallel import SINGLE_RANK, TensorParallel, take_rows


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """Experts of a model: the layers that have them, their number, and how many of them process a token."""

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int  # inner width of one expert
    norm_topk_prob: bool  # True if the chosen experts' weights are scaled to sum to 1
    layers: frozenset[int]  # layers with experts; the other layers have a plain MLP
    num_groups: int = 1
    num_kept_groups: int = 1
    scale: float = 1.0  # factor of the experts' weights

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "ExpertsConfig":
        """Read the fields under Qwen's keys. Raises ConfigError."""
        num_experts, num_chosen = positive_int(fields, "num_experts"), positive_int(fields, "num_experts_per_tok")
        if num_chosen > num_experts:
            raise ConfigError(f"num_experts_per_tok {num_chosen} is more than the {num_experts} experts there are")
        step, plain = positive_int(fields, "decoder_sparse_step", 1), fields.get("mlp_only_layers") or ()
        layers = range(positive_int(fields, "num_hidden_layers"))
        return cls(
            num_experts=num_experts,
            num_experts_per_tok=num_chosen,
            intermediate_size=positive_int(fields, "moe_intermediate_size"),
            norm_topk_prob=bool(fields["norm_topk_prob"]),
            layers=frozenset(layer for layer in layers if layer not in plain and (layer + 1) % step == 0),
            **_groups(fields, num_experts, num_chosen),
            scale=positive_number(fields, "routed_scaling_factor", 1.0),
        )


def _groups(fields: Mapping[str, Any], num_experts: int, num_chosen: int) -> dict[str, int]:
    groups, kept = positive_int(fields, "n_group", 1), positive_int(fields, "topk_group", 1)
    if num_experts % groups or kept > groups or (groups > 1 and num_experts // groups < 2):
        raise ConfigError(f"n_group {groups} and topk_group {kept} do not divide {num_experts} experts into groups")
    if num_chosen > num_experts // groups * kept:
        raise ConfigError(f"num_experts_per_tok {num_chosen} is more than the experts of {kept} of {groups} groups")
    return {"num_groups": groups, "num_kept_groups": kept}


@dataclass(slots=True)
class StepSlots:
    """Slots of the running step's tokens; tokens of slot -1 only pad a CUDA graph."""

    mapping: Tensor | None = None  # [T] int64


@dataclass(frozen=True, slots=True)
class SparseMLP:
    """Σ weight · MLP over the experts that the router finds likeliest (Shazeer et al. 2017; Fedus et al. 2021)."""

    router: Any  # packed by `ops.pack_linear`; its logits have the model's dtype, their softmax float32
    experts: Sequence[Any]  # packed by `ops.pack_experts`, one entry for each of this rank's slices
    routing: ops.RouteArgs
    slots: StepSlots
    parallel: TensorParallel = SINGLE_RANK

    def __call__(self, x: Tensor) -> Tensor:
        if not len(x):
            return x  # no token of the step needs logits
        weights, expert_ids = self.route(x)
        return self.parallel.sum([ops.experts(x, weights, expert_ids, packed) for packed in self.experts])

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Choose experts for x [T, H] as `ops.route` does."""
        return ops.route(ops.linear(x, self.router), self.routing, self.slots.mapping)


@dataclass(frozen=True, slots=True)
class SharedExpertMLP:
    """MLP with a shared expert that processes every token: sparse(x) + sigmoid(gate · x) · shared(x)."""

    sparse: SparseMLP
    shared: Callable[[Tensor], Tensor]
    gate: Any = None  # matrix of one output, packed by `ops.pack_linear`; None: the shared expert counts in full

    def __call__(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.sparse(x) + self.shared(x)
        return ops.add_gated(self.sparse(x), ops.linear(x, self.gate), self.shared(x))


class SparseDecoder(Decoder):
    """Decoder with experts. A family's normalize_config has the fields of ExpertsConfig under Qwen's keys."""

    sparse_block: ClassVar[str] = "mlp"  # the mixture's name within its layer
    expert_names: ClassVar[tuple[str, str, str]] = ("gate_proj", "up_proj", "down_proj")
    router_name: ClassVar[str] = "gate"  # within the mixture
    unrounded: ClassVar[tuple[str, ...]] = (
        "gate.weight",
        "gate.wg.weight",
        "router.layer.weight",
        "router.weight",
    )  # small, and they decide
    has_fused_form: ClassVar[bool] = True  # True if transformers' form in memory is read in this class's way
    expert_activations: ClassVar[tuple[str, ...]] = ("silu", "swish")
    routes_by_sigmoid: ClassVar[bool] = False
    routing_bias: ClassVar[str] = ""  # name of the bias within the mixture; "": none

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
        if fields.get("hidden_act", "silu") not in cls.expert_activations:
            known = cls.expert_activations[0]
            raise ConfigError(f"hidden_act {fields['hidden_act']!r} is not known for experts; known: {known}")
        # transformers 5 writes num_local_experts for all families.
        fields["num_experts"] = fields.get("num_local_experts") or fields.get("num_experts")
        return {**fields, "experts": cls._experts_config(fields)}

    @classmethod
    def _experts_config(cls, fields: Mapping[str, Any]) -> ExpertsConfig | None:
        """Read the experts; None if the model has none. Raises ConfigError."""
        return ExpertsConfig.from_fields(fields)

    def _load(self) -> None:
        self._slots = StepSlots()
        super()._load()

    def forward(self, inputs: Inputs, kv_cache: KVCache) -> Tensor:
        self._slots.mapping = inputs.slot_mapping
        return super().forward(inputs, kv_cache)

    def _load_mlp(self, index: int) -> Callable[[Tensor], Tensor]:
        config: ExpertsConfig = self.config.hf_config["experts"]
        if index not in config.layers:
            return super()._load_mlp(index)
        sparse, shared = self._load_sparse_mlp(index, config), self._load_shared_expert(index)
        return sparse if shared is None else SharedExpertMLP(sparse, shared, self._load_shared_gate(index))

    def _load_shared_expert(self, index: int) -> Callable[[Tensor], Tensor] | None:
        """Return the expert that processes every token; None if there is none."""
        return None

    def _load_shared_gate(self, index: int) -> Any:
        """Return the packed gate of the shared expert; None if there is none."""
        return None

    def _load_sparse_mlp(self, index: int, config: ExpertsConfig) -> SparseMLP:
        layer = self._layer_name(index)
        block, fused = f"{layer}.{self.sparse_block}", f"{layer}.mlp"
        first = f"{block}.experts.0.{self.expert_names[0]}.weight"
        is_fused = self.has_fused_form and self._source.has(f"{fused}.experts.gate_up_proj")
        is_fused = is_fused and not self._source.has(first)
        router = f"{fused if is_fused else block}.{self.router_name}"
        take = partial(self._fused_experts, fused, config) if is_fused else partial(self._experts, block, config)
        return SparseMLP(
            router=self._small_linear(router, config.num_experts, self._router_bias(router, config.num_experts)),
            experts=self._pack_experts(take, config),
            routing=self._load_routing(block, config),
            slots=self._slots,
            parallel=self._parallel,
        )

    def _pack_experts(self, take: Callable[[], Iterator[ops.ExpertWeights]], config: ExpertsConfig) -> list[Any]:
        return [
            ops.pack_experts(
                self._cut(take(), rows),
                num_experts=config.num_experts,
                dtype=self._dtype,
                device=self._device,
                bits=self._weight_bits,
                input_bits=self._input_bits[True],
                is_fp8=self._has_fp8_weights,
                args=self._expert_args(),
            )
            for rows in self._parallel.slices(config.intermediate_size)
        ]

    def _small_linear(self, name: str, num_outputs: int, bias: Tensor | None = None) -> Any:
        """Return a packed matrix that is `unrounded`."""
        weight = self._take_weight(f"{name}.weight", num_outputs, self.config.hidden_size)
        return ops.pack_linear(weight, bias) if isinstance(weight, Tensor) else self._pack_quantized([weight], bias)

    def _router_bias(self, router: str, num_experts: int) -> Tensor | None:
        return None

    def _expert_args(self) -> ops.ExpertArgs:
        return ops.ExpertArgs()

    def _load_routing(self, block: str, config: ExpertsConfig) -> ops.RouteArgs:
        bias = self._take(f"{block}.{self.routing_bias}", config.num_experts).float() if self.routing_bias else None
        return ops.RouteArgs(
            top_k=config.num_experts_per_tok,
            renormalize=config.norm_topk_prob,
            is_sigmoid=self.routes_by_sigmoid,
            bias=bias,
            num_groups=config.num_groups,
            num_kept_groups=config.num_kept_groups,
            scale=config.scale,
        )

    def _experts(self, block: str, config: ExpertsConfig) -> Iterator[ops.ExpertWeights]:
        gate, up, down = self.expert_names
        hidden, inner = self.config.hidden_size, config.intermediate_size
        for expert in range(config.num_experts):
            name = f"{block}.experts.{expert}"
            halves = [self._take_weight(f"{name}.{half}.weight", inner, hidden) for half in (gate, up)]
            yield ops.ExpertWeights(halves, self._take_weight(f"{name}.{down}.weight", hidden, inner))

    def _fused_experts(self, block: str, config: ExpertsConfig) -> Iterator[ops.ExpertWeights]:
        names = (f"{block}.experts.gate_up_proj", f"{block}.experts.down_proj")
        return self._experts_of_one_tensor(*names, config)

    def _experts_of_one_tensor(self, gate_up: str, down: str, config: ExpertsConfig) -> Iterator[ops.ExpertWeights]:
        hidden, inner = self.config.hidden_size, config.intermediate_size
        pairs = zip(
            self._take(gate_up, config.num_experts, 2 * inner, hidden),
            self._take(down, config.num_experts, hidden, inner),
            strict=True,
        )
        yield from (ops.ExpertWeights(pair[0].chunk(2), pair[1]) for pair in pairs)

    def _cut(self, experts: Iterator[ops.ExpertWeights], inner: slice) -> Iterator[ops.ExpertWeights]:
        """Yield each expert, cut to this part of the inner dimension."""
        if self._parallel.is_whole:
            yield from experts
            return
        rounded = partial(ops.rounded, bits=self._weight_bits, is_fp8=self._has_fp8_weights)
        for gate_up, down, gate_up_bias, down_bias in experts:
            halves = [part for half in map(rounded, gate_up) for part in take_rows(half, [inner])]
            whole = rounded(down)
            yield ops.ExpertWeights(
                halves,
                whole[:, inner] if isinstance(whole, Tensor) else whole.columns(inner),
                None if gate_up_bias is None else torch.cat([half[inner] for half in gate_up_bias.chunk(2)]),
                down_bias if inner.start == 0 else None,  # one term of the sum has the bias
            )
