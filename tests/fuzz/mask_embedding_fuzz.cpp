// Any bytes as mask_embedding.pt: an error or a finite vector of the asked width.
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "checkpoint/mask_embedding.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto read = mimo::parse_mask_embedding({data, size}, "fuzz", 300, 4);
  if (!read) {
    if (read.error().message.empty()) std::abort();
    return 0;
  }
  if (read->size() != 4) std::abort();
  for (const float value : *read) {
    if (!std::isfinite(value)) std::abort();
  }
  return 0;
}
