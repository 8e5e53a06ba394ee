#include "engine/speculation_options.h"

#include <charconv>

namespace mimo {
namespace {

bool read_number(std::string_view text, int& out) {
  const auto [rest, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
  return ec == std::errc() && rest == text.data() + text.size() && out >= 0;
}

}  // namespace

Result<std::vector<BatchWidth>> parse_batch_widths(std::string_view text) {
  std::vector<BatchWidth> widths;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view pair = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t colon = pair.find(':');
    BatchWidth width;
    if (colon == std::string_view::npos || !read_number(pair.substr(0, colon), width.batch) ||
        !read_number(pair.substr(colon + 1), width.drafts) || width.batch < 1) {
      return fail(ErrorCode::kInvalidArgument,
                  "'{}': expected BATCH:DRAFTS pairs with BATCH at least 1, such as 1:7,4:5,16:3,32:0", pair);
    }
    if (!widths.empty() && width.batch <= widths.back().batch) {
      return fail(ErrorCode::kInvalidArgument, "'{}': expected a batch above {}, the one before it", pair,
                  widths.back().batch);
    }
    widths.push_back(width);
  }
  return widths;
}

Status validate(const SpeculationOptions& options, int max_drafts) {
  if (options.num_draft_tokens < 0 || options.num_draft_tokens > max_drafts) {
    return fail(ErrorCode::kInvalidArgument,
                "--speculative-num-draft-tokens: got {}, expected 1 to {}, what this drafter makes a step",
                options.num_draft_tokens, max_drafts);
  }
  for (const BatchWidth& width : options.batch_widths) {
    if (width.drafts > max_drafts) {
      return fail(
          ErrorCode::kInvalidArgument,
          "--speculative-batch-widths {}:{}: expected at most {} drafts, what this drafter makes a step",
          width.batch, width.drafts, max_drafts);
    }
  }
  // Written so that NaN fails.
  if (!(options.confidence_threshold >= 0 && options.confidence_threshold < 1)) {
    return fail(ErrorCode::kInvalidArgument,
                "--speculative-confidence-threshold: got {}, expected a number from 0 to below 1",
                options.confidence_threshold);
  }
  if (options.max_context < 0) {
    return fail(ErrorCode::kInvalidArgument, "--speculative-max-context: got {}, expected at least 0",
                options.max_context);
  }
  if (!(options.min_accept_length >= 0 && options.min_accept_length <= max_drafts + 1)) {
    return fail(ErrorCode::kInvalidArgument,
                "--speculative-min-accept-length: got {}, expected a number from 0 to {}",
                options.min_accept_length, max_drafts + 1);
  }
  return {};
}

}  // namespace mimo
