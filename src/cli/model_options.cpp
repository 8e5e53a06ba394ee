#include "cli/model_options.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "checkpoint/model_size.h"
#include "cli/validators.h"
#include "core/file.h"
#include "core/progress.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/reference/reference_ops.h"

namespace mimo {
namespace {

// Checkpoints up to this size run in the exact mode by default (fp32 KV, fine activations): it costs them
// microseconds, and small models feel rounding most. Larger ones default to BF16 KV and int8 activations.
constexpr std::uint64_t kExactByDefault = 16u << 20;

Result<std::unique_ptr<WeightSource>> open_source(const ModelOptions& options, bool mtp) {
  if (options.load_format == "random") {
    const Result<ModelConfig> config = read_config(options);
    if (!config) return forward_error(config);
    return open_random(*config, options.seed);
  }
  if (!options.config_file.empty()) {
    return fail(ErrorCode::kInvalidArgument, "--config {}: only with --load-format random",
                options.config_file);
  }
  if (options.directory.empty()) return fail(ErrorCode::kInvalidArgument, "no checkpoint directory given");
  OpenOptions open;
  open.mtp = mtp;
  return open_checkpoint(options.directory, open);
}

// Whether the model runs on a GPU. `auto` takes one that is there, and is silent where none is.
bool is_cuda(const ModelOptions& options) {
  if (options.backend == "reference") return false;
  if (options.device == "auto") return count_cuda_devices() > 0;
  return options.device.starts_with("cuda");
}

bool is_exact(const ModelOptions& options, bool small) {
  return options.activations == "exact" || (options.activations == "auto" && small && !is_cuda(options));
}

Result<std::unique_ptr<Ops>> make_backend(const ModelOptions& options, bool small,
                                          std::vector<AttentionQuery> attention_calls) {
  const AttentionChoices attention = attention_choices(options.attention, options.drafter.attention);
  if (!is_cuda(options)) {
    if (const Status ok = check_attention_on_cpu(attention); !ok) return forward_error(ok);
    if (options.expert_activations != "bf16") {
      return fail(ErrorCode::kUnsupported,
                  "--expert-activations {}: for GPUs; a CPU computes as --activations says",
                  options.expert_activations);
    }
  }
  if (options.backend == "reference") {
    if (options.device.starts_with("cuda")) {
      return fail(ErrorCode::kInvalidArgument, "--device {}: --backend reference runs on the CPU",
                  options.device);
    }
    return make_reference_ops();
  }
  if (is_cuda(options)) {
    CudaOptions cuda;
    if (options.device.starts_with("cuda:")) cuda.device = std::atoi(options.device.c_str() + 5);
    cuda.exact = options.activations == "exact";
    cuda.fp8_experts = options.expert_activations == "fp8";
    cuda.attention = attention;
    cuda.attention_calls = std::move(attention_calls);
    return make_cuda_ops(cuda);
  }
  CpuOptions cpu;
  cpu.threads = options.threads;
  cpu.precision = is_exact(options, small) ? ActivationPrecision::kExact : ActivationPrecision::kFast;
  return make_cpu_ops(cpu);
}

KvDType choose_kv(const ModelOptions& options, bool small) {
  if (options.kv_dtype == "fp8" || options.kv_dtype == "fp8_e4m3") return KvDType::kFp8;
  if (options.kv_dtype == "float32") return KvDType::kF32;
  const bool exact = options.backend == "reference" || (small && !is_cuda(options));
  if (options.kv_dtype == "auto" && exact) return KvDType::kF32;
  return KvDType::kBF16;
}

// The attention calls of the target and of its drafter, as far as their configs tell.
Result<std::vector<AttentionQuery>> known_attention_calls(const ModelOptions& options,
                                                          const LoadedModel& loaded,
                                                          const DrafterChoice& choice) {
  const ModelConfig& config = loaded.source->config();
  if (choice.kind != DrafterKind::kDFlash) {
    return attention_calls(config, nullptr, options.page_size, loaded.kv_dtype);
  }
  const Result<DFlashConfig> drafter = read_drafter_config(choice, config);
  if (!drafter) return forward_error(drafter);
  return attention_calls(config, &*drafter, options.page_size, loaded.kv_dtype);
}

}  // namespace

Result<ModelConfig> read_config(const ModelOptions& options) {
  if (options.load_format != "random") {
    if (options.directory.empty()) return fail(ErrorCode::kInvalidArgument, "no checkpoint directory given");
    return load_config(options.directory);
  }
  std::string path = options.config_file;
  if (path.empty()) {
    if (options.directory.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "--load-format random: give --config FILE or a directory with a config.json");
    }
    path = options.directory + "/config.json";
  }
  const Result<std::string> text = read_file(path, 16u << 20);
  if (!text) return forward_error(text);
  return parse_config(*text, path);
}

void add_model_options(CLI::App& command, ModelOptions& options, ModelUse use) {
  command.add_option("model", options.directory, "Checkpoint directory (Hugging Face layout)");
  command
      .add_option("--load-format", options.load_format,
                  "auto: read the checkpoint; random: weights from --seed")
      ->check(CLI::IsMember({"auto", "random"}))
      ->capture_default_str();
  command.add_option("--config", options.config_file, "config.json for --load-format random");
  command.add_option("--seed", options.seed, "Seed of random weights")
      ->check(check_unsigned_integer)
      ->capture_default_str();
  command.add_option("--device", options.device, "auto: a GPU where there is one; cpu, cuda or cuda:N")
      ->check(check_device)
      ->capture_default_str();
  command.add_option("--backend", options.backend, "cpu, or reference: plain fp32 loops, slow")
      ->check(CLI::IsMember({"cpu", "reference"}))
      ->capture_default_str();
  command.add_option("-t,--threads", options.threads, "Threads of the cpu backend; 0: one per CPU")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--kv-cache-dtype", options.kv_dtype, "auto, bfloat16, fp8_e4m3 or float32")
      ->check(CLI::IsMember({"auto", "bfloat16", "bf16", "fp8", "fp8_e4m3", "float32"}))
      ->capture_default_str();
  command
      .add_option("--activations", options.activations,
                  "fast: int8 before MXFP4 experts, 11 bits before FP8; exact: 15 and 21 bits; auto: exact "
                  "up to 16 MB")
      ->check(CLI::IsMember({"auto", "fast", "exact"}))
      ->capture_default_str();
  command
      .add_option(
          "--expert-activations", options.expert_activations,
          "GPU: bf16 (W4A16), or fp8 before MXFP4 experts in steps of many rows (W4A8): faster prompts")
      ->check(CLI::IsMember({"bf16", "fp8"}))
      ->capture_default_str();
  add_attention_options(command, options.attention);
  command.add_option("--page-size", options.page_size, "Tokens of a KV page")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_flag("--requantize-bf16", options.requantize_bf16,
                   "Requantise BF16 o_proj and lm_head to FP8 at load: fewer bytes a token, other numerics");
  options.use = use;
  if (use == ModelUse::kGenerate) {
    add_drafter_options(command, options.drafter);
  } else {
    options.drafter.algorithm = "NONE";
  }
}

Result<LoadedModel> load_model(ModelOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  LoadedModel loaded;
  const bool random = options.load_format == "random";
  const Result<DrafterChoice> choice = choose_drafter(options.drafter, random ? "" : options.directory);
  if (!choice) return forward_error(choice);
  Result<std::unique_ptr<WeightSource>> source = open_source(options, choice->kind == DrafterKind::kMtp);
  if (!source) {
    const std::string& message = source.error().message;
    const bool of_heads =
        choice->kind == DrafterKind::kMtp &&
        (message.find("MTP heads") != std::string::npos || message.find("model.mtp.") != std::string::npos);
    return of_heads ? tl::unexpected(source.error().within("--speculative-algorithm MTP"))
                    : forward_error(source);
  }
  loaded.source = std::move(*source);
  if (const Status ok = check_drafter(*choice, options.drafter, *loaded.source); !ok)
    return forward_error(ok);
  // Without the MTP heads: who drafts must not change the target's numbers.
  const bool small = model_size(loaded.source->config(), 0).total_bytes <= kExactByDefault;
  loaded.kv_dtype = choose_kv(options, small);
  Result<std::vector<AttentionQuery>> calls = known_attention_calls(options, loaded, *choice);
  if (!calls) return forward_error(calls);
  Result<std::unique_ptr<Ops>> ops = make_backend(options, small, std::move(*calls));
  if (!ops) return forward_error(ops);
  loaded.ops = std::move(*ops);
  TargetModel::LoadOptions load;
  load.requantize_bf16 = options.requantize_bf16;
  {
    Progress progress("loading", loaded.source->total_bytes());
    load.progress = [&](std::uint64_t bytes) { progress.update(bytes); };
    Result<TargetModel> model = TargetModel::load(*loaded.source, *loaded.ops, load);
    if (!model) return forward_error(model);
    loaded.model = std::make_unique<TargetModel>(std::move(*model));
  }
  DrafterSetup setup;
  setup.max_requests = options.max_running;
  setup.vocab = std::min(options.allowed_vocab, loaded.model->config().vocab);
  setup.page_size = options.page_size;
  setup.kv = loaded.kv_dtype;
  setup.seed = options.seed;
  Result<std::unique_ptr<Drafter>> drafter =
      load_drafter(*choice, options.drafter, setup, *loaded.source, *loaded.model, *loaded.ops);
  if (!drafter) return forward_error(drafter);
  loaded.drafter = std::move(*drafter);
  loaded.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double bytes = static_cast<double>(loaded.source->total_bytes());
  const std::string kv = kv_dtype_name(loaded.kv_dtype);
  for (const std::string& line : loaded.source->skipped()) fmt::print(stderr, "skipped {}\n", line);
  fmt::print(stderr, "loaded {} ({:.2f} GB) in {:.2f} s, {:.2f} GB/s; backend {}, KV {}{}\n",
             loaded.source->config().member, bytes / 1e9, loaded.load_seconds,
             bytes / 1e9 / loaded.load_seconds, loaded.ops->name(), kv,
             options.backend == "reference"
                 ? ""
                 : (is_exact(options, small) ? ", exact activations" : ", fast activations"));
  if (options.use == ModelUse::kGenerate || loaded.drafter) {
    fmt::print(stderr, "drafter {}\n", describe_drafter(*choice, loaded.drafter.get()));
  }
  return loaded;
}

GeneratorOptions make_generator_options(const LoadedModel& loaded, const ModelOptions& options) {
  GeneratorOptions generator;
  generator.kv_dtype = loaded.kv_dtype;
  generator.page_size = options.page_size;
  generator.max_running = options.max_running;
  generator.drafter = loaded.drafter.get();
  generator.speculation = options.drafter.speculation;
  return generator;
}

int report_error(const Error& error) {
  fmt::print(stderr, "mimo: {}\n", error.message);
  return 1;
}

}  // namespace mimo
