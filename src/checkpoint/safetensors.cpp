#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/json.h"

namespace mimo {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxDims = 8;  // weights have at most 3; bounds the work per tensor
constexpr std::uint64_t kMaxBytes = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

// A non-negative JSON integer.
std::optional<std::uint64_t> count(const json::value& value) {
  if (const std::int64_t* number = value.if_int64()) {
    if (*number >= 0) return static_cast<std::uint64_t>(*number);
  }
  if (const std::uint64_t* number = value.if_uint64()) return *number;
  return std::nullopt;
}

// Reads one header entry. `data_bytes` is the length of the data section; offsets are still relative to it.
Result<TensorInfo> read_entry(std::string_view file, std::string_view name, const json::value& value,
                              std::uint64_t data_bytes) {
  const auto bad = [&](const std::string& problem) {
    return fail(ErrorCode::kCorrupt, "{}: tensor \"{}\": {}", file, name, problem);
  };
  const json::object* fields = value.if_object();
  if (fields == nullptr) return bad("header entry is not an object");
  for (const auto& [key, ignored] : *fields) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return bad(fmt::format("unknown header key \"{}\"", std::string_view(key.data(), key.size())));
    }
  }

  TensorInfo tensor;
  tensor.name = name;
  const json::value* dtype = fields->if_contains("dtype");
  if (dtype == nullptr || !dtype->is_string()) return bad("no dtype");
  const std::string_view dtype_text(dtype->get_string().data(), dtype->get_string().size());
  const std::optional<DType> known = parse_dtype(dtype_text);
  if (!known) return bad(fmt::format("unknown dtype \"{}\"", dtype_text));
  tensor.dtype = *known;

  const json::value* shape = fields->if_contains("shape");
  if (shape == nullptr || !shape->is_array()) return bad("no shape");
  if (shape->get_array().size() > kMaxDims) {
    return bad(fmt::format("{} dimensions, at most {} are allowed", shape->get_array().size(), kMaxDims));
  }
  std::uint64_t bytes = dtype_size(tensor.dtype);
  for (const json::value& dim : shape->get_array()) {
    const std::optional<std::uint64_t> size = count(dim);
    if (!size) return bad(fmt::format("dimension {} is not a non-negative integer", json::serialize(dim)));
    if (*size > kMaxBytes || (*size != 0 && bytes > kMaxBytes / *size)) {
      return bad(fmt::format("shape {} overflows", json::serialize(*shape)));
    }
    bytes *= *size;
    tensor.shape.push_back(static_cast<std::int64_t>(*size));
  }

  const json::value* offsets = fields->if_contains("data_offsets");
  if (offsets == nullptr || !offsets->is_array() || offsets->get_array().size() != 2) {
    return bad("data_offsets is not a pair");
  }
  const std::optional<std::uint64_t> begin = count(offsets->get_array()[0]);
  const std::optional<std::uint64_t> end = count(offsets->get_array()[1]);
  if (!begin || !end) {
    return bad(fmt::format("data_offsets {} are not non-negative integers", json::serialize(*offsets)));
  }
  if (*begin > *end) return bad(fmt::format("data_offsets [{}, {}] are reversed", *begin, *end));
  if (*end > data_bytes) {
    return bad(fmt::format("data_offsets [{}, {}] end after the {} data bytes of the file (truncated?)",
                           *begin, *end, data_bytes));
  }
  if (*end - *begin != bytes) {
    return bad(fmt::format("data_offsets [{}, {}] hold {} bytes, {} {} needs {}", *begin, *end, *end - *begin,
                           dtype_text, shape_text(tensor.shape), bytes));
  }
  tensor.offset = static_cast<std::size_t>(*begin);
  tensor.bytes = static_cast<std::size_t>(bytes);
  return tensor;
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::uint8_t> file, std::string_view what) {
  if (file.size() < kLengthBytes) {
    return fail(ErrorCode::kCorrupt, "{}: {} bytes are too few for a safetensors file", what, file.size());
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= static_cast<std::uint64_t>(file[i]) << (8 * i);
  if (length > kMaxSafetensorsHeader) {
    return fail(ErrorCode::kCorrupt, "{}: header length {} is above the limit of {}", what, length,
                kMaxSafetensorsHeader);
  }
  if (length > file.size() - kLengthBytes) {
    return fail(ErrorCode::kCorrupt, "{}: header length {} is more than the file's {} bytes (truncated?)",
                what, length, file.size());
  }
  const std::size_t data_begin = kLengthBytes + static_cast<std::size_t>(length);
  const std::uint64_t data_bytes = file.size() - data_begin;

  JsonLimits limits;
  limits.max_depth = 4;
  limits.max_bytes = kMaxSafetensorsHeader;
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              static_cast<std::size_t>(length));
  const Result<json::value> parsed = parse_json(text, fmt::format("{}: header", what), limits);
  if (!parsed) return forward_error(parsed);
  if (!parsed->is_object()) return fail(ErrorCode::kCorrupt, "{}: header is not a JSON object", what);

  SafetensorsHeader header;
  header.tensors.reserve(parsed->get_object().size());
  for (const auto& [key, value] : parsed->get_object()) {
    const std::string_view name(key.data(), key.size());
    if (name == "__metadata__") {
      if (!value.is_object()) return fail(ErrorCode::kCorrupt, "{}: __metadata__ is not an object", what);
      for (const auto& [meta_key, meta_value] : value.get_object()) {
        if (!meta_value.is_string()) {
          return fail(ErrorCode::kCorrupt, "{}: __metadata__ value {} is not a string", what,
                      json::serialize(meta_value));
        }
        header.metadata.emplace_back(
            std::string(meta_key.data(), meta_key.size()),
            std::string(meta_value.get_string().data(), meta_value.get_string().size()));
      }
      continue;
    }
    Result<TensorInfo> tensor = read_entry(what, name, value, data_bytes);
    if (!tensor) return forward_error(tensor);
    header.tensors.push_back(std::move(*tensor));
  }

  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  std::size_t covered = 0;
  const TensorInfo* last = nullptr;
  for (TensorInfo& tensor : header.tensors) {
    if (tensor.bytes != 0 && tensor.offset < covered) {
      return fail(ErrorCode::kCorrupt, "{}: tensors \"{}\" and \"{}\" overlap at data offset {}", what,
                  last->name, tensor.name, tensor.offset);
    }
    if (tensor.offset > covered) header.hole_bytes += tensor.offset - covered;
    if (tensor.bytes != 0) {
      covered = tensor.offset + tensor.bytes;
      last = &tensor;
    }
  }
  header.hole_bytes += static_cast<std::size_t>(data_bytes) - covered;
  for (TensorInfo& tensor : header.tensors) tensor.offset += data_begin;
  return header;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::find_if(header_.tensors.begin(), header_.tensors.end(),
                               [name](const TensorInfo& tensor) { return tensor.name == name; });
  return it == header_.tensors.end() ? nullptr : &*it;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  Result<MappedFile> map = MappedFile::open(path);
  if (!map) return forward_error(map);
  Result<SafetensorsHeader> header = parse_safetensors(map->bytes(), path);
  if (!header) return forward_error(header);
  return SafetensorsFile(std::move(*map), std::move(*header));
}

}  // namespace mimo
