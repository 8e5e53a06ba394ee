#include "model/attention_shape.h"

#include <cmath>

namespace mimo {

AttentionSpec attention_spec(const AttentionShape& shape, const Vector& sinks) {
  AttentionSpec spec;
  spec.q_heads = shape.q_heads;
  spec.kv_heads = shape.kv_heads;
  spec.qk_dim = shape.qk_dim;
  spec.v_dim = shape.v_dim;
  spec.window = shape.window;
  spec.scale = 1.0f / std::sqrt(static_cast<float>(shape.qk_dim));
  if (!sinks.empty()) spec.sinks = &sinks;
  return spec;
}

std::size_t qkv_width(const AttentionShape& shape) {
  return static_cast<std::size_t>((shape.q_heads + shape.kv_heads) * shape.qk_dim +
                                  shape.kv_heads * shape.v_dim);
}

}  // namespace mimo
