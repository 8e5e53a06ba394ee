// Acceptance: which drafts of a block the target's own tokens confirm, and where the answer ends inside it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace mimo {

struct BlockResult {
  int accepted = 0;  // drafts that were the target's tokens
  // Tokens delivered, which is also how many rows of the block are now part of the sequence: the anchor and
  // one for every accepted draft, fewer where the answer ended.
  int emitted = 0;
  bool ended = false;
};

// Walks the rows of a block: the anchor's (row 0), then one for each draft. `sample(row)` draws the token that
// follows the row, once the tokens before it are delivered; none: that row is an error. `deliver(token)` takes
// it and says whether the answer ends with it. The walk goes on while tokens equal the drafts: sample and
// match (spec dflash 4.3), which gives each token the distribution it has without drafts. A step without
// drafts is a block of one row.
template <class Sample, class Deliver>
BlockResult verify_block(std::span<const std::int32_t> drafts, Sample&& sample, Deliver&& deliver) {
  BlockResult result;
  for (std::size_t row = 0;; ++row) {
    const std::optional<std::int32_t> token = sample(row);
    if (!token) {
      result.ended = true;
      return result;
    }
    const bool match = row < drafts.size() && *token == drafts[row];
    result.accepted += match ? 1 : 0;
    ++result.emitted;
    result.ended = deliver(*token);
    if (result.ended || !match) return result;
  }
}

}  // namespace mimo
