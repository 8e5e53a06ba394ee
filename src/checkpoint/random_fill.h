// Fast deterministic weights of the right statistics, written straight in the stored formats.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/tensor_table.h"

namespace mimo {

// One tensor to fill; `out` is tensor.bytes() long and aligned for the dtype. `fan_in` is the logical width
// of the matrix the tensor belongs to (a scale tensor: of its weight).
struct FillJob {
  const ExpectedTensor* tensor = nullptr;
  std::int64_t fan_in = 0;
  std::uint8_t* out = nullptr;
};

// Name of the one vector that is an embedding: a drafter's mask.
inline constexpr std::string_view kMaskEmbedding = "mask_embedding";

// Matrices ~ N(0, 1/fan_in), embeddings ~ N(0, 1), norms near 1, sinks ~ N(0, 1), router bias ~ N(0, 0.01^2).
// The bytes depend only on (seed, tensor name), not on the number of threads. No NaN code occurs.
void fill_random(std::span<const FillJob> jobs, std::uint64_t seed, int threads);

}  // namespace mimo
