#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"

int main(int argc, char** argv) {
  CLI::App app("mimo: serves Xiaomi MiMo-V2.x models", "mimo");
  app.require_subcommand(1);
  app.set_version_flag("--version", "mimo " MIMO_VERSION);
  const mimo::CommandBody bench = mimo::add_bench_command(app);
  CLI11_PARSE(app, argc, argv);
  if (app.got_subcommand("bench")) return bench();
  return 1;
}
