// mask_embedding.pt: the learned vector that stands for a masked token in a DFlash block. It lies beside the
// drafter because the row of the mask token in the vocabulary table was never trained (spec dflash 1.7).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace mimo {

// Reads a file that torch.save wrote: a zip archive, uncompressed, with a pickle that says what the stored
// bytes are. Accepted are a dict {"mask_token_id": id, "embedding": tensor} and a bare tensor, [hidden] or
// [1, hidden], BF16 or FP32, contiguous. The pickle is walked, never executed. `what` names the bytes in
// messages. An id other than `mask_token_id`, another width, a value that is not finite and a vector of zeros
// are refused.
Result<std::vector<float>> parse_mask_embedding(std::span<const std::uint8_t> bytes, std::string_view what,
                                                int mask_token_id, int hidden);

// DIR/mask_embedding.pt. A missing file is an error: the drafter would run on an untrained row and every
// draft would be rejected.
Result<std::vector<float>> load_mask_embedding(const std::string& directory, int mask_token_id, int hidden);

// A random one, ~ N(0, 1): for measurements.
std::vector<float> random_mask_embedding(int hidden, std::uint64_t seed);

}  // namespace mimo
