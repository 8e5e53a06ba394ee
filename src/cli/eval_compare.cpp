#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "eval/compare.h"

namespace mimo {
namespace {

struct CompareOptions {
  std::string a;
  std::string b;
  bool json = false;
  bool require_identical = false;
};

int run_compare(const CompareOptions& options) {
  const auto a = load_results(options.a);
  if (!a) return report_error(a.error());
  const auto b = load_results(options.b);
  if (!b) return report_error(b.error());
  const Comparison comparison = compare_results(*a, *b);
  if (comparison.both == 0)
    return report_error({ErrorCode::kInvalidArgument,
                         fmt::format("{} and {} have no problem in common", options.a, options.b)});
  fmt::print(options.json ? stderr : stdout, "{}", comparison_table(comparison));
  if (options.json) fmt::print("{}\n", json::serialize(comparison_json(comparison)));
  const bool identical =
      comparison.only_a == 0 && comparison.only_b == 0 && comparison.identical_ids == comparison.both;
  if (options.require_identical && !identical) {
    return report_error(
        {ErrorCode::kInvalidArgument,
         fmt::format("{} of {} problems have identical token ids in both files", comparison.identical_ids,
                     comparison.both + comparison.only_a + comparison.only_b)});
  }
  return 0;
}

}  // namespace

CommandBody add_eval_compare_command(CLI::App& eval) {
  CLI::App* command = eval.add_subcommand("compare", "Two result files (--output), problem by problem");
  auto options = std::make_shared<CompareOptions>();
  command->add_option("a", options->a, "Results before, JSONL")->required();
  command->add_option("b", options->b, "Results after, JSONL")->required();
  command->add_flag("--json", options->json, "One JSON object as the last line of stdout");
  command->add_flag("--require-identical", options->require_identical,
                    "Exit status 1 unless all problems are in both files with equal token ids");
  return [options] { return run_compare(*options); };
}

}  // namespace mimo
