// The load benchmarks under `mimo bench`.
#pragma once

#include "cli/commands.h"

namespace mimo {

struct AgentsOptions;

CommandBody add_bench_serve_command(CLI::App& bench);
CommandBody add_bench_sbs_command(CLI::App& bench);
CommandBody add_bench_prefill_command(CLI::App& bench);
CommandBody add_bench_fanout_command(CLI::App& bench);
CommandBody add_bench_goodput_command(CLI::App& bench);
CommandBody add_bench_report_command(CLI::App& bench);

void add_agents_options(CLI::App& command, AgentsOptions& options);

}  // namespace mimo
