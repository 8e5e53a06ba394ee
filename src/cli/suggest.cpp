#include "cli/suggest.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace mimo {
namespace {

constexpr int kUsageStatus = 2;

// Levenshtein distance.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// The innermost command that was chosen.
const CLI::App& chosen(const CLI::App& app) {
  const std::vector<CLI::App*> commands = app.get_subcommands();
  return commands.empty() ? app : chosen(*commands.front());
}

// Arguments left over anywhere on the way to the chosen command, in order; what follows an unknown option is
// its value.
std::vector<std::string> left_over(const CLI::App& app) {
  std::vector<std::string> all;
  bool after_option = false;
  for (const std::string& argument : app.remaining()) {
    const bool option = argument.starts_with("-");
    if (option || !after_option) all.push_back(argument);
    after_option = option;
  }
  for (const CLI::App* command : app.get_subcommands()) {
    for (std::string& argument : left_over(*command)) {
      if (std::find(all.begin(), all.end(), argument) == all.end()) all.push_back(std::move(argument));
    }
  }
  return all;
}

}  // namespace

bool has_unknown_arguments(const CLI::App& app) { return !left_over(app).empty(); }

int report_unknown_arguments(const CLI::App& app) {
  const CLI::App& command = chosen(app);
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  for (const std::string& argument : left_over(app)) {
    const std::string name = argument.substr(0, argument.find('='));
    std::string nearest;
    // Half of the name may be wrong; more resembles nothing.
    std::size_t best = name.size() / 2 + 1;
    for (const std::string& candidate : names) {
      const std::size_t d = distance(name, candidate);
      if (d < best) {
        best = d;
        nearest = candidate;
      }
    }
    fmt::print(stderr, "{}: unknown argument {}{}\n",
               &command == &app ? "mimo" : "mimo " + command.get_name(), argument,
               nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
  }
  return kUsageStatus;
}

}  // namespace mimo
