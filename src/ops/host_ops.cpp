#include "ops/host_ops.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string>

#include "ops/rotation.h"

namespace mimo {
namespace {

class HostBuffer final : public Buffer {
 public:
  explicit HostBuffer(std::size_t bytes)
      : data_(std::make_unique_for_overwrite<std::byte[]>(bytes)), bytes_(bytes) {}
  void* data() const override { return data_.get(); }
  std::size_t bytes() const override { return bytes_; }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t bytes_;
};

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

void HostSequences::set(std::span<const SequenceRows> sequences) {
  sequences_.assign(sequences.begin(), sequences.end());
  fill_rotation(sequences_, rope_.theta, rope_.dims, cos_, sin_);
}

const HostSequences& host(const SequenceBatch& sequences) {
  return dynamic_cast<const HostSequences&>(sequences);
}

Result<std::unique_ptr<Buffer>> HostOps::allocate(std::size_t bytes) {
  try {
    return std::make_unique<HostBuffer>(bytes);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kLimit, "no memory for {} bytes", bytes);
  }
}

std::uint64_t HostOps::free_memory() const {
  // Not read_file(): files of /proc say that they are empty.
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("MemAvailable:")) return std::strtoull(line.c_str() + 13, nullptr, 10) * 1024;
  }
  return 0;
}

void HostOps::upload(void* to, const void* from, std::size_t bytes) { copy(to, from, bytes); }

void HostOps::download(void* to, const void* from, std::size_t bytes) { copy(to, from, bytes); }

void HostOps::copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                        std::size_t bytes, std::size_t count) {
  for (std::size_t r = 0; r < count; ++r) {
    copy(static_cast<std::byte*>(to) + r * to_stride, static_cast<const std::byte*>(from) + r * from_stride,
         bytes);
  }
}

void HostOps::gather_rows(void* to, const void* from, std::size_t bytes, const std::int32_t* index,
                          int count) {
  for (int i = 0; i < count; ++i) {
    copy(static_cast<std::byte*>(to) + static_cast<std::size_t>(i) * bytes,
         static_cast<const std::byte*>(from) + static_cast<std::size_t>(index[i]) * bytes, bytes);
  }
}

void HostOps::to_act(const float* x, std::size_t count, Act* out) { copy(out, x, count * sizeof(float)); }

std::unique_ptr<SequenceBatch> HostOps::make_sequences(const RopeSpec& rope) {
  return std::make_unique<HostSequences>(rope);
}

void HostOps::draw_tokens(const float* logits, std::size_t row_width, int rows, int count,
                          const TokenDraw* draws, std::int32_t* ids) {
  for (int r = 0; r < rows; ++r) {
    const float* row = logits + static_cast<std::size_t>(r) * row_width;
    ids[r] = draw_token({row, static_cast<std::size_t>(count)}, draws[r]);
  }
}

}  // namespace mimo
