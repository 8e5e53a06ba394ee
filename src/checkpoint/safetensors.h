// One safetensors file: 8-byte little-endian header length, JSON header, data. Every number of the header is
// checked here, once; what a TensorInfo says is inside the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/file.h"
#include "core/result.h"

namespace mimo {

// The format's own limit; a larger length is a damaged file and must not become an allocation.
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;
  std::size_t offset = 0;  // of the first byte in the file
  std::size_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;                            // by offset
  std::vector<std::pair<std::string, std::string>> metadata;  // __metadata__
  std::size_t hole_bytes = 0;                                 // data bytes that no tensor covers
};

// Parses and checks the header of a whole file given as bytes. `what` names the file in messages.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::uint8_t> file, std::string_view what);

// "[2, 3]"
std::string shape_text(std::span<const std::int64_t> shape);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return map_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  const MappedFile& map() const { return map_; }
  // Nothing when the file has no such tensor. Linear: for files with few tensors.
  const TensorInfo* find(std::string_view name) const;
  const std::uint8_t* data(const TensorInfo& tensor) const { return map_.bytes().data() + tensor.offset; }

 private:
  SafetensorsFile(MappedFile map, SafetensorsHeader header)
      : map_(std::move(map)), header_(std::move(header)) {}

  MappedFile map_;
  SafetensorsHeader header_;
};

}  // namespace mimo
