#include "core/npy.h"

#include <bit>
#include <cerrno>
#include <cstring>

namespace mimo {

static_assert(std::endian::native == std::endian::little, "values are written as they lie in memory");

Result<NpyWriter> NpyWriter::create(const std::string& path, std::int64_t rows, std::int64_t columns) {
  NpyWriter writer;
  writer.path_ = path;
  writer.expected_ = rows * columns;
  writer.file_.open(path, std::ios::binary | std::ios::trunc);
  if (!writer.file_)
    return fail(ErrorCode::kInvalidArgument, "{}: cannot create: {}", path, std::strerror(errno));
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  // Magic (6), version (2), header length (2) and header fill a multiple of 64 bytes, the last one a newline.
  constexpr std::size_t kPrefix = 10;
  constexpr std::size_t kAlign = 64;
  const std::size_t total = (kPrefix + header.size() + 1 + kAlign - 1) / kAlign * kAlign;
  header.append(total - kPrefix - header.size() - 1, ' ');
  header.push_back('\n');
  const auto length = static_cast<std::uint16_t>(header.size());
  writer.file_.write("\x93NUMPY\x01\x00", 8);
  writer.file_.put(static_cast<char>(length & 0xFF));
  writer.file_.put(static_cast<char>(length >> 8));
  writer.file_.write(header.data(), static_cast<std::streamsize>(header.size()));
  return writer;
}

void NpyWriter::write(std::span<const float> values) {
  file_.write(reinterpret_cast<const char*>(values.data()),
              static_cast<std::streamsize>(values.size_bytes()));
  written_ += static_cast<std::int64_t>(values.size());
}

Status NpyWriter::close() {
  file_.close();
  if (!file_) return fail(ErrorCode::kInternal, "{}: write failed: {}", path_, std::strerror(errno));
  if (written_ != expected_) {
    return fail(ErrorCode::kInternal, "{}: {} values written, {} expected", path_, written_, expected_);
  }
  return {};
}

}  // namespace mimo
