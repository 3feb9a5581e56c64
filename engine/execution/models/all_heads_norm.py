"""AllHeadsNormDecoder: base of families whose query heads share one norm, and whose key heads share another."""

from dataclasses import replace

from .decoder import Decoder
from .layers import AllHeadsNorm, Attention, RMSNorm, SpreadHeadsNorm


class AllHeadsNormDecoder(Decoder):
    """Decoder with q_norm and k_norm over all heads of a token together."""

    def _load_attention(self, index: int) -> Attention:
        config, name = self.config, f"{self._layer_name(index)}.self_attn"
        sizes = {"q_norm": config.num_heads * config.head_dim, "k_norm": config.num_kv_heads * config.head_dim}
        q_norm, k_norm = (
            AllHeadsNorm(RMSNorm(self._norm_weight(f"{name}.{norm}", size), config.norm_eps))
            for norm, size in sizes.items()
        )
        attention, parallel = super()._load_attention(index), self._parallel
        if parallel.size == 1:
            return replace(attention, qk_norms=(q_norm, k_norm))
        own_kv = parallel.kv_heads(config.num_kv_heads)
        spread_q = SpreadHeadsNorm(q_norm, parallel, config.num_heads, parallel.share(config.num_heads))
        return replace(attention, qk_norms=(spread_q, SpreadHeadsNorm(k_norm, parallel, config.num_kv_heads, own_kv)))
