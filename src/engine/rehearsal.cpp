#include "engine/rehearsal.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "cache/sequence_pages.h"

namespace mimo {
namespace {

class NoSink final : public AnswerSink {
 public:
  explicit NoSink(std::optional<Error>& error) : error_(error) {}
  void on_step(AnswerStep&& step) override {
    if (step.error && !error_) error_ = std::move(step.error);
  }

 private:
  std::optional<Error>& error_;
};

EngineRequest request_of(std::int64_t prompt, std::int64_t answer) {
  EngineRequest request;
  request.prompt.assign(static_cast<std::size_t>(prompt), 0);
  request.params.max_tokens = answer;
  request.params.ignore_eos = true;
  request.params.presence_penalty = 0.5;  // the sampler's: every row's logits are brought to the CPU
  return request;
}

// Requests of this kind from submission to end.
Status run(EngineCore& core, int count, const EngineRequest& request) {
  std::optional<Error> error;
  for (int i = 0; i < count; ++i) {
    const Status taken = core.submit(static_cast<RequestId>(i + 1), request, std::make_shared<NoSink>(error));
    if (!taken) return taken;
  }
  try {
    while (!core.idle()) core.step();
  } catch (const std::exception& failure) {
    return fail(ErrorCode::kLimit, "{}", failure.what());
  }
  core.settle();
  // Random weights may give logits that are not finite: the step was as large.
  if (error && error->code != ErrorCode::kInternal) return tl::unexpected(*error);
  return {};
}

}  // namespace

Result<std::uint64_t> rehearse_steps(TargetModel& model, Ops& ops, EngineOptions options) {
  const int block = 1 + (options.drafter == nullptr ? 0 : options.drafter->max_drafts());
  const int size = options.scheduler.layout.page_size;
  const int running = options.scheduler.max_running;
  const std::int64_t chunk = std::min<std::int64_t>(options.scheduler.rows, model.config().max_positions - 1);
  const std::int64_t answer = std::min<std::int64_t>(4 * block, model.config().max_positions - 1);
  options.scheduler.block = block;
  options.scheduler.max_queued = std::max(options.scheduler.max_queued, running);
  options.full_pages = std::max(pages_for(chunk + 1, size), running * pages_for(answer + 1, size));
  options.window_pages = Scheduler::window_pages(options.scheduler, running);
  options.max_model_len = 0;
  options.prefix_cache = false;
  options.host_kv_bytes = 0;
  options.log = [](std::string_view) {};

  std::uint64_t left = 0;
  std::uint64_t pools = 0;
  {
    Result<std::unique_ptr<EngineCore>> core = EngineCore::make(model, ops, options);
    if (!core) return tl::unexpected(core.error().within("the largest step"));
    for (const auto& [count, request] :
         {std::pair{1, request_of(chunk, 1)}, std::pair{running, request_of(1, answer)}}) {
      if (const Status ok = run(**core, count, request); !ok) {
        return tl::unexpected(ok.error().within("the largest step"));
      }
    }
    left = ops.free_memory();
    pools = (*core)->kv_bytes();
  }
  const std::uint64_t now = ops.free_memory();
  const std::uint64_t given_back = now - std::min(now, left);
  return given_back - std::min(given_back, pools);
}

}  // namespace mimo
