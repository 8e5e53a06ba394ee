// Options that every command which loads a model shares, and the loading itself.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/weight_source.h"
#include "core/result.h"
#include "model/target.h"
#include "ops/ops.h"

namespace CLI {
class App;
}

namespace mimo {

struct ModelOptions {
  std::string directory;
  std::string load_format = "auto";
  std::string config_file;
  std::uint64_t seed = 0;
  std::string backend = "cpu";
  int threads = 0;
  std::string kv_dtype = "auto";
  std::string activations = "auto";
  int page_size = 64;
  bool requantize_bf16 = false;
};

void add_model_options(CLI::App& command, ModelOptions& options);

struct LoadedModel {
  std::unique_ptr<WeightSource> source;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<TargetModel> model;
  KvDType kv_dtype = KvDType::kBF16;  // what --kv-cache-dtype came to
  double load_seconds = 0;
};

// The config that load_model would use, without reading weights.
Result<ModelConfig> read_config(const ModelOptions& options);

// Opens the source, builds the backend and loads the weights with a progress line; prints one summary line to
// stderr.
Result<LoadedModel> load_model(const ModelOptions& options);

// Prints "mimo: MESSAGE" to stderr; returns the exit status.
int report_error(const Error& error);

}  // namespace mimo
