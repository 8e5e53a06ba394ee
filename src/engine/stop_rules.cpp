#include "engine/stop_rules.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace mimo {
namespace {

std::vector<std::uint32_t> borders(std::string_view text) {
  std::vector<std::uint32_t> border(text.size(), 0);
  std::uint32_t length = 0;
  for (std::size_t i = 1; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = border[length - 1];
    if (text[i] == text[length]) ++length;
    border[i] = length;
  }
  return border;
}

}  // namespace

bool StopRules::Matcher::advance(char byte) {
  while (matched > 0 && text[matched] != byte) matched = border[matched - 1];
  if (text[matched] == byte) ++matched;
  return matched == text.size();
}

StopRules::StopRules(const SamplingParams& params, std::span<const int> eos_ids)
    : stop_token_ids_(params.stop_token_ids),
      max_tokens_(params.max_tokens.value_or(std::numeric_limits<std::int64_t>::max())),
      min_tokens_(params.min_tokens),
      include_stop_(params.include_stop_str_in_output) {
  for (const std::string& text : params.stop) matchers_.push_back({text, borders(text), 0});
  if (!params.ignore_eos) eos_ids_.assign(eos_ids.begin(), eos_ids.end());
  std::sort(eos_ids_.begin(), eos_ids_.end());
  std::sort(stop_token_ids_.begin(), stop_token_ids_.end());
}

StopRules::Step StopRules::push(int token_id, std::string_view text, bool literal) {
  if (finish_) return {{}, finish_};
  ++tokens_;
  finish_ = id_finish(token_id);
  if (finish_) {
    // Not matched against stop strings: the token decides.
    return {include_stop_ ? std::exchange(held_, {}) + std::string(text) : std::string(), finish_};
  }
  Step step{take(text, literal), {}};
  if (!finish_ && tokens_ >= max_tokens_) finish_ = Finish{.reason = FinishReason::kLength};
  step.finish = finish_;
  return step;
}

StopRules::Step StopRules::finish(std::string_view tail) {
  if (finish_ && finish_->reason == FinishReason::kStopString) return {{}, finish_};
  const bool by_id = finish_ && finish_->reason != FinishReason::kLength;
  std::string text = by_id ? std::exchange(held_, {}) + std::string(tail) : take(tail, false);
  text += std::exchange(held_, {});
  return {std::move(text), finish_};
}

std::optional<Finish> StopRules::id_finish(int token_id) const {
  if (tokens_ <= min_tokens_) return {};
  if (std::binary_search(eos_ids_.begin(), eos_ids_.end(), token_id)) {
    return Finish{.reason = FinishReason::kEos, .token_id = token_id};
  }
  if (std::binary_search(stop_token_ids_.begin(), stop_token_ids_.end(), token_id)) {
    return Finish{.reason = FinishReason::kStopToken, .token_id = token_id};
  }
  return {};
}

// Adds text to what is held, looks for stop strings and returns what can be shown. Sets finish_ on a match.
std::string StopRules::take(std::string_view text, bool literal) {
  if (matchers_.empty()) return std::string(text);
  if (literal) {
    for (Matcher& matcher : matchers_) matcher.matched = 0;
    return std::exchange(held_, {}) + std::string(text);
  }
  const bool may_stop = tokens_ > min_tokens_;
  for (const char byte : text) {
    held_ += byte;
    int complete = -1;
    for (std::size_t i = 0; i < matchers_.size(); ++i) {
      Matcher& matcher = matchers_[i];
      if (!matcher.advance(byte)) continue;
      const bool longer =
          complete < 0 || matcher.text.size() > matchers_[static_cast<std::size_t>(complete)].text.size();
      if (may_stop && longer) complete = static_cast<int>(i);
      if (!may_stop) matcher.restart();
    }
    if (complete >= 0) {
      const std::size_t hidden =
          include_stop_ ? 0 : matchers_[static_cast<std::size_t>(complete)].text.size();
      finish_ = Finish{.reason = FinishReason::kStopString, .stop_index = complete};
      std::string shown = std::exchange(held_, {});
      shown.resize(shown.size() - hidden);
      return shown;
    }
  }
  std::size_t open = 0;
  for (const Matcher& matcher : matchers_) open = std::max<std::size_t>(open, matcher.matched);
  std::string shown = held_.substr(0, held_.size() - open);
  held_.erase(0, held_.size() - open);
  return shown;
}

}  // namespace mimo
