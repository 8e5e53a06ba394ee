#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>
#include <utility>

#include "cli/commands.h"
#include "cli/suggest.h"

int main(int argc, char** argv) {
  CLI::App app("mimo: serves Xiaomi MiMo-V2.x models", "mimo");
  app.require_subcommand(1);
  app.set_version_flag("--version", "mimo " MIMO_VERSION);
  const std::pair<const char*, mimo::CommandBody> commands[] = {
      {"serve", mimo::add_serve_command(app)},     {"generate", mimo::add_generate_command(app)},
      {"inspect", mimo::add_inspect_command(app)}, {"plan", mimo::add_plan_command(app)},
      {"bench", mimo::add_bench_command(app)},     {"eval", mimo::add_eval_command(app)},
      {"chat", mimo::add_chat_command(app)},
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0 && mimo::has_unknown_arguments(app))
      return mimo::report_unknown_arguments(app);
    return app.exit(error);
  }
  for (const auto& [name, body] : commands) {
    if (!app.got_subcommand(name)) continue;
    try {
      return body();
    } catch (const std::bad_alloc&) {
      std::fputs("mimo: not enough memory (mimo plan DIR --memory N shows what is needed)\n", stderr);
      return 1;
    }
  }
  return 1;
}
