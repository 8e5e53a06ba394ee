// Times the scheduler alone: microseconds of a step, which the engine spends before and after the model runs.
//   bench_scheduler_step [running] [context] [rows] [page] [steps]
// decode: `running` requests of `context` tokens each take one row (or a block of 4) a step; nobody comes or goes.
// queue:  the same, and 64 requests wait.
// mixed:  answers have up to 512 tokens; who ends is replaced by a prompt of `context` tokens, half of them shared by all. The
//         pool is so small that what the prefix tree keeps of ended requests has to be evicted all the time.
// A step is prepare + lay_out + advance of every part; coming and going (submit, remove) is timed apart.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "engine/scheduler.h"

namespace {

// Of this thread alone: what others take of a shared machine is not the scheduler's. A reading costs some 0.3 us.
double thread_microseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

struct Shape {
  int running = 256;
  std::int64_t context = 1024;
  int rows = 1024;
  int page = 64;
  int steps = 2000;
};

enum class Load { kDecode, kQueue, kMixed };

constexpr std::int64_t kAnswer = 512;
constexpr int kWaiting = 64;

struct Times {
  std::vector<double> prepare, lay_out, advance, step, turnover, decoding;
};

double since(double start) { return thread_microseconds() - start; }

class Bench {
 public:
  Bench(const Shape& shape, Load load, int block, bool tree)
      : shape_(shape),
        load_(load),
        // Long enough that nobody ends while the others' prompts run, nor later.
        answer_(load == Load::kMixed ? kAnswer
                                     : std::int64_t{shape.steps} * block + kAnswer +
                                           4 * shape.running * shape.context / shape.rows),
        options_(make_options(shape, block)),
        full_("full", pool_tokens(shape, load, answer_) / shape.page),
        window_("window",
                mimo::Scheduler::window_pages(options_, shape.running) + 4 * std::int64_t{shape.running}),
        tree_(options_.layout, full_, window_),
        drafts_(static_cast<std::size_t>(shape.running), block - 1),
        emitted_(static_cast<std::size_t>(block)) {
    mimo::Result<mimo::Scheduler> made =
        mimo::Scheduler::make(options_, full_, window_, tree ? &tree_ : nullptr);
    MIMO_CHECK(made.has_value(), "{}", made.error().message);
    scheduler_.emplace(std::move(*made));
    for (std::int64_t i = 0; i < shape.context / 2; ++i) shared_.push_back(token());
  }

  Times run() {
    for (int i = 0; i < shape_.running; ++i) submit();
    Times warm;
    if (load_ == Load::kMixed) {
      // Until everybody has been replaced, and the pool is full of what is left of the first ones.
      for (int i = 0; i < 4 * kAnswer / options_.block; ++i) step(warm);
    } else {
      while (static_cast<int>(decoding()) < shape_.running) step(warm);
    }
    if (load_ == Load::kQueue) {
      for (int i = 0; i < kWaiting; ++i) submit();
    }
    Times times;
    for (int i = 0; i < shape_.steps; ++i) step(times);
    return times;
  }

 private:
  static mimo::SchedulerOptions make_options(const Shape& shape, int block) {
    mimo::SchedulerOptions options;
    options.layout = {shape.page, 128};
    options.rows = shape.rows;
    options.max_running = shape.running;
    options.max_queued = 1 << 20;
    options.block = block;
    return options;
  }

  static std::int64_t pool_tokens(const Shape& shape, Load load, std::int64_t answer) {
    const std::int64_t all = shape.running * (shape.context + answer + 2 * std::int64_t{shape.page});
    return load == Load::kMixed ? all + all / 4 : all;
  }

  std::int32_t token() { return static_cast<std::int32_t>(random_() % 100'000); }

  void submit() {
    mimo::ScheduledRequest request;
    request.id = next_++;
    if (load_ == Load::kMixed) request.tokens = shared_;
    while (std::ssize(request.tokens) < shape_.context) request.tokens.push_back(token());
    request.prompt = shape_.context;
    // Ends are spread over the steps.
    const std::int64_t less =
        load_ == Load::kMixed ? static_cast<std::int64_t>(random_() % (kAnswer / 2)) : 0;
    request.limit = shape_.context + answer_ - less;
    const auto start = thread_microseconds();
    const mimo::Status taken = scheduler_->submit(std::move(request));
    turnover_ += since(start);
    MIMO_CHECK(taken.has_value(), "{}", taken.error().message);
  }

  std::size_t decoding() const { return scheduler_->decoding().size(); }

  void step(Times& times) {
    const auto start = thread_microseconds();
    scheduler_->prepare();
    const double prepared = since(start);
    const std::size_t count = decoding();
    // No more drafts than fit into the step, half of which is left to prompts, and than an answer may still have.
    const bool prompts = std::cmp_less(count, scheduler_->running());
    const auto room = static_cast<std::size_t>(prompts ? shape_.rows / 2 : shape_.rows);
    const auto most = static_cast<int>(count == 0 ? 0 : std::max<std::size_t>(room / count, 1) - 1);
    for (std::size_t i = 0; i < count; ++i) {
      const mimo::ScheduledRequest& request = *scheduler_->decoding()[i];
      const std::int64_t left = request.limit - std::ssize(request.tokens);
      drafts_[i] = static_cast<int>(std::clamp<std::int64_t>(std::min<std::int64_t>(options_.block - 1, most),
                                                             0, std::max<std::int64_t>(left - 1, 0)));
    }
    const auto drafted = thread_microseconds();
    const mimo::StepPlan& plan = scheduler_->lay_out(std::span(drafts_).first(count));
    const double laid_out = since(drafted);
    ended_.clear();
    const auto ran = thread_microseconds();
    for (const mimo::PlanPart& part : plan.parts) {
      if (part.prefill && !part.last) {
        scheduler_->advance(part.id, part.rows, {});
        continue;
      }
      const auto tokens = static_cast<std::size_t>(part.prefill ? 1 : part.rows);
      for (std::size_t i = 0; i < tokens; ++i) emitted_[i] = static_cast<std::int32_t>(i) + 7;
      scheduler_->advance(part.id, part.rows, std::span(emitted_).first(tokens));
      const mimo::ScheduledRequest& request = *scheduler_->find(part.id);
      if (std::ssize(request.tokens) >= request.limit) ended_.push_back(part.id);
    }
    const double advanced = since(ran);
    const auto leaving = thread_microseconds();
    for (const mimo::RequestId id : ended_) scheduler_->remove(id);
    turnover_ = since(leaving);
    for (std::size_t i = 0; i < ended_.size(); ++i) submit();
    times.prepare.push_back(prepared);
    times.lay_out.push_back(laid_out);
    times.advance.push_back(advanced);
    times.step.push_back(prepared + laid_out + advanced);
    times.turnover.push_back(turnover_);
    times.decoding.push_back(static_cast<double>(count));
  }

  Shape shape_;
  Load load_;
  std::int64_t answer_;
  mimo::SchedulerOptions options_;
  mimo::PagePool full_;
  mimo::PagePool window_;
  mimo::PrefixTree tree_;
  std::optional<mimo::Scheduler> scheduler_;
  std::mt19937 random_{7};
  std::vector<std::int32_t> shared_;
  std::vector<int> drafts_;
  std::vector<std::int32_t> emitted_;
  std::vector<mimo::RequestId> ended_;
  mimo::RequestId next_ = 1;
  double turnover_ = 0;
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

void report(const char* name, int block, bool tree, const Times& times) {
  std::printf("| %-6s | %d | %-3s | %5.0f | %6.1f | %6.1f | %6.1f | %6.1f | %6.1f | %6.1f | %6.1f |\n", name,
              block, tree ? "on" : "off", mean(times.decoding), mean(times.step), quantile(times.step, 0.5),
              quantile(times.step, 0.99), mean(times.prepare), mean(times.lay_out), mean(times.advance),
              mean(times.turnover));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Shape shape;
  const auto number = [&](int place, std::int64_t otherwise) {
    return argc > place ? std::strtoll(argv[place], nullptr, 10) : otherwise;
  };
  shape.running = static_cast<int>(number(1, shape.running));
  shape.context = number(2, shape.context);
  shape.rows = static_cast<int>(number(3, shape.rows));
  shape.page = static_cast<int>(number(4, shape.page));
  shape.steps = static_cast<int>(number(5, shape.steps));
  if (shape.running < 1 || shape.context < 2 || shape.rows < 2 * shape.running || shape.page < 1 ||
      shape.steps < 1) {
    std::fputs("usage: bench_scheduler_step [running] [context] [rows >= 2 * running] [page] [steps]\n",
               stderr);
    return 2;
  }
  std::printf("%d running, context %lld, %d rows, pages of %d, %d steps; microseconds a step\n\n",
              shape.running, static_cast<long long>(shape.context), shape.rows, shape.page, shape.steps);
  std::printf(
      "| load | block | tree | decoding | mean | p50 | p99 | prepare | lay_out | advance | submit+remove "
      "|\n");
  std::printf("|---|---|---|---|---|---|---|---|---|---|---|\n");
  const std::pair<const char*, Load> loads[] = {
      {"decode", Load::kDecode}, {"queue", Load::kQueue}, {"mixed", Load::kMixed}};
  for (const auto& [name, load] : loads) {
    for (const int block : {1, 4}) {
      for (const bool tree : {true, false}) report(name, block, tree, Bench(shape, load, block, tree).run());
    }
  }
  return 0;
}
