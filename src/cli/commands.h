// The subcommands of `mimo`. Each adds its options to the app and runs when chosen; the result is the exit
// status.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace mimo {

using CommandBody = std::function<int()>;

CommandBody add_bench_command(CLI::App& app);
CommandBody add_chat_command(CLI::App& app);
CommandBody add_eval_command(CLI::App& app);
CommandBody add_eval_compare_command(CLI::App& eval);  // a subcommand of eval
CommandBody add_generate_command(CLI::App& app);
CommandBody add_inspect_command(CLI::App& app);
CommandBody add_plan_command(CLI::App& app);
CommandBody add_serve_command(CLI::App& app);

}  // namespace mimo
