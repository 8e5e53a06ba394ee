// A drafter that knows the answers, for tests of the loop around it: it proposes them, or something else on
// purpose, and checks everything that the loop promises to a drafter on the way.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/philox.h"
#include "model/drafter.h"

namespace mimo::testing {

enum class Script {
  kRight,  // the tokens of the answer
  kWrong,  // never one of them
  kMixed,  // right or wrong by a coin keyed by request and position
};

class ScriptedDrafter : public Drafter {
 public:
  struct Options {
    Script script = Script::kRight;
    int max_drafts = 7;
    int vocab = 0;
    std::vector<int> taps = {0};
    std::int64_t skipped_prompt = 0;  // rows of every prompt that it does not want
    float confidence = 1.0f;          // of every draft
    // Overrides: what to do for request `index` with its anchor at `position`.
    std::function<bool(std::size_t index, std::int64_t position)> fails = {};
    std::function<std::optional<std::int32_t>(std::size_t index, std::int64_t position)> token = {};
    std::function<bool(std::size_t index)> refuses = {};
  };

  // `sequences`: prompt and answer of every request, in the order in which states are opened.
  ScriptedDrafter(Options options, std::vector<std::vector<std::int32_t>> sequences)
      : options_(std::move(options)), sequences_(std::move(sequences)) {}

  const char* name() const override { return "SCRIPTED"; }
  int max_drafts() const override { return options_.max_drafts; }
  std::size_t weight_bytes() const override { return 0; }
  std::size_t state_bytes() const override { return 0; }
  std::span<const int> taps() const override { return options_.taps; }
  std::int64_t first_needed(std::int64_t prompt_tokens) const override {
    return std::min(options_.skipped_prompt, prompt_tokens - 1);
  }

  Result<std::unique_ptr<DraftState>> open(std::int64_t max_tokens) override {
    const std::size_t index = opened_++;
    if (index >= sequences_.size()) ADD_FAILURE() << "more states than requests";
    if (options_.refuses && options_.refuses(index)) {
      return fail(ErrorCode::kLimit, "no memory for this state");
    }
    auto state = std::make_unique<State>();
    state->owner = this;
    state->index = index;
    state->max_tokens = max_tokens;
    most_alive = std::max(most_alive, ++alive_);
    return state;
  }

  void observe(std::span<const DraftObservation> observations, std::span<const float> taps) override {
    for (const DraftObservation& seen : observations) {
      auto& state = static_cast<State&>(*seen.state);
      if (state.next < 0) {
        EXPECT_LE(seen.position, options_.skipped_prompt) << "request " << state.index;
        state.next = seen.position;
      }
      EXPECT_GE(seen.position, state.next) << "request " << state.index << ": positions in order, none twice";
      left_out += seen.position - state.next;
      ASSERT_GT(seen.rows, 0);
      ASSERT_EQ(std::ssize(seen.tokens), seen.rows + 1);
      for (int i = 0; i <= seen.rows; ++i) {
        state.tokens.resize(static_cast<std::size_t>(seen.position + i) + 1, -1);
        std::int32_t& known = state.tokens[static_cast<std::size_t>(seen.position + i)];
        EXPECT_TRUE(known < 0 || known == seen.tokens[static_cast<std::size_t>(i)]);
        known = seen.tokens[static_cast<std::size_t>(i)];
      }
      if (on_taps) {
        const std::size_t width = options_.taps.size() * hidden;
        for (int i = 0; i < seen.rows; ++i) {
          on_taps(state.index, seen.position + i,
                  taps.subspan(static_cast<std::size_t>(seen.row_begin + i) * width, width));
        }
      }
      state.next = seen.position + seen.rows;
      observed_rows += seen.rows;
    }
    ++observe_calls;
  }

  void draft(std::span<DraftRequest> requests) override {
    largest_batch = std::max(largest_batch, requests.size());
    for (DraftRequest& request : requests) {
      auto& state = static_cast<State&>(*request.state);
      EXPECT_EQ(request.position, state.next) << "every position before the anchor has been observed";
      EXPECT_EQ(request.anchor, state.tokens.back());
      EXPECT_EQ(request.confidence.size(), request.drafts.size());
      EXPECT_GE(request.drafts.size(), 1u);
      EXPECT_LE(std::ssize(request.drafts), options_.max_drafts);
      EXPECT_LT(request.position + std::ssize(request.drafts) + 1, state.max_tokens + 1) << "beyond the end";
      if (options_.fails && options_.fails(state.index, request.position)) {
        request.failed = true;
        continue;
      }
      for (std::size_t i = 0; i < request.drafts.size(); ++i) {
        const std::int64_t position = request.position + static_cast<std::int64_t>(i) + 1;
        request.drafts[i] = token_at(state.index, position);
        request.confidence[i] = options_.confidence;
      }
    }
  }

  // Called with every tapped row.
  std::function<void(std::size_t index, std::int64_t position, std::span<const float> row)> on_taps;
  std::size_t hidden = 0;  // needed for on_taps

  int alive() const { return alive_; }
  int most_alive = 0;
  std::size_t largest_batch = 0;
  std::int64_t observed_rows = 0;
  std::int64_t observe_calls = 0;
  std::int64_t left_out = 0;  // positions between observed ones that were not shown

 private:
  struct State : DraftState {
    ~State() override { --owner->alive_; }
    ScriptedDrafter* owner = nullptr;
    std::size_t index = 0;
    std::int64_t max_tokens = 0;
    std::int64_t next = -1;  // position to be observed
    std::vector<std::int32_t> tokens;
  };

  std::int32_t token_at(std::size_t index, std::int64_t position) const {
    if (options_.token) {
      if (const auto token = options_.token(index, position)) return *token;
    }
    const std::vector<std::int32_t>& sequence = sequences_[index];
    const auto at = static_cast<std::size_t>(position);
    const std::int32_t right = at < sequence.size() ? sequence[at] : 1;
    const bool wrong = options_.script == Script::kWrong ||
                       (options_.script == Script::kMixed && philox_uniform(index, position) < 0.35);
    return wrong ? (right + 1 + static_cast<std::int32_t>(index)) % options_.vocab : right;
  }

  Options options_;
  std::vector<std::vector<std::int32_t>> sequences_;
  std::size_t opened_ = 0;
  int alive_ = 0;
};

}  // namespace mimo::testing
