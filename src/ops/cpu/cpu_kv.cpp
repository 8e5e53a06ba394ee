#include "ops/cpu/cpu_kv.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace mimo {
namespace {

constexpr std::uint16_t kBf16Nan = 0x7FC0;

}  // namespace

Status CpuKv::check(const KvSpec& spec) {
  if (spec.page_size < 1)
    return fail(ErrorCode::kInvalidArgument, "page size {}: expected at least 1", spec.page_size);
  if (spec.qk_dim % 2 != 0 || spec.v_dim % 32 != 0) {
    return fail(ErrorCode::kUnsupported,
                "head widths {}/{}: the cpu backend needs an even K and a V multiple of 32", spec.qk_dim,
                spec.v_dim);
  }
  if (spec.qk_dim > kMaxHeadWidth || spec.v_dim > kMaxHeadWidth) {
    return fail(ErrorCode::kUnsupported, "head widths {}/{}: the cpu backend takes at most {}", spec.qk_dim,
                spec.v_dim, kMaxHeadWidth);
  }
  return {};
}

CpuKv::CpuKv(const KvSpec& spec)
    : KvStore(spec),
      interleaved_(spec.page_size % kTileKeys == 0 && spec.dtype != KvDType::kF32),
      element_(spec.dtype == KvDType::kFp8 ? 1 : (spec.dtype == KvDType::kBF16 ? 2 : 4)),
      k_elements_(static_cast<std::size_t>(spec.page_size) * static_cast<std::size_t>(spec.qk_dim)),
      v_elements_(static_cast<std::size_t>(spec.page_size) * static_cast<std::size_t>(spec.v_dim)) {
  const std::size_t heads = static_cast<std::size_t>(spec.pages) * static_cast<std::size_t>(spec.kv_heads);
  keys_ = HugeBuffer(heads * k_elements_ * element_);
  values_ = HugeBuffer(heads * v_elements_ * element_);
  if (spec.dtype == KvDType::kFp8) {
    scales_ = HugeBuffer(heads * 2 * static_cast<std::size_t>(spec.page_size) * sizeof(float));
  }
}

std::size_t CpuKv::bytes() const { return keys_.size() + values_.size() + scales_.size(); }

std::size_t CpuKv::k_index(int token, int dim) const {
  const auto t = static_cast<std::size_t>(token);
  const auto d = static_cast<std::size_t>(dim);
  const auto width = static_cast<std::size_t>(spec().qk_dim);
  if (!interleaved_) return t * width + d;
  return t / kTileKeys * (kTileKeys * width) + d / 2 * (2 * kTileKeys) + t % kTileKeys * 2 + d % 2;
}

std::size_t CpuKv::v_index(int token, int dim) const {
  const auto t = static_cast<std::size_t>(token);
  const auto d = static_cast<std::size_t>(dim);
  const auto width = static_cast<std::size_t>(spec().v_dim);
  if (!interleaved_) return t * width + d;
  return t / 2 * (2 * width) + d * 2 + t % 2;
}

void CpuKv::poison_page(std::int32_t page) {
  for (int head = 0; head < spec().kv_heads; ++head) {
    const std::size_t slot = head_slot(page, head);
    if (element_ == 1) {
      std::memset(keys_.data() + slot * k_elements_, 0x7F, k_elements_);
      std::memset(values_.data() + slot * v_elements_, 0x7F, v_elements_);
      const auto scales = 2 * static_cast<std::size_t>(spec().page_size);
      std::fill_n(scales_.as<float>() + slot * scales, scales, __builtin_nanf(""));
    } else if (element_ == 4) {
      std::fill_n(keys_.as<float>() + slot * k_elements_, k_elements_, __builtin_nanf(""));
      std::fill_n(values_.as<float>() + slot * v_elements_, v_elements_, __builtin_nanf(""));
    } else {
      std::fill_n(keys_.as<std::uint16_t>() + slot * k_elements_, k_elements_, kBf16Nan);
      std::fill_n(values_.as<std::uint16_t>() + slot * v_elements_, v_elements_, kBf16Nan);
    }
  }
}

std::array<std::size_t, 3> CpuKv::part_bytes() const {
  const auto heads = static_cast<std::size_t>(spec().kv_heads);
  const std::size_t scales =
      element_ == 1 ? 2 * static_cast<std::size_t>(spec().page_size) * sizeof(float) : 0;
  return {heads * k_elements_ * element_, heads * v_elements_ * element_, heads * scales};
}

std::size_t CpuKv::page_bytes() const {
  const auto parts = part_bytes();
  return parts[0] + parts[1] + parts[2];
}

void CpuKv::read_page(std::int32_t page, std::span<std::byte> out) const {
  check_page(page, out.size());
  const std::uint8_t* const from[] = {keys_.data(), values_.data(), scales_.data()};
  const auto parts = part_bytes();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == 0) continue;
    std::memcpy(out.data(), from[i] + static_cast<std::size_t>(page) * parts[i], parts[i]);
    out = out.subspan(parts[i]);
  }
}

void CpuKv::write_page(std::int32_t page, std::span<const std::byte> in) {
  check_page(page, in.size());
  std::uint8_t* const to[] = {keys_.data(), values_.data(), scales_.data()};
  const auto parts = part_bytes();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == 0) continue;
    std::memcpy(to[i] + static_cast<std::size_t>(page) * parts[i], in.data(), parts[i]);
    in = in.subspan(parts[i]);
  }
}

void CpuKv::write(const CpuKernels& kernels, std::int32_t page, int offset, int head, const float* key,
                  const float* value, float value_scale, std::uint16_t* scratch) {
  const int qk = spec().qk_dim;
  const int v = spec().v_dim;
  const std::size_t slot = head_slot(page, head);
  if (element_ == 4) {
    std::memcpy(keys_.as<float>() + slot * k_elements_ + k_index(offset, 0), key,
                static_cast<std::size_t>(qk) * 4);
    float* values = values_.as<float>() + slot * v_elements_ + v_index(offset, 0);
    for (int d = 0; d < v; ++d) values[d] = value[d] * value_scale;
    return;
  }
  if (element_ == 2) {
    std::uint16_t* keys = keys_.as<std::uint16_t>() + slot * k_elements_ + k_index(offset, 0);
    kernels.to_bf16(key, qk, 1.0f, scratch);
    if (interleaved_) {
      for (int d = 0; d < qk; d += 2) std::memcpy(keys + d * kTileKeys, scratch + d, 4);
    } else {
      std::memcpy(keys, scratch, static_cast<std::size_t>(qk) * 2);
    }
    std::uint16_t* values = values_.as<std::uint16_t>() + slot * v_elements_ + v_index(offset, 0);
    kernels.to_bf16(value, v, value_scale, scratch);
    const int step = interleaved_ ? 2 : 1;
    for (int d = 0; d < v; ++d) values[d * step] = scratch[d];
    return;
  }
  auto* codes = reinterpret_cast<std::uint8_t*>(scratch);
  float* scales = scales_.as<float>() + slot * 2 * static_cast<std::size_t>(spec().page_size) + offset;
  std::uint8_t* keys = keys_.data() + slot * k_elements_ + k_index(offset, 0);
  scales[0] = kernels.to_fp8(key, qk, 1.0f, codes);
  if (interleaved_) {
    for (int d = 0; d < qk; d += 2) std::memcpy(keys + d * kTileKeys, codes + d, 2);
  } else {
    std::memcpy(keys, codes, static_cast<std::size_t>(qk));
  }
  std::uint8_t* values = values_.data() + slot * v_elements_ + v_index(offset, 0);
  scales[spec().page_size] = kernels.to_fp8(value, v, value_scale, codes);
  const int step = interleaved_ ? 2 : 1;
  for (int d = 0; d < v; ++d) values[d * step] = codes[d];
}

std::size_t CpuKv::chunk_buffer_bytes() const {
  const std::size_t element = wide() ? sizeof(float) : sizeof(std::uint16_t);
  return static_cast<std::size_t>(kChunkKeys) * static_cast<std::size_t>(spec().qk_dim + spec().v_dim) *
         element;
}

void CpuKv::read_chunk(const CpuKernels& kernels, std::span<const std::int32_t> pages, std::int64_t base,
                       std::int64_t first, std::int64_t last, int head, std::uint8_t* buffer,
                       ChunkTiles& tiles) const {
  const std::size_t element = wide() ? sizeof(float) : sizeof(std::uint16_t);
  const std::size_t k_bytes = kTileKeys * static_cast<std::size_t>(spec().qk_dim) * element;
  const std::size_t v_bytes = kTileKeys * static_cast<std::size_t>(spec().v_dim) * element;
  std::uint8_t* k_buffer = buffer;
  std::uint8_t* v_buffer = buffer + kChunkKeys / kTileKeys * k_bytes;
  tiles.tiles =
      static_cast<int>((std::min<std::int64_t>(last, base + kChunkKeys) - base + kTileKeys - 1) / kTileKeys);
  tiles.scaled = element_ == 1;
  for (int t = 0; t < tiles.tiles; ++t) {
    const std::int64_t start = base + static_cast<std::int64_t>(t) * kTileKeys;
    tiles.k[t] = k_buffer + static_cast<std::size_t>(t) * k_bytes;
    tiles.v[t] = v_buffer + static_cast<std::size_t>(t) * v_bytes;
    if (start + kTileKeys <= first) {
      // Nothing of this tile is visible to anyone: kernels skip it.
      std::fill_n(tiles.k_scale + t * kTileKeys, kTileKeys, 0.0f);
      std::fill_n(tiles.v_scale + t * kTileKeys, kTileKeys, 0.0f);
      continue;
    }
    const bool whole = start >= first && start + kTileKeys <= last;
    if (whole && interleaved_ && element_ == 2) {
      const std::int32_t page = pages[static_cast<std::size_t>(start / spec().page_size)];
      MIMO_DCHECK(page >= 0, "position {} has no page", start);
      const int offset = static_cast<int>(start % spec().page_size);
      const std::size_t slot = head_slot(page, head);
      tiles.k[t] = keys_.as<std::uint16_t>() + slot * k_elements_ + k_index(offset, 0);
      tiles.v[t] = values_.as<std::uint16_t>() + slot * v_elements_ + v_index(offset, 0);
      continue;
    }
    auto* k_tile = k_buffer + static_cast<std::size_t>(t) * k_bytes;
    auto* v_tile = v_buffer + static_cast<std::size_t>(t) * v_bytes;
    if (wide()) {
      gather_wide(pages, start, first, last, head, reinterpret_cast<float*>(k_tile),
                  reinterpret_cast<float*>(v_tile));
    } else {
      gather_tile(kernels, pages, start, first, last, head, reinterpret_cast<std::uint16_t*>(k_tile),
                  reinterpret_cast<std::uint16_t*>(v_tile), tiles.k_scale + t * kTileKeys,
                  tiles.v_scale + t * kTileKeys);
    }
  }
}

void CpuKv::gather_wide(std::span<const std::int32_t> pages, std::int64_t base, std::int64_t first,
                        std::int64_t last, int head, float* k, float* v) const {
  const auto qk = static_cast<std::size_t>(spec().qk_dim);
  const auto width = static_cast<std::size_t>(spec().v_dim);
  for (std::size_t t = 0; t < kTileKeys; ++t) {
    const std::int64_t position = base + static_cast<std::int64_t>(t);
    if (position < first || position >= last) {
      for (std::size_t d = 0; d < qk; ++d) k[d * kTileKeys + t] = 0.0f;
      std::fill_n(v + t * width, width, 0.0f);
      continue;
    }
    const std::int32_t page = pages[static_cast<std::size_t>(position / spec().page_size)];
    const int offset = static_cast<int>(position % spec().page_size);
    const std::size_t slot = head_slot(page, head);
    const float* keys = keys_.as<float>() + slot * k_elements_ + k_index(offset, 0);
    for (std::size_t d = 0; d < qk; ++d) k[d * kTileKeys + t] = keys[d];
    std::memcpy(v + t * width, values_.as<float>() + slot * v_elements_ + v_index(offset, 0),
                width * sizeof(float));
  }
}

void CpuKv::gather_tile(const CpuKernels& kernels, std::span<const std::int32_t> pages, std::int64_t base,
                        std::int64_t first, std::int64_t last, int head, std::uint16_t* k, std::uint16_t* v,
                        float* k_scale, float* v_scale) const {
  const auto qk = static_cast<std::size_t>(spec().qk_dim);
  const auto width = static_cast<std::size_t>(spec().v_dim);
  if (interleaved_) {  // one page, in kernel order already
    const std::int32_t page = pages[static_cast<std::size_t>(base / spec().page_size)];
    MIMO_DCHECK(page >= 0, "position {} has no page", base);
    const int offset = static_cast<int>(base % spec().page_size);
    const std::size_t slot = head_slot(page, head);
    const auto lowest = static_cast<int>(std::clamp<std::int64_t>(first - base, 0, kTileKeys));
    const auto highest = static_cast<int>(std::clamp<std::int64_t>(last - base, 0, kTileKeys));
    const std::size_t k_at = slot * k_elements_ + k_index(offset, 0);
    const std::size_t v_at = slot * v_elements_ + v_index(offset, 0);
    // Masked keys have weight zero, but zero times what a freed page may hold (NaN) is not zero.
    if (element_ == 2) {
      kernels.mask_tile(keys_.as<std::uint16_t>() + k_at, values_.as<std::uint16_t>() + v_at, spec().qk_dim,
                        spec().v_dim, lowest, highest, k, v);
      return;
    }
    kernels.fp8_to_bf16(keys_.data() + k_at, static_cast<std::int64_t>(qk * kTileKeys), k);
    kernels.fp8_to_bf16(values_.data() + v_at, static_cast<std::int64_t>(width * kTileKeys), v);
    const float* scales =
        scales_.as<float>() + slot * 2 * static_cast<std::size_t>(spec().page_size) + offset;
    for (int t = 0; t < kTileKeys; ++t) {
      const bool valid = t >= lowest && t < highest;
      k_scale[t] = valid ? scales[t] : 0.0f;
      v_scale[t] = valid ? scales[spec().page_size + t] : 0.0f;
    }
    if (highest - lowest < kTileKeys) {
      kernels.mask_tile(k, v, spec().qk_dim, spec().v_dim, lowest, highest, k, v);
    }
    return;
  }
  for (int t = 0; t < kTileKeys; ++t) {
    const std::int64_t position = base + t;
    std::uint16_t* k_out = k + 2 * t;
    std::uint16_t* v_out = v + t / 2 * (2 * width) + t % 2;
    if (position < first || position >= last) {
      for (std::size_t d = 0; d < qk; d += 2) std::memset(k_out + d * kTileKeys, 0, 4);
      for (std::size_t d = 0; d < width; ++d) v_out[2 * d] = 0;
      k_scale[t] = v_scale[t] = 0.0f;
      continue;
    }
    const std::int32_t page = pages[static_cast<std::size_t>(position / spec().page_size)];
    MIMO_DCHECK(page >= 0, "position {} has no page", position);
    const int offset = static_cast<int>(position % spec().page_size);
    const std::size_t slot = head_slot(page, head);
    if (element_ == 2) {
      const std::uint16_t* keys = keys_.as<std::uint16_t>() + slot * k_elements_ + k_index(offset, 0);
      for (std::size_t d = 0; d < qk / 2; ++d) std::memcpy(k_out + d * 2 * kTileKeys, keys + d * 2, 4);
      const std::uint16_t* values = values_.as<std::uint16_t>() + slot * v_elements_ + v_index(offset, 0);
      for (std::size_t d = 0; d < width; ++d) v_out[2 * d] = values[d];
      continue;
    }
    const std::uint8_t* keys = keys_.data() + slot * k_elements_ + k_index(offset, 0);
    const std::uint8_t* values = values_.data() + slot * v_elements_ + v_index(offset, 0);
    std::uint16_t converted[kMaxHeadWidth];
    kernels.fp8_to_bf16(keys, static_cast<std::int64_t>(qk), converted);
    for (std::size_t d = 0; d < qk / 2; ++d) std::memcpy(k_out + d * 2 * kTileKeys, converted + 2 * d, 4);
    kernels.fp8_to_bf16(values, static_cast<std::int64_t>(width), converted);
    for (std::size_t d = 0; d < width; ++d) v_out[2 * d] = converted[d];
    const float* scales =
        scales_.as<float>() + slot * 2 * static_cast<std::size_t>(spec().page_size) + offset;
    k_scale[t] = scales[0];
    v_scale[t] = scales[spec().page_size];
  }
}

}  // namespace mimo
