// Any bytes as a safetensors file: an error or a header whose every tensor lies inside the file.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto header = mimo::parse_safetensors({data, size}, "fuzz");
  if (!header) {
    if (header.error().message.empty()) std::abort();
    return 0;
  }
  std::size_t end = 0;
  for (const mimo::TensorInfo& tensor : header->tensors) {
    std::size_t bytes = mimo::dtype_size(tensor.dtype);
    for (const std::int64_t dim : tensor.shape) bytes *= static_cast<std::size_t>(dim);
    if (tensor.bytes != bytes || tensor.offset > size || tensor.bytes > size - tensor.offset) std::abort();
    if (tensor.bytes != 0) {
      if (tensor.offset < end) std::abort();
      end = tensor.offset + tensor.bytes;
    }
  }
  return 0;
}
