#include "ops/reference/reference_kv.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "core/number_formats.h"

namespace mimo {
namespace {

void round_to(KvDType dtype, const float* in, int count, float* out) {
  switch (dtype) {
    case KvDType::kF32:
      std::copy(in, in + count, out);
      return;
    case KvDType::kBF16:
      std::transform(in, in + count, out, round_to_bf16);
      return;
    case KvDType::kFp8: {
      const float scale = fp8_scale(in, count);
      for (int i = 0; i < count; ++i) out[i] = e4m3_to_float(float_to_e4m3(in[i] / scale)) * scale;
      return;
    }
  }
}

}  // namespace

float fp8_scale(const float* x, int count) {
  float top = 1e-10f;
  for (int i = 0; i < count; ++i) top = std::max(top, std::fabs(x[i]));
  return top / 448.0f;
}

ReferenceKv::ReferenceKv(const KvSpec& spec) : KvStore(spec) {
  const auto slots = static_cast<std::size_t>(spec.pages * spec.page_size * spec.kv_heads);
  keys_.resize(slots * static_cast<std::size_t>(spec.qk_dim));
  values_.resize(slots * static_cast<std::size_t>(spec.v_dim));
}

std::size_t ReferenceKv::bytes() const { return (keys_.size() + values_.size()) * sizeof(float); }

std::size_t ReferenceKv::key_floats() const {
  return static_cast<std::size_t>(spec().page_size) * static_cast<std::size_t>(spec().kv_heads) *
         static_cast<std::size_t>(spec().qk_dim);
}

std::size_t ReferenceKv::value_floats() const {
  return static_cast<std::size_t>(spec().page_size) * static_cast<std::size_t>(spec().kv_heads) *
         static_cast<std::size_t>(spec().v_dim);
}

void ReferenceKv::poison_page(std::int32_t page) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(keys_.data() + static_cast<std::size_t>(page) * key_floats(), key_floats(), nan);
  std::fill_n(values_.data() + static_cast<std::size_t>(page) * value_floats(), value_floats(), nan);
}

std::size_t ReferenceKv::page_bytes() const { return (key_floats() + value_floats()) * sizeof(float); }

void ReferenceKv::read_page(std::int32_t page, std::span<std::byte> out) const {
  check_page(page, out.size());
  const std::size_t k = key_floats() * sizeof(float);
  std::memcpy(out.data(), keys_.data() + static_cast<std::size_t>(page) * key_floats(), k);
  std::memcpy(out.data() + k, values_.data() + static_cast<std::size_t>(page) * value_floats(),
              out.size() - k);
}

void ReferenceKv::write_page(std::int32_t page, std::span<const std::byte> in) {
  check_page(page, in.size());
  const std::size_t k = key_floats() * sizeof(float);
  std::memcpy(keys_.data() + static_cast<std::size_t>(page) * key_floats(), in.data(), k);
  std::memcpy(values_.data() + static_cast<std::size_t>(page) * value_floats(), in.data() + k, in.size() - k);
}

std::size_t ReferenceKv::slot(std::span<const std::int32_t> pages, std::int64_t position, int head) const {
  const auto page = static_cast<std::size_t>(position / spec().page_size);
  MIMO_CHECK(page < pages.size() && pages[page] >= 0, "position {} has no page", position);
  return (static_cast<std::size_t>(pages[page]) * static_cast<std::size_t>(spec().page_size) +
          static_cast<std::size_t>(position % spec().page_size)) *
             static_cast<std::size_t>(spec().kv_heads) +
         static_cast<std::size_t>(head);
}

void ReferenceKv::write(std::span<const std::int32_t> pages, std::int64_t position, int head,
                        const float* key, const float* value) {
  const std::size_t at = slot(pages, position, head);
  round_to(spec().dtype, key, spec().qk_dim, keys_.data() + at * static_cast<std::size_t>(spec().qk_dim));
  round_to(spec().dtype, value, spec().v_dim, values_.data() + at * static_cast<std::size_t>(spec().v_dim));
}

const float* ReferenceKv::key(std::span<const std::int32_t> pages, std::int64_t position, int head) const {
  return keys_.data() + slot(pages, position, head) * static_cast<std::size_t>(spec().qk_dim);
}

const float* ReferenceKv::value(std::span<const std::int32_t> pages, std::int64_t position, int head) const {
  return values_.data() + slot(pages, position, head) * static_cast<std::size_t>(spec().v_dim);
}

}  // namespace mimo
