#include <CLI/CLI.hpp>
#include <utility>

#include "cli/commands.h"

int main(int argc, char** argv) {
  CLI::App app("mimo: serves Xiaomi MiMo-V2.x models", "mimo");
  app.require_subcommand(1);
  app.set_version_flag("--version", "mimo " MIMO_VERSION);
  const std::pair<const char*, mimo::CommandBody> commands[] = {
      {"generate", mimo::add_generate_command(app)},
      {"inspect", mimo::add_inspect_command(app)},
      {"plan", mimo::add_plan_command(app)},
      {"bench", mimo::add_bench_command(app)},
  };
  CLI11_PARSE(app, argc, argv);
  for (const auto& [name, body] : commands) {
    if (app.got_subcommand(name)) return body();
  }
  return 1;
}
