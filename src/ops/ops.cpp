#include "ops/ops.h"

#include <algorithm>

#include "core/check.h"

namespace mimo {

const char* kv_dtype_name(KvDType dtype) {
  switch (dtype) {
    case KvDType::kF32:
      return "f32";
    case KvDType::kBF16:
      return "bf16";
    case KvDType::kFp8:
      return "fp8_e4m3";
  }
  return "?";
}

void KvStore::check_page(std::int32_t page, std::size_t bytes) const {
  MIMO_CHECK(page >= 0 && page < spec_.pages && bytes == page_bytes(), "page {} of {} as {} bytes of {}",
             page, spec_.pages, bytes, page_bytes());
}

Result<Vector> Ops::pack_vector(std::span<const float> values) {
  if (values.empty()) return Vector();
  Result<std::unique_ptr<Buffer>> memory = allocate(values.size_bytes());
  if (!memory) return forward_error(memory);
  upload((*memory)->data(), values.data(), values.size_bytes());
  return Vector(std::move(*memory), values.size());
}

bool Ops::best_linear(const Act* /*x*/, int /*rows*/, const Matrix& /*head*/, int /*count*/,
                      std::int32_t* /*ids*/, float* /*probabilities*/) {
  return false;
}

void Ops::draw_tokens(const float* /*logits*/, std::size_t /*row_width*/, int /*rows*/, int count,
                      const TokenDraw* /*draws*/, std::int32_t* /*ids*/) {
  MIMO_CHECK(draws_tokens(count), "{} does not draw one of {} tokens", name(), count);
}

void Ops::run(std::span<const std::int64_t> /*key*/, const std::function<void()>& body) { body(); }

KeyRange visible_keys(const AttentionSpec& spec, const SequenceRows& sequence, int row) {
  const std::int64_t position = sequence.position + row;
  const bool causal = spec.mask == MaskKind::kCausal;
  KeyRange keys;
  keys.first = sequence.first_key;
  if (spec.window > 0) {
    keys.first =
        std::max(keys.first, spec.window_start == WindowStart::kRow ? position - (spec.window - 1)
                                                                    : sequence.position - spec.window);
  }
  // The window is for the context: rows of the step see each other whatever its size.
  if (!causal) keys.first = std::min(keys.first, sequence.position);
  keys.last = causal ? position + 1 : sequence.position + sequence.rows;
  return keys;
}

}  // namespace mimo
