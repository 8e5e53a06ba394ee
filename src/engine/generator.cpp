#include "engine/generator.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "cache/page_pool.h"
#include "cache/sequence_pages.h"
#include "text/detokenizer.h"

namespace mimo {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// A request on its way.
struct Running {
  Running(const GenerateRequest& r, const PageLayout& layout, PagePool& full, PagePool& window,
          std::span<const int> eos_ids)
      : request(&r), pages(layout, full, window), stop(r.params, eos_ids) {
    if (uses_penalties(r.params)) history.add_prompt(r.prompt);
  }

  bool prefilling() const { return pages.length() < static_cast<std::int64_t>(request->prompt.size()); }

  const GenerateRequest* request;
  SequencePages pages;
  StopRules stop;
  TokenHistory history;
  std::optional<Detokenizer> detokenizer;
  std::uint64_t seed = 0;
  std::int32_t next = -1;  // sampled, not yet run
  bool done = false;
  Clock::time_point first_token;
};

// Rows of one step and where their logits go.
struct Step {
  std::vector<std::int32_t> tokens;
  std::vector<std::size_t> requests;  // of each sequence of the batch
  std::vector<SequenceRows> full;
  std::vector<SequenceRows> window;
  std::vector<std::int32_t> logit_rows;
  std::vector<std::size_t> logit_begin;  // [sequences] first index into logit_rows
};

}  // namespace

Status check_request(const GenerateRequest& request, const ModelConfig& config) {
  if (request.prompt.empty())
    return fail(ErrorCode::kInvalidArgument, "prompt: no tokens, at least 1 is needed");
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= config.vocab) {
      return fail(ErrorCode::kInvalidArgument, "prompt token {}: id {}, expected 0 to {}", i,
                  request.prompt[i], config.vocab - 1);
    }
  }
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t generated = request.params.max_tokens.value_or(0);
  if (prompt > config.max_positions || generated > config.max_positions - prompt) {
    return fail(ErrorCode::kInvalidArgument,
                "prompt of {} tokens + max_tokens {}: the model's context is {} tokens", prompt, generated,
                config.max_positions);
  }
  SamplingParams params = request.params;
  if (params.max_tokens == 0) params.max_tokens = 1;
  return validate(params, config.vocab);
}

Generator::Generator(TargetModel& model, Ops& ops, const GeneratorOptions& options)
    : model_(model), ops_(ops), options_(options) {}

Result<std::vector<GenerateResult>> Generator::run(std::span<const GenerateRequest> requests,
                                                   const GenerateCallbacks& callbacks) {
  const ModelConfig& config = model_.config();
  const PageLayout layout{options_.page_size, config.window.window};
  std::int64_t full_pages = 0;
  std::int64_t window_pages = 0;
  for (const GenerateRequest& request : requests) {
    if (const Status ok = check_request(request, config); !ok) return forward_error(ok);
    if (options_.tokenizer == nullptr && !request.params.stop.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "stop: strings need a tokenizer, and this checkpoint has none");
    }
    const std::int64_t tokens =
        static_cast<std::int64_t>(request.prompt.size()) + request.params.max_tokens.value_or(0);
    const std::int64_t all = pages_for(tokens, layout.page_size);
    full_pages += all;
    // A window layer holds the window before a chunk, the chunk, and a page cut at either end.
    window_pages += std::min(all, pages_for(layout.window + options_.chunk, layout.page_size) + 2);
  }
  PagePool full("full", full_pages);
  PagePool window("window", window_pages);
  Result<ModelKv> kv = ModelKv::make(ops_, config,
                                     {.dtype = options_.kv_dtype,
                                      .page_size = options_.page_size,
                                      .full_pages = full_pages,
                                      .window_pages = window_pages});
  if (!kv) return forward_error(kv);

  const auto vocab = static_cast<std::size_t>(config.vocab);
  const int allowed = options_.tokenizer == nullptr
                          ? config.vocab
                          : std::min(config.vocab, static_cast<int>(options_.tokenizer->vocab_size()));
  Sampler sampler({.vocab = config.vocab, .allowed_vocab = allowed, .eos_ids = config.eos_token_ids});
  std::vector<GenerateResult> results(requests.size());
  std::vector<std::unique_ptr<Running>> running;
  std::random_device entropy;
  for (const GenerateRequest& request : requests) {
    running.push_back(std::make_unique<Running>(request, layout, full, window, config.eos_token_ids));
    Running& r = *running.back();
    r.seed = request.params.seed.value_or((static_cast<std::uint64_t>(entropy()) << 32) | entropy());
    // Control tokens are shown only when the caller sees ids anyway; text leaves them out.
    if (options_.tokenizer != nullptr) r.detokenizer.emplace(*options_.tokenizer, true);
  }

  const Clock::time_point start = Clock::now();
  std::vector<float> logits;

  const auto end_request = [&](std::size_t index) {
    Running& r = *running[index];
    r.done = true;
    const StopRules::Step rest = r.stop.finish(r.detokenizer ? r.detokenizer->finish() : std::string());
    results[index].text += rest.text;
    if (rest.finish && results[index].finish) results[index].finish = rest.finish;
    if (callbacks.on_text && !rest.text.empty()) callbacks.on_text(index, rest.text);
    results[index].decode_seconds = seconds_between(r.first_token, Clock::now());
  };

  // Samples the token after the last row of request `index` from its logits.
  const auto advance = [&](std::size_t index, std::span<const float> row) {
    Running& r = *running[index];
    GenerateResult& result = results[index];
    if (result.tokens.empty()) {
      r.first_token = Clock::now();
      result.prefill_seconds = seconds_between(start, r.first_token);
    }
    if (r.request->params.max_tokens == 0) {
      r.done = true;
      return;
    }
    const Result<SampledToken> token =
        sampler.sample(row, r.request->params, r.history, r.seed, r.pages.length());
    if (!token) {
      result.error = token.error();
      end_request(index);
      return;
    }
    result.tokens.push_back(*token);
    r.history.add_generated(token->id);
    std::string piece;
    if (r.detokenizer) {
      const Result<std::string> text = r.detokenizer->push(token->id);
      if (text) piece = *text;
    }
    const StopRules::Step step = r.stop.push(token->id, piece);
    result.text += step.text;
    if (callbacks.on_text && !step.text.empty()) callbacks.on_text(index, step.text);
    r.next = token->id;
    if (step.finish) {
      result.finish = step.finish;
      end_request(index);
    }
  };

  while (true) {
    Step step;
    std::vector<std::int64_t> counts;
    int budget = options_.chunk;
    // Decoding requests first: their users are waiting for the next token.
    for (const bool decode : {true, false}) {
      for (std::size_t i = 0; i < running.size() && budget > 0; ++i) {
        Running& r = *running[i];
        if (r.done || r.prefilling() == decode) continue;
        const std::int64_t at = r.pages.length();
        const std::int64_t count =
            decode ? 1
                   : std::min<std::int64_t>(budget, static_cast<std::int64_t>(r.request->prompt.size()) - at);
        if (const Status room = r.pages.extend(count); !room) return forward_error(room);
        const SequenceRows rows{static_cast<int>(step.tokens.size()), static_cast<int>(count), at, {}};
        step.full.push_back(rows);
        step.window.push_back(rows);
        step.requests.push_back(i);
        step.logit_begin.push_back(step.logit_rows.size());
        counts.push_back(count);
        if (decode) {
          step.tokens.push_back(r.next);
        } else {
          const auto begin = r.request->prompt.begin() + at;
          step.tokens.insert(step.tokens.end(), begin, begin + count);
        }
        const bool last = decode || at + count == static_cast<std::int64_t>(r.request->prompt.size());
        const int first_row = !decode && callbacks.on_prompt_logits ? 0 : static_cast<int>(count) - 1;
        if (last || (!decode && callbacks.on_prompt_logits)) {
          for (int row = first_row; row < count; ++row) step.logit_rows.push_back(rows.row_begin + row);
        }
        budget -= static_cast<int>(count);
      }
    }
    if (step.tokens.empty()) break;
    for (std::size_t s = 0; s < step.requests.size(); ++s) {
      step.full[s].pages = running[step.requests[s]]->pages.full_pages();
      step.window[s].pages = running[step.requests[s]]->pages.window_pages();
    }
    logits.resize(step.logit_rows.size() * vocab);
    model_.forward({step.tokens, step.full, step.window, step.logit_rows}, *kv, logits);

    for (std::size_t s = 0; s < step.requests.size(); ++s) {
      Running& r = *running[step.requests[s]];
      const bool prefill = r.prefilling();
      const std::int64_t first = r.pages.length();
      r.pages.commit(counts[s]);
      const std::size_t end =
          s + 1 < step.logit_begin.size() ? step.logit_begin[s + 1] : step.logit_rows.size();
      const std::size_t rows = end - step.logit_begin[s];
      const float* from = logits.data() + step.logit_begin[s] * vocab;
      if (prefill && callbacks.on_prompt_logits) {
        callbacks.on_prompt_logits(step.requests[s], first, {from, rows * vocab});
      }
      if (!r.prefilling()) advance(step.requests[s], {from + (rows - 1) * vocab, vocab});
    }
  }
  return results;
}

}  // namespace mimo
