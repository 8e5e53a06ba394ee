// Options of `mimo eval`, shared by its problem sets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/model_options.h"
#include "core/result.h"
#include "eval/problem_sets.h"
#include "eval/runner.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace mimo {

struct EvalOptions {
  ModelOptions model;
  int chunk = 512;
  std::string url;
  std::string model_name;
  std::string api_key;
  double timeout_seconds = 600;
  std::string data;
  std::int64_t limit = 0;  // 0: all
  std::optional<std::int64_t> max_tokens;
  RunSettings run;
  bool strict = false;
  bool json = false;
  std::string output;

  // gsm8k
  Gsm8kOptions gsm8k;
  std::optional<int> shots;

  // needle
  std::string haystack;
  std::string tokenizer;  // directory, for --url
  std::vector<std::int64_t> lengths = {8192};
  std::vector<double> depths = {0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98};
  int samples = 3;
  std::uint64_t needle_seed = 1;

  std::vector<const CLI::Option*> local_only;  // options that mean nothing with --url
  std::vector<const CLI::Option*> url_only;    // and without it
};

void add_eval_options(CLI::App& command, EvalOptions& options);

// Refuses options that would be ignored and fills in what the environment gives.
Status finish_eval_options(EvalOptions& options);

}  // namespace mimo
