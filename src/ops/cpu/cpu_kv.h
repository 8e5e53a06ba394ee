// Paged keys and values in the order the attention kernels read: 16 keys side by side for each pair of dims,
// and pairs of value rows interleaved, so that scores need no horizontal sums and decode reads pages where
// they lie.
//
// Inside a page, for each KV head (page_size a multiple of 16; otherwise keys and values are plain rows and
// are gathered into that order when they are read):
//   K [page_size / 16][qk_dim / 2][16 tokens][2 dims]     V [page_size / 2][v_dim][2 tokens]
// FP8 has the same order in bytes, with one fp32 scale per (token, head) for K and one for V. F32 (for
// precision, not speed) is always plain rows.
#pragma once

#include <array>
#include <span>

#include "core/huge_buffer.h"
#include "ops/cpu/kernels.h"
#include "ops/ops.h"

namespace mimo {

class CpuKv final : public KvStore {
 public:
  static Status check(const KvSpec& spec);
  explicit CpuKv(const KvSpec& spec);

  std::size_t bytes() const override;
  void poison_page(std::int32_t page) override;
  // Keys of all heads, values, scales, in the order of the page.
  std::size_t page_bytes() const override;
  void read_page(std::int32_t page, std::span<std::byte> out) const override;
  void write_page(std::int32_t page, std::span<const std::byte> in) override;

  // Stores one head's key [qk_dim] and value [v_dim] * value_scale. `scratch` holds max(qk_dim, v_dim) 16-bit
  // values.
  void write(const CpuKernels& kernels, std::int32_t page, int offset, int head, const float* key,
             const float* value, float value_scale, std::uint16_t* scratch);
  bool wide() const { return element_ == 4; }

  // Keys and values of up to kChunkKeys positions of one KV head in kernel order. Tiles that lie ready in a
  // page are pointed to; the rest are copied (or converted) to the buffers here, with zeros outside [first,
  // last).
  struct ChunkTiles {
    const void* k[kChunkKeys / kTileKeys];
    const void* v[kChunkKeys / kTileKeys];
    float k_scale[kChunkKeys];
    float v_scale[kChunkKeys];
    int tiles = 0;
    bool scaled = false;  // FP8: the scales apply
  };
  // Positions of the chunk start at `base` (a multiple of kChunkKeys); only [first, last) may be read.
  // `buffer` holds chunk_buffer_bytes().
  void read_chunk(const CpuKernels& kernels, std::span<const std::int32_t> pages, std::int64_t base,
                  std::int64_t first, std::int64_t last, int head, std::uint8_t* buffer,
                  ChunkTiles& tiles) const;
  std::size_t chunk_buffer_bytes() const;

 private:
  std::size_t k_index(int token, int dim) const;
  std::size_t v_index(int token, int dim) const;
  std::size_t head_slot(std::int32_t page, int head) const {
    return static_cast<std::size_t>(page) * static_cast<std::size_t>(spec().kv_heads) +
           static_cast<std::size_t>(head);
  }
  // Of a page in keys_, values_ and scales_.
  std::array<std::size_t, 3> part_bytes() const;
  void gather_tile(const CpuKernels& kernels, std::span<const std::int32_t> pages, std::int64_t base,
                   std::int64_t first, std::int64_t last, int head, std::uint16_t* k, std::uint16_t* v,
                   float* k_scale, float* v_scale) const;
  void gather_wide(std::span<const std::int32_t> pages, std::int64_t base, std::int64_t first,
                   std::int64_t last, int head, float* k, float* v) const;

  bool interleaved_;
  std::size_t element_;     // bytes
  std::size_t k_elements_;  // of one head in one page
  std::size_t v_elements_;
  HugeBuffer keys_;
  HugeBuffer values_;
  HugeBuffer scales_;  // kFp8: [pages][kv_heads][2][page_size]
};

}  // namespace mimo
