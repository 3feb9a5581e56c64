// Matmuls with bfloat16 weights on the CPU, from one row to a prompt's: one layout, read once, at memory speed.
//
// Layout, by the packer in linear.py: panels of PANEL outputs; in a panel, for each pair of neighbouring k, the
// pairs of its outputs.

#include "arguments.h"
#include "dense_panels.h"

extern "C" void linear(const Linear& a) {
    DensePanels<pair, bf16> weight{
        (const pair*)a.data, (const pair*)a.x, a.bias, a.out, a.num_outputs, a.num_inputs / 2, 0};
    multiply_panels(weight, a.num_rows, threads_for(a.num_rows * a.num_outputs * a.num_inputs, a.num_threads));
}
