// Options that every command which loads a model shares, and the loading itself.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/weight_source.h"
#include "cli/attention_options.h"
#include "cli/drafter_options.h"
#include "core/result.h"
#include "engine/generator.h"
#include "model/drafter.h"
#include "model/target.h"
#include "ops/ops.h"

namespace CLI {
class App;
}

namespace mimo {

enum class ModelUse {
  kGenerate,  // with the --speculative-* options
  kForward,   // the target's forward pass alone
};

struct ModelOptions {
  std::string directory;
  std::string load_format = "auto";
  std::string config_file;
  std::uint64_t seed = 0;
  std::string device = "auto";  // auto, cpu, cuda or cuda:N
  std::string backend = "cpu";
  int threads = 0;
  std::string kv_dtype = "auto";
  std::string activations = "auto";
  std::string expert_activations = "bf16";  // bf16 or fp8: of a GPU
  int page_size = 64;
  bool requantize_bf16 = false;
  AttentionOptions attention;
  DrafterOptions drafter;

  // Set by the command, not by flags.
  ModelUse use = ModelUse::kGenerate;
  int max_running = 1;    // requests that run at once: the drafter keeps room for them
  int allowed_vocab = 0;  // ids of the tokenizer; 0: all of the output head
};

void add_model_options(CLI::App& command, ModelOptions& options, ModelUse use = ModelUse::kGenerate);

struct LoadedModel {
  std::unique_ptr<WeightSource> source;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<TargetModel> model;
  std::unique_ptr<Drafter> drafter;   // null: no speculation
  KvDType kv_dtype = KvDType::kBF16;  // what --kv-cache-dtype came to
  double load_seconds = 0;
};

// The config that load_model would use, without reading weights.
Result<ModelConfig> read_config(const ModelOptions& options);

// Opens the source, builds the backend and loads the weights with a progress line; prints to stderr what was
// loaded and who drafts.
Result<LoadedModel> load_model(ModelOptions& options);

// Options of a generator on the loaded model: KV cache, pages, drafter and speculation.
GeneratorOptions make_generator_options(const LoadedModel& loaded, const ModelOptions& options);

// Prints "mimo: MESSAGE" to stderr; returns the exit status.
int report_error(const Error& error);

}  // namespace mimo
