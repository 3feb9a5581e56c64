// quantized_linear.h for floats.

#include "quantized_linear.h"

extern "C" {

void quantized_linear_float32(const QuantizedLinear<float>& a, const Team* team) { multiply(a, team); }
void grouped_quantized_linear_float32(const GroupedQuantizedLinear<float>& a, const Team* team) { multiply_groups(a, team); }
void quantized_embedding_float32(const QuantizedEmbedding<float>& a, const Team* team) { embed(a, team); }

}
