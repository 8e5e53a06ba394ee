// Time of a DFlash draft and of the context update after it, beside the target's steps: a short prompt, one row, and
// the verification of as many rows as a block has.
//
//   bench_dflash_step DIR [context] [requests]
//
// DIR holds config.json and dflash/ (weights of the target are random: its time does not depend on them). Lower
// quartile of 400 calls.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/weight_source.h"
#include "model/dflash.h"
#include "model/target.h"
#include "ops/cpu/cpu_ops.h"
#include "timed_ops.h"

namespace mimo {
namespace {

constexpr int kCalls = 400;
constexpr int kPage = 16;
constexpr int kPromptRows = 48;

template <class T>
T unwrap(Result<T> result) {
  if (!result) {
    fmt::print(stderr, "{}\n", result.error().message);
    std::exit(1);
  }
  return std::move(*result);
}

double lower_quartile(std::vector<double> times) {
  const auto at = times.begin() + std::ssize(times) / 4;
  std::nth_element(times.begin(), at, times.end());
  return *at;
}

// Lower quartile of single calls: what a call takes when nothing else takes the CPUs.
double usual_ms(const char* name, TimedOps& ops, const std::function<void()>& call) {
  std::vector<double> times;
  std::array<std::vector<double>, TimedOps::kParts> part_times;
  for (int i = 0; i < kCalls; ++i) {
    ops.reset();
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count());
    for (int part = 0; part < TimedOps::kParts; ++part) {
      part_times[static_cast<std::size_t>(part)].push_back(ops.seconds(part));
    }
  }
  std::string parts;
  for (int part = 0; part < TimedOps::kParts; ++part) {
    const double us = lower_quartile(part_times[static_cast<std::size_t>(part)]) * 1e6;
    if (us > 0) parts += fmt::format("  {} {:.0f}", TimedOps::kNames[static_cast<std::size_t>(part)], us);
  }
  fmt::print("{:<8} us:{}\n", name, parts);
  return lower_quartile(std::move(times));
}

void run(const std::string& directory, int context, int requests) {
  const auto ops = std::make_unique<TimedOps>(unwrap(make_cpu_ops({})));
  const ModelConfig config = unwrap(load_config(directory));
  const auto source = unwrap(open_random(config, 1));
  TargetModel target = unwrap(TargetModel::load(*source, *ops, {}));
  const auto drafter =
      unwrap(DFlashDrafter::load(directory + "/dflash", target, *ops, {.max_requests = requests}));
  const int block = drafter->max_drafts() + 1;
  const std::size_t width = drafter->taps().size() * static_cast<std::size_t>(config.hidden);

  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> taps(static_cast<std::size_t>(std::max(context, requests * block)) * width);
  for (float& tap : taps) tap = normal(random);

  const std::int64_t pages = (context + 2 * block) / kPage + 1;
  ModelKv kv = unwrap(ModelKv::make(
      *ops, config, {.page_size = kPage, .full_pages = pages * requests, .window_pages = pages * requests}));
  std::vector<std::unique_ptr<DraftState>> states;
  std::vector<std::vector<std::int32_t>> tables;
  std::vector<DraftObservation> seen;
  std::vector<std::vector<std::int32_t>> drafts;
  std::vector<std::vector<float>> confidence;
  std::vector<DraftRequest> wanted;
  std::vector<SequenceRows> rows;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> logit_rows;
  for (int i = 0; i < requests; ++i) {
    tables.emplace_back(static_cast<std::size_t>(pages));
    std::iota(tables.back().begin(), tables.back().end(), static_cast<std::int32_t>(pages * i));
    drafts.emplace_back(static_cast<std::size_t>(block - 1));
    confidence.emplace_back(static_cast<std::size_t>(block - 1));
  }
  for (int i = 0; i < requests; ++i) {
    const auto at = static_cast<std::size_t>(i);
    states.push_back(unwrap(drafter->open(config.max_positions)));
    const DraftObservation prompt{states.back().get(), 0, context, 0, {}};
    drafter->observe({&prompt, 1}, taps);
    seen.push_back({states.back().get(), i * block, 5, context, {}});
    wanted.push_back({states.back().get(), 1, context, drafts[at], confidence[at]});
    rows.push_back({i * block, block, context, tables[at]});
    for (int r = 0; r < block; ++r) {
      tokens.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(config.vocab)));
      logit_rows.push_back(i * block + r);
    }
  }
  const std::int64_t first = context;
  std::vector<float> logits(logit_rows.size() * static_cast<std::size_t>(config.vocab));
  std::vector<float> out(tokens.size() * width);
  std::vector<SequenceRows> one_row = rows;
  for (int i = 0; i < requests; ++i)
    one_row[static_cast<std::size_t>(i)] = {i, 1, context, tables[static_cast<std::size_t>(i)]};
  const std::span<const std::int32_t> first_rows =
      std::span(logit_rows).first(static_cast<std::size_t>(requests));
  const std::span<const std::int32_t> first_tokens =
      std::span(tokens).first(static_cast<std::size_t>(requests));
  const double plain = usual_ms("plain", *ops, [&] {
    target.forward({first_tokens, one_row, one_row, first_rows}, kv, logits);
  });
  std::vector<std::int32_t> prompt_tokens(kPromptRows);
  for (std::int32_t& token : prompt_tokens) {
    token = static_cast<std::int32_t>(random() % static_cast<unsigned>(config.vocab));
  }
  const std::vector<SequenceRows> prompt_rows{{0, kPromptRows, 0, tables[0]}};
  const double prompt = usual_ms("prompt", *ops, [&] {
    target.forward({prompt_tokens, prompt_rows, prompt_rows, std::span(logit_rows).first(1)}, kv, logits);
  });
  const double verify = usual_ms("verify", *ops, [&] {
    target.forward({tokens, rows, rows, logit_rows}, kv, logits);
  });
  const double tapped = usual_ms("tapped", *ops, [&] {
    target.forward({tokens, rows, rows, logit_rows, {drafter->taps(), out}}, kv, logits);
  });
  const double draft = usual_ms("draft", *ops, [&] { drafter->draft(wanted); });
  const double hidden = usual_ms("blocks", *ops, [&] { (void)drafter->run_blocks(wanted); });
  std::int64_t position = first;
  const double observe = usual_ms("observe", *ops, [&] {
    for (DraftObservation& part : seen) part.position = position;
    drafter->observe(seen, taps);
    position += seen.front().rows;
  });
  fmt::print(
      "context {} requests {} block {}: prompt of {} {:.3f} ms, plain {:.3f} ms, verify {:.3f} ms (with taps "
      "{:.3f}), draft {:.3f} "
      "ms (without head "
      "{:.3f}), observe {} rows each {:.3f} ms\n",
      context, requests, block, kPromptRows, prompt, plain, verify, tapped, draft, hidden, seen.front().rows,
      observe);
}

}  // namespace
}  // namespace mimo

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: bench_dflash_step DIR [context] [requests]\n");
    return 1;
  }
  mimo::run(argv[1], argc > 2 ? std::atoi(argv[2]) : 300, argc > 3 ? std::atoi(argv[3]) : 1);
  return 0;
}
