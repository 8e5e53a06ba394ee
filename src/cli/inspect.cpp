#include "checkpoint/inspect.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "cache/memory_plan.h"
#include "cli/byte_size.h"
#include "cli/commands.h"
#include "cli/drafter_options.h"
#include "cli/model_options.h"

namespace mimo {
namespace {

struct InspectOptions {
  std::string directory;
  bool json = false;
};

int run_inspect(const InspectOptions& options) {
  const Result<InspectReport> report = inspect_checkpoint(options.directory, {});
  if (!report) return report_error(report.error());
  if (options.json) {
    fmt::print("{}\n", json::serialize(to_json(*report)));
  } else {
    fmt::print("{}", to_text(*report));
  }
  return report->problems.empty() ? 0 : 1;
}

struct PlanOptions {
  std::string directory;
  std::string memory;
  std::string kv_dtype = "bfloat16";
  DrafterOptions drafter;
  MemoryPlanInput input;
  bool json = false;
};

// Charges the drafter that start-up would choose.
Status add_drafter(PlanOptions& options, const ModelConfig& config) {
  const Result<DrafterChoice> choice = choose_drafter(options.drafter, options.directory);
  if (!choice) return forward_error(choice);
  MemoryPlanInput& input = options.input;
  if (choice->kind == DrafterKind::kMtp) {
    if (config.mtp_heads == 0) {
      return fail(
          ErrorCode::kInvalidArgument,
          "--speculative-algorithm MTP: num_nextn_predict_layers is 0, the checkpoint has no MTP heads");
    }
    input.mtp_heads = std::max(config.mtp_heads, 1);  // not declared: the chain needs at least one
    input.block_tokens = input.mtp_heads + 1;
  } else if (choice->kind == DrafterKind::kDFlash) {
    const Result<DFlashConfig> drafter = load_dflash_config(choice->directory, config);
    if (!drafter) return forward_error(drafter);
    input.draft = draft_plan(*drafter, input.kv_format, input.kv_row_scales);
    input.block_tokens = drafter->block;
  }
  return {};
}

int run_plan(PlanOptions& options) {
  const Result<ModelConfig> config = load_config(options.directory);
  if (!config) return report_error(config.error());
  const Result<std::uint64_t> memory = parse_byte_size(options.memory, "--memory");
  if (!memory) return report_error(memory.error());
  options.input.memory_bytes = *memory;
  options.input.kv_format =
      options.kv_dtype == "fp8" || options.kv_dtype == "fp8_e4m3" ? KvFormat::kFp8 : KvFormat::kBF16;
  if (const Status ok = add_drafter(options, *config); !ok) return report_error(ok.error());
  const Result<MemoryPlan> plan = plan_memory(*config, options.input);
  if (!plan) return report_error(plan.error());
  if (options.json) {
    fmt::print("{}\n", json::serialize(to_json(*plan)));
  } else {
    fmt::print("{}", to_text(*plan));
  }
  return plan->fits ? 0 : 1;
}

}  // namespace

CommandBody add_inspect_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("inspect", "Show what a checkpoint holds and whether it can be loaded");
  auto options = std::make_shared<InspectOptions>();
  command->add_option("model", options->directory, "Checkpoint directory")->required();
  command->add_flag("--json", options->json, "One JSON object on stdout");
  return [options] { return run_inspect(*options); };
}

CommandBody add_plan_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("plan", "Show what fits into an amount of memory; exit status 1 if nothing does");
  auto options = std::make_shared<PlanOptions>();
  MemoryPlanInput& input = options->input;
  command->add_option("model", options->directory, "Checkpoint directory (config.json is enough)")
      ->required();
  command->add_option("--memory", options->memory, "Of one rank: bytes, or with a suffix: 24GiB, 80GB")
      ->required();
  command->add_option("--kv-cache-dtype,--kv-dtype", options->kv_dtype, "bfloat16 or fp8_e4m3")
      ->check(CLI::IsMember({"bfloat16", "bf16", "fp8", "fp8_e4m3"}))
      ->capture_default_str();
  command
      ->add_option("--max-running-requests,--max-running", input.max_running, "Requests that decode at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--context-length,--context", input.context,
                   "Tokens a request must be able to reach; 0: the model's limit")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--full-requests", input.full_requests, "Requests that must reach it at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--page-size", input.page_tokens, "Tokens of a KV page")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--chunked-prefill-size", input.chunk_tokens, "Rows of a prefill step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--tp,--tensor-parallel-size", input.tensor_parallel, "Ranks that share the weights")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option(
          "--speculative-algorithm", options->drafter.algorithm,
          "Whose weights and KV are charged: DFLASH, MTP, NONE; AUTO: DFLASH if the checkpoint ships "
          "dflash/")
      ->check(CLI::IsMember({"AUTO", "DFLASH", "MTP", "NONE"}))
      ->capture_default_str();
  command->add_option("--speculative-draft-model-path", options->drafter.directory,
                      "Directory of the DFlash drafter (its config.json is enough); default: dflash/ of the "
                      "checkpoint");
  command->add_flag("--json", options->json, "One JSON object on stdout");
  return [options] { return run_plan(*options); };
}

}  // namespace mimo
