// Options that the load benchmarks share, and where their results go.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/datasets.h"
#include "bench/load_summary.h"
#include "bench/load_target.h"
#include "core/jsonl_writer.h"
#include "core/result.h"

namespace CLI {
class App;
}

namespace mimo {

struct BenchLoadOptions {
  TargetOptions target;
  std::string endpoint = "completions";
  std::string tokenizer;  // directory; empty: the bundled model's
  RequestStyle style;
  std::string extra_body;
  std::uint64_t seed = 0;
  bool warm = false;
  std::string output_file;
  bool save_outputs = false;
  bool json = false;

  std::uint64_t run = 0;  // drawn: makes the prompts of this run its own; 0 with `warm`
};

// Server, requests, output.
void add_load_options(CLI::App& command, BenchLoadOptions& options);

// Fills in what follows from the options, and reaches the server. `with_tokenizer`: prompts are made.
Result<LoadTarget> begin_load(BenchLoadOptions& options, bool with_tokenizer);

struct DatasetChoice {
  std::string name = "random";
  DatasetOptions options;
  double ratio = 0;
};

// --dataset and what belongs to it.
void add_dataset_options(CLI::App& command, DatasetChoice& choice);
Result<DatasetOptions> chosen_dataset(const DatasetChoice& choice, const BenchLoadOptions& load);

// --output-file: a line on the run, one a request, one a result.
class BenchOutput {
 public:
  static Result<BenchOutput> open(const BenchLoadOptions& options, const LoadTarget& target,
                                  const char* command);

  void records(std::span<const SentRequest> records, const std::string& arm);
  void result(json::object line);
  Status close();

  const json::object& header() const { return header_; }

 private:
  explicit BenchOutput(bool with_text) : with_text_(with_text) {}

  bool with_text_;
  json::object header_;
  std::optional<JsonlWriter> file_;
};

}  // namespace mimo
