#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/ops.h"

namespace mimo {

void choose_experts(std::span<const float> logits, const RouteSpec& spec, std::span<const float> bias,
                    std::span<std::int32_t> ids, std::span<float> weights) {
  const std::size_t experts = logits.size();
  const std::size_t top_k = ids.size();
  // Scores of the choice; kept on the stack of small vectors since this runs once a token and layer.
  thread_local std::vector<float> score;
  thread_local std::vector<float> biased;
  score.resize(experts);
  biased.resize(experts);
  for (std::size_t e = 0; e < experts; ++e) {
    score[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    biased[e] = score[e] + (bias.empty() ? 0.0f : bias[e]);
    if (!std::isfinite(biased[e])) biased[e] = -std::numeric_limits<float>::infinity();
  }
  // top_k is at most a dozen: repeated scans beat a heap. Strict comparison keeps the lower id on ties; a NaN marks
  // what was taken, since it compares false and `biased` holds none by now.
  for (std::size_t k = 0; k < top_k; ++k) {
    std::size_t best = 0;
    while (std::isnan(biased[best])) ++best;
    for (std::size_t e = best + 1; e < experts; ++e) {
      if (biased[e] > biased[best]) best = e;
    }
    biased[best] = std::numeric_limits<float>::quiet_NaN();
    ids[k] = static_cast<std::int32_t>(best);
  }
  std::sort(ids.begin(), ids.end());
  float sum = 0.0f;
  for (std::size_t k = 0; k < top_k; ++k) {
    weights[k] = score[static_cast<std::size_t>(ids[k])];
    sum += weights[k];
  }
  for (float& weight : weights) {
    if (spec.normalize) weight /= sum + 1e-20f;
    weight *= spec.scale;
  }
}

}  // namespace mimo
