// Key/value memory of the oracle: fp32 floats that hold exactly what the declared storage type can represent.
#pragma once

#include <span>
#include <vector>

#include "ops/ops.h"

namespace mimo {

class ReferenceKv final : public KvStore {
 public:
  explicit ReferenceKv(const KvSpec& spec);

  std::size_t bytes() const override;
  void poison_page(std::int32_t page) override;
  // Keys, then values.
  std::size_t page_bytes() const override;
  void read_page(std::int32_t page, std::span<std::byte> out) const override;
  void write_page(std::int32_t page, std::span<const std::byte> in) override;

  // Stores one head's key [qk_dim] and value [v_dim] at an absolute position, rounded to the store's type.
  // FP8 uses one fp32 scale per (token, head) for K and one for V: max|x| / 448 (spec model 7, trap 37).
  void write(std::span<const std::int32_t> pages, std::int64_t position, int head, const float* key,
             const float* value);

  const float* key(std::span<const std::int32_t> pages, std::int64_t position, int head) const;
  const float* value(std::span<const std::int32_t> pages, std::int64_t position, int head) const;

 private:
  std::size_t key_floats() const;  // of a page
  std::size_t value_floats() const;
  std::size_t slot(std::span<const std::int32_t> pages, std::int64_t position, int head) const;

  std::vector<float> keys_;    // [pages, page_size, kv_heads, qk_dim]
  std::vector<float> values_;  // [pages, page_size, kv_heads, v_dim]
};

// Scale of an FP8 group: s = max(max|x|, 1e-10) / 448 (spec model 3.3).
float fp8_scale(const float* x, int count);

}  // namespace mimo
