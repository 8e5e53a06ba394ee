#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/host_ops.h"

namespace mimo {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

std::int32_t draw_token(std::span<const float> logits, const TokenDraw& draw) {
  std::vector<std::int32_t> order;  // ids with a finite logit, the most likely first
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (!(logits[id] < kInfinity)) return -1;
    if (logits[id] > -kInfinity) order.push_back(static_cast<std::int32_t>(id));
  }
  if (order.empty()) return -1;
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
  if (draw.inverse_temperature == 0) return order.front();

  const double largest = logit(order.front());
  const auto weight = [&](std::int32_t id) {
    return std::exp((static_cast<double>(logit(id)) - largest) * draw.inverse_temperature);
  };
  const auto last = std::find_if(order.begin(), order.end(), [&](std::int32_t id) {
    return static_cast<double>(logit(id)) < largest + draw.min_p_distance;
  });
  order.erase(last, order.end());
  if (draw.top_k > 0 && order.size() > static_cast<std::size_t>(draw.top_k)) {
    order.resize(static_cast<std::size_t>(draw.top_k));
  }
  const auto total = [&] {
    return std::accumulate(order.begin(), order.end(), 0.0,
                           [&](double sum, std::int32_t id) { return sum + weight(id); });
  };
  if (draw.top_p < 1) {
    const double target = draw.top_p * total();
    double sum = 0;
    std::size_t kept = 0;
    while (kept < order.size() && (kept == 0 || sum < target)) sum += weight(order[kept++]);
    order.resize(kept);
  }

  const double target = draw.uniform * total();
  std::sort(order.begin(), order.end());
  double sum = 0;
  std::int32_t chosen = order.front();
  for (const std::int32_t id : order) {
    if (sum > target) break;
    const double w = weight(id);
    if (w > 0) chosen = id;
    sum += w;
  }
  return chosen;
}

}  // namespace mimo
