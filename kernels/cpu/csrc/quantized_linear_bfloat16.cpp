// quantized_linear.h for bfloat16.

#include "quantized_linear.h"

extern "C" {

void quantized_linear_bfloat16(const QuantizedLinear<bf16>& a, const Team* team) { multiply(a, team); }
void grouped_quantized_linear_bfloat16(const GroupedQuantizedLinear<bf16>& a, const Team* team) { multiply_groups(a, team); }
void quantized_embedding_bfloat16(const QuantizedEmbedding<bf16>& a, const Team* team) { embed(a, team); }

}
