#include "ops/rotation.h"

#include <cmath>

namespace mimo {

std::vector<float> inverse_frequencies(float theta, int dims) {
  std::vector<float> result(static_cast<std::size_t>(dims / 2));
  for (std::size_t i = 0; i < result.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
    result[i] = 1.0f / std::pow(theta, exponent);
  }
  return result;
}

void fill_rotation(std::span<const SequenceRows> sequences, float theta, int dims, std::vector<float>& cos,
                   std::vector<float>& sin) {
  const std::vector<float> frequencies = inverse_frequencies(theta, dims);
  std::size_t rows = 0;
  for (const SequenceRows& sequence : sequences) rows += static_cast<std::size_t>(sequence.rows);
  cos.resize(rows * frequencies.size());
  sin.resize(rows * frequencies.size());
  for (const SequenceRows& sequence : sequences) {
    for (int r = 0; r < sequence.rows; ++r) {
      const auto position = static_cast<float>(sequence.position + r);
      const std::size_t at = static_cast<std::size_t>(sequence.row_begin + r) * frequencies.size();
      for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const float angle = position * frequencies[i];
        cos[at + i] = std::cos(angle);
        sin[at + i] = std::sin(angle);
      }
    }
  }
}

}  // namespace mimo
