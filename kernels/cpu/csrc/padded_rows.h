// Rows of a product, padded and converted for its inner loop.
#pragma once

#include <type_traits>

#include "simd.h"
#include "team.h"

// x [rows, inputs] as type To, each row padded with zeros to `padded` inputs. Returns x itself if it has this form.
template <typename To, typename T>
const To* padded_rows(const T* x, int64_t num_rows, int64_t num_inputs, int64_t padded, const Team& team) {
    if constexpr (std::is_same<To, T>::value)
        if (padded == num_inputs) return x;
    To* rows = (To*)team.share(num_rows * padded * sizeof(To));
    team.each(num_rows, [&](int64_t row) {
        for (int64_t k = 0; k < padded; k++)
            store_one(rows + row * padded + k, k < num_inputs ? to_float(x[row * num_inputs + k]) : 0.0f);
    });
    team.barrier();
    return rows;
}
