// Element types of stored tensors, with the names safetensors uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mimo {

enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
};

// Bytes of one element.
std::size_t dtype_size(DType dtype);

// Safetensors spelling: "BF16", "F8_E4M3", ...
std::string_view dtype_name(DType dtype);

// Inverse of dtype_name; nothing for a name this engine does not know.
std::optional<DType> parse_dtype(std::string_view name);

}  // namespace mimo
