#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench_commands.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "core/cpu_features.h"
#include "core/json.h"
#include "core/memory_bandwidth.h"
#include "engine/model_bench.h"
#include "ops/attention_select.h"
#include "ops/backend_array.h"

namespace mimo {
namespace {

struct BenchModelOptions {
  ModelOptions model;
  ModelBenchOptions bench;
  bool json = false;
};

// Bytes a second, read and written, of copying inside the backend's memory.
double copy_bandwidth(Ops& ops) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  BackendArray<std::uint8_t> from;
  BackendArray<std::uint8_t> to;
  from.reserve(ops, kBytes);
  to.reserve(ops, kBytes);
  double best = 0;
  for (int repeat = 0; repeat < 4; ++repeat) {
    constexpr int kCopies = 16;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCopies; ++i) ops.copy_rows(to.data(), kBytes, from.data(), kBytes, kBytes, 1);
    std::uint8_t last = 0;
    ops.download(&last, to.data(), 1);  // waits
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * kCopies * kBytes / took.count());
  }
  return best;
}

int largest(const std::vector<int>& values) {
  return values.empty() ? 1 : *std::max_element(values.begin(), values.end());
}

json::object row_json(const ModelBenchRow& row, double roof) {
  json::object result;
  result["test"] = row.test;
  result["tokens_per_second"] = row.median;
  result["min"] = row.lowest;
  result["max"] = row.highest;
  if (row.prompt_seconds > 0) {
    result["ttft_seconds"] = row.prompt_seconds;
    return result;
  }
  result["step_seconds"] = row.step_rows / row.median;
  result["bytes_per_token"] = row.bytes_per_token;
  result["bandwidth"] = row.bytes_per_token * row.median;
  result["bandwidth_fraction"] = row.bytes_per_token * row.median / roof;
  return result;
}

json::object draft_json(const DraftBenchRow& row, double roof) {
  json::object result;
  result["test"] = row.test;
  result["draft_seconds"] = row.times.draft;
  result["verify_seconds"] = row.times.verify;
  result["observe_seconds"] = row.times.observe;
  result["step_seconds"] = row.times.step;
  result["decode_step_seconds"] = row.decode;
  result["bytes_per_step"] = row.bytes;
  result["bandwidth_fraction"] = row.bytes / row.times.step / roof;
  result["drafter_bytes_per_step"] = row.drafter_bytes;
  result["drafter_bandwidth_fraction"] = row.drafter_bytes / (row.times.draft + row.times.observe) / roof;
  result["even_accept_length"] = row.even();
  json::object gains;
  for (const DraftBenchRow::Gain& gain : row.gains) gains[std::to_string(gain.accept_length)] = gain.speedup;
  result["speedup_at_accept_length"] = std::move(gains);
  return result;
}

void print_rows(const std::vector<ModelBenchRow>& rows, double roof) {
  fmt::print(
      "| test | tokens/s (median) | min | max | ms a step | MB a token | GB/s | of roof "
      "|\n|---|---|---|---|---|---|---|---|\n");
  for (const ModelBenchRow& row : rows) {
    if (row.prompt_seconds > 0) {
      fmt::print("| {} | {:.1f} | {:.1f} | {:.1f} | TTFT {:.1f} | | | |\n", row.test, row.median, row.lowest,
                 row.highest, 1e3 * row.prompt_seconds);
      continue;
    }
    const double rate = row.bytes_per_token * row.median;
    fmt::print("| {} | {:.2f} | {:.2f} | {:.2f} | {:.3f} | {:.1f} | {:.1f} | {:.0f}% |\n", row.test,
               row.median, row.lowest, row.highest, 1e3 * row.step_rows / row.median,
               row.bytes_per_token / 1e6, rate / 1e9, 100 * rate / roof);
  }
}

// Whole steps with drafts. Times in ms.
void print_drafts(const std::vector<DraftBenchRow>& rows, double roof) {
  if (rows.empty()) return;
  fmt::print(
      "\n| with drafts, ms | draft | of roof | verify | observe | whole step | MB a step | of roof | plain "
      "step | "
      "even at accept length ");
  for (const DraftBenchRow::Gain& gain : rows.front().gains)
    fmt::print("| speed-up at {} ", gain.accept_length);
  fmt::print("|\n|---|---|---|---|---|---|---|---|---|---");
  for (std::size_t i = 0; i < rows.front().gains.size(); ++i) fmt::print("|---");
  fmt::print("|\n");
  for (const DraftBenchRow& row : rows) {
    const DraftStepTimes& times = row.times;
    fmt::print("| {} | {:.3f} | {:.0f}% | {:.3f} | {:.3f} | {:.3f} | {:.1f} | {:.0f}% | {:.3f} | {:.2f} ",
               row.test, 1e3 * times.draft, 100 * row.drafter_bytes / (times.draft + times.observe) / roof,
               1e3 * times.verify, 1e3 * times.observe, 1e3 * times.step, row.bytes / 1e6,
               100 * row.bytes / times.step / roof, 1e3 * row.decode, row.even());
    for (const DraftBenchRow::Gain& gain : row.gains) fmt::print("| {:.2f} ", gain.speedup);
    fmt::print("|\n");
  }
  fmt::print(
      "\n\"Of roof\" of the drafter: its weights and the output head over draft and observe. The last "
      "columns are "
      "accept length x plain step / whole step.\n");
}

int run(BenchModelOptions& options) {
  if (options.bench.generate > 0) {
    options.model.max_running = largest(options.bench.batches);
  } else if (options.model.drafter.algorithm != "NONE") {
    return report_error(
        {ErrorCode::kInvalidArgument, fmt::format("--speculative-algorithm {}: has no effect with --n-gen 0",
                                                  options.model.drafter.algorithm)});
  }
  Result<LoadedModel> loaded = load_model(options.model);
  if (!loaded) return report_error(loaded.error());
  const ModelConfig& config = loaded->model->config();
  options.bench.head_bytes =
      (options.model.requantize_bf16 ? 1.0 : 2.0) * static_cast<double>(config.vocab) * config.hidden;
  options.bench.kv_dtype = loaded->kv_dtype;
  options.bench.page_size = options.model.page_size;

  const int threads = options.model.threads > 0 ? options.model.threads : available_cpus();
  const auto read_rate = [&] {
    if (!loaded->ops->host_memory()) return copy_bandwidth(*loaded->ops);
    ThreadPool pool({.threads = threads});
    return measure_read_bandwidth(pool, 1024);
  };
  double roof = read_rate();
  const Result<ModelBenchResult> measured =
      run_model_bench(*loaded->model, *loaded->ops, loaded->drafter.get(), options.bench);
  if (!measured) return report_error(measured.error());
  // The achievable rate drifts on shared hosts: measured before and after, the higher one is the roof.
  roof = std::max(roof, read_rate());

  const std::string hardware = cpu_description();
  const auto weights = static_cast<double>(loaded->model->weight_bytes());
  const auto per_token = static_cast<double>(loaded->model->bytes_per_token());
  if (options.json) {
    json::object out;
    out["hardware"] = hardware;
    out["backend"] = loaded->ops->name();
    out["threads"] = threads;
    out["model"] = loaded->model->config().member;
    out["kv_cache_dtype"] = kv_dtype_name(loaded->kv_dtype);
    out["weight_bytes"] = loaded->model->weight_bytes();
    out["weight_bytes_per_token"] = loaded->model->bytes_per_token();
    out["load_seconds"] = loaded->load_seconds;
    out["read_bandwidth"] = roof;
    json::array results;
    for (const ModelBenchRow& row : measured->rows) results.push_back(row_json(row, roof));
    out["results"] = std::move(results);
    if (loaded->drafter) {
      out["drafter"] = loaded->drafter->name();
      out["drafter_weight_bytes"] = loaded->drafter->weight_bytes();
      json::array drafts;
      for (const DraftBenchRow& row : measured->drafts) drafts.push_back(draft_json(row, roof));
      out["draft_steps"] = std::move(drafts);
    }
    fmt::print("{}\n", json::serialize(out));
    return 0;
  }
  fmt::print("hardware   {}\n", hardware);
  for (const std::string& line : loaded->ops->describe()) fmt::print("backend    {}\n", line);
  fmt::print("model      {}, weights {:.3f} GB, {:.3f} GB read a token, KV {}\n",
             loaded->model->config().member, weights / 1e9, per_token / 1e9, kv_dtype_name(loaded->kv_dtype));
  if (loaded->ops->host_memory()) {
    fmt::print("memory     {:.1f} GB/s read with {} threads\n\n", roof / 1e9, threads);
  } else {
    fmt::print("memory     {:.1f} GB/s copied, read and written\n\n", roof / 1e9);
  }
  print_rows(measured->rows, roof);
  print_drafts(measured->drafts, roof);
  return 0;
}

}  // namespace

CommandBody add_bench_command(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure");
  bench->require_subcommand(1);
  CLI::App* model = bench->add_subcommand(
      "model", "Time the forward pass: prompt processing (pp), generation (tg), steps with drafts");
  auto options = std::make_shared<BenchModelOptions>();
  add_model_options(*model, options->model, ModelUse::kForward);
  model->add_option("-p,--n-prompt", options->bench.prompt_lengths, "Prompt lengths")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0, 1 << 20))
      ->default_str("512");
  model->add_option("-n,--n-gen", options->bench.generate, "Tokens to generate")
      ->check(CLI::Range(0, 1 << 20))
      ->default_val(128);
  model->add_option("-d,--n-depth", options->bench.depths, "Context before generation")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0, 1 << 20))
      ->default_str("0");
  model->add_option("-b,--batch-size", options->bench.batches, "Sequences that generate at a time")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 4096))
      ->default_str("1");
  model
      ->add_option("-w,--width", options->bench.widths,
                   "Rows of a sequence a step: 1 decodes, 8 verify a block")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 64))
      ->default_str("1");
  // Of the --speculative-* options those that a single step depends on.
  DrafterOptions& drafter = options->model.drafter;
  model
      ->add_option("--speculative-algorithm", drafter.algorithm,
                   "Also time whole steps with drafts of a block: DFLASH, MTP (the checkpoint's heads)")
      ->check(CLI::IsMember({"DFLASH", "MTP", "NONE"}))
      ->capture_default_str();
  model->add_option("--speculative-draft-model-path", drafter.directory,
                    "Directory of the DFlash drafter; default: dflash/ of the checkpoint");
  model->add_option("--speculative-draft-config", drafter.random_config,
                    "config.json of a DFlash drafter with random weights from --seed");
  model
      ->add_option(kDraftAttentionFlag, drafter.attention,
                   "Attention kernel of the DFlash drafter's blocks; as --attention-backend")
      ->check(CLI::IsMember(attention_backend_names()))
      ->capture_default_str();
  model->add_option("-r,--repetitions", options->bench.repeats, "Repeats (the median is reported)")
      ->check(CLI::Range(1, 1000))
      ->default_val(5);
  model->add_option("--chunked-prefill-size", options->bench.chunk, "Rows of a prefill step")
      ->check(CLI::Range(1, 65536))
      ->default_val(512);
  model->add_flag("--json", options->json, "One JSON object on stdout");
  const std::vector<std::pair<std::string, CommandBody>> others = {
      {"serve", add_bench_serve_command(*bench)},     {"sbs", add_bench_sbs_command(*bench)},
      {"prefill", add_bench_prefill_command(*bench)}, {"fanout", add_bench_fanout_command(*bench)},
      {"goodput", add_bench_goodput_command(*bench)}, {"report", add_bench_report_command(*bench)},
  };
  return [options, bench, others] {
    for (const auto& [name, body] : others) {
      if (bench->got_subcommand(name)) return body();
    }
    // A config alone can only mean random weights.
    if (options->model.directory.empty() && !options->model.config_file.empty()) {
      options->model.load_format = "random";
    }
    if (options->bench.prompt_lengths.empty()) options->bench.prompt_lengths = {512};
    std::erase(options->bench.prompt_lengths, 0);
    if (options->bench.depths.empty()) options->bench.depths = {0};
    return run(*options);
  };
}

}  // namespace mimo
