#include "server/warm_up.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "text/chat_prompt.h"

namespace mimo {
namespace {

using Clock = std::chrono::steady_clock;
using TokenIds = std::vector<TokenId>;

// Easy to draft for, and answered by any model that reasons.
constexpr const char* kQuestion = "What is 13 plus 29? Think step by step.";
constexpr std::int64_t kQuestionTokens = 32;  // of its answer: four blocks or more
constexpr std::int64_t kFillerTokens = 4;

// Waits for the end of one answer.
class WarmUpSink final : public AnswerSink {
 public:
  void on_step(AnswerStep&& step) override {
    const std::scoped_lock lock(mutex_);
    if (!step.last()) return;
    last_ = std::move(step);
    done_.notify_all();
  }

  // The last step; none: not by then.
  std::optional<AnswerStep> wait(Clock::time_point until) {
    std::unique_lock lock(mutex_);
    done_.wait_until(lock, until, [this] { return last_.has_value(); });
    return last_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::optional<AnswerStep> last_;
};

Result<TokenIds> question(const Tokenizer& tokenizer, const ChatFormat* format) {
  if (format == nullptr) return tokenizer.encode(kQuestion, {});
  const json::array messages = {json::object{{"role", "user"}, {"content", kQuestion}}};
  ChatInput input;
  input.messages = &messages;
  Result<ChatPrompt> prompt = make_chat_prompt(*format, tokenizer, input);
  if (!prompt) return tl::unexpected(prompt.error().within("the chat template, given one user message"));
  return std::move(prompt->ids);
}

}  // namespace

Result<WarmUp> warm_up(EngineClient& engine, const Tokenizer& tokenizer, const ChatFormat* format,
                       const WarmUpOptions& options) {
  const Clock::time_point begin = Clock::now();
  const auto until =
      begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
  Result<TokenIds> asked = question(tokenizer, format);
  if (!asked) return forward_error(asked);
  const std::int64_t room = engine.max_model_len();

  std::vector<EngineRequest> requests;
  const auto add = [&](TokenIds prompt, std::int64_t tokens) -> EngineRequest* {
    if (prompt.empty() || std::ssize(prompt) + tokens > room) return nullptr;
    EngineRequest& request = requests.emplace_back();
    request.prompt = std::move(prompt);
    request.params.max_tokens = tokens;
    request.params.ignore_eos = true;
    request.params.seed = 1;
    request.cache_salt = "warm-up";
    return &request;
  };
  const TokenIds pattern = *asked;
  if (EngineRequest* greedy = add(*asked, kQuestionTokens)) greedy->params.temperature = 0;
  TokenIds filler;
  const std::int64_t length = std::min(options.prompt_tokens, room - kFillerTokens);
  for (std::int64_t i = 0; i < length && !pattern.empty(); ++i) {
    filler.push_back(pattern[static_cast<std::size_t>(i) % pattern.size()]);
  }
  if (EngineRequest* sampled = add(std::move(filler), kFillerTokens)) sampled->speculation = false;

  std::vector<std::pair<RequestId, std::shared_ptr<WarmUpSink>>> running;
  for (EngineRequest& request : requests) {
    auto sink = std::make_shared<WarmUpSink>();
    const Result<RequestId> id = engine.submit(std::move(request), sink);
    if (id) {
      running.emplace_back(*id, std::move(sink));
    } else if (id.error().code != ErrorCode::kLimit && id.error().code != ErrorCode::kBusy) {
      return tl::unexpected(id.error().within("warm-up"));
    }  // small pools, or no queue: what does not fit together is not run
  }
  WarmUp done;
  for (const auto& [id, sink] : running) {
    std::optional<AnswerStep> last = sink->wait(until);
    if (!last) {
      done.cut = true;
      engine.abort(id);
      last = sink->wait(Clock::time_point::max());  // the watchdog ends a stuck engine
    }
    if (last->error && last->error->code != ErrorCode::kCancelled) {
      return tl::unexpected(last->error->within("warm-up"));
    }
    done.tokens += last->usage.completion_tokens;
    done.speculation.add(last->usage.speculation);
  }
  // The engine may still be at the bookkeeping of the last step.
  for (int i = 0; i < 100 && !engine.flush_cache(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  done.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return done;
}

std::string draft_warning(const WarmUp& done) {
  const SpeculationStats& stats = done.speculation;
  if (stats.verify_steps < kJudgedWarmUpSteps || stats.accepted > 0) return {};
  return fmt::format(
      "warning: self-check: none of {} drafts fitted the model in {} steps. Answers are not affected, but "
      "drafting "
      "costs more than it gains. Likely causes: a drafter made for another checkpoint, weights or a mask "
      "embedding "
      "that are zero or damaged, the wrong --speculative-dflash-final-tap. --speculative-algorithm NONE "
      "turns it "
      "off",
      stats.proposed, stats.verify_steps);
}

}  // namespace mimo
