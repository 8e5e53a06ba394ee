// Rotary angles of spec model 2.3.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace mimo {

// inv_freq[i] = theta^(-2i / dims), i < dims / 2, in fp32.
std::vector<float> inverse_frequencies(float theta, int dims);

// cos and sin [rows, dims / 2] of every row's absolute position. The angle is the fp32 product position *
// inv_freq, as the reference forms it; its cosine and sine are rounded once.
void fill_rotation(std::span<const SequenceRows> sequences, float theta, int dims, std::vector<float>& cos,
                   std::vector<float>& sin);

}  // namespace mimo
