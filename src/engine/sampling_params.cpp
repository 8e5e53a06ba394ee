#include "engine/sampling_params.h"

#include <cmath>

namespace mimo {
namespace {

Status in_range(const char* field, double value, double low, double high) {
  // Written so that NaN fails.
  if (value >= low && value <= high) return {};
  return fail(ErrorCode::kInvalidArgument, "{}: got {}, expected a number from {} to {}", field, value, low,
              high);
}

Status above_zero(const char* field, double value, double high) {
  if (value > 0 && value <= high) return {};
  return fail(ErrorCode::kInvalidArgument, "{}: got {}, expected a number above 0 and at most {}", field,
              value, high);
}

Status token_id(const char* field, std::int64_t id, int vocab) {
  if (id >= 0 && id < vocab) return {};
  return fail(ErrorCode::kInvalidArgument, "{}: got token id {}, expected 0 to {}", field, id, vocab - 1);
}

Status validate_numbers(const SamplingParams& p) {
  for (const Status& status :
       {in_range("temperature", p.temperature, 0, 2), above_zero("top_p", p.top_p, 1),
        in_range("min_p", p.min_p, 0, 1), above_zero("repetition_penalty", p.repetition_penalty, 2),
        in_range("presence_penalty", p.presence_penalty, -2, 2),
        in_range("frequency_penalty", p.frequency_penalty, -2, 2)}) {
    if (!status) return status;
  }
  if (p.top_k < -1) {
    return fail(ErrorCode::kInvalidArgument, "top_k: got {}, expected at least 1, or 0 or -1 for off",
                p.top_k);
  }
  if (p.logprobs && (*p.logprobs < 0 || *p.logprobs > kMaxTopLogprobs)) {
    return fail(ErrorCode::kInvalidArgument, "logprobs: got {}, expected 0 to {}", *p.logprobs,
                kMaxTopLogprobs);
  }
  return {};
}

Status validate_lengths(const SamplingParams& p) {
  if (p.max_tokens && *p.max_tokens < 1) {
    return fail(ErrorCode::kInvalidArgument, "max_tokens: got {}, expected at least 1", *p.max_tokens);
  }
  if (p.min_tokens < 0) {
    return fail(ErrorCode::kInvalidArgument, "min_tokens: got {}, expected at least 0", p.min_tokens);
  }
  if (p.max_tokens && p.min_tokens > *p.max_tokens) {
    return fail(ErrorCode::kInvalidArgument, "min_tokens: got {}, expected at most max_tokens, which is {}",
                p.min_tokens, *p.max_tokens);
  }
  return {};
}

Status validate_stops(const SamplingParams& p, int vocab) {
  if (p.stop.size() > kMaxStopStrings) {
    return fail(ErrorCode::kInvalidArgument, "stop: got {} strings, expected at most {}", p.stop.size(),
                kMaxStopStrings);
  }
  for (std::size_t i = 0; i < p.stop.size(); ++i) {
    if (p.stop[i].empty() || p.stop[i].size() > kMaxStopStringBytes) {
      return fail(ErrorCode::kInvalidArgument, "stop[{}]: got {} bytes, expected 1 to {}", i,
                  p.stop[i].size(), kMaxStopStringBytes);
    }
  }
  if (p.stop_token_ids.size() > kMaxStopTokenIds) {
    return fail(ErrorCode::kInvalidArgument, "stop_token_ids: got {} ids, expected at most {}",
                p.stop_token_ids.size(), kMaxStopTokenIds);
  }
  for (const std::int64_t id : p.stop_token_ids) {
    if (Status status = token_id("stop_token_ids", id, vocab); !status) return status;
  }
  return {};
}

Status validate_bias(const SamplingParams& p, int vocab) {
  for (const auto& [id, value] : p.logit_bias) {
    if (Status status = token_id("logit_bias", id, vocab); !status) return status;
    if (!(std::abs(value) <= 100)) {
      return fail(ErrorCode::kInvalidArgument, "logit_bias[{}]: got {}, expected a number from -100 to 100",
                  id, value);
    }
  }
  return {};
}

}  // namespace

Status validate(const SamplingParams& params, int vocab) {
  for (const Status& status : {validate_numbers(params), validate_lengths(params),
                               validate_stops(params, vocab), validate_bias(params, vocab)}) {
    if (!status) return status;
  }
  return {};
}

}  // namespace mimo
