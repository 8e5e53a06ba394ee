// `mimo bench serve`: rounds of one load against a server.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/agents.h"
#include "bench/datasets.h"
#include "bench/load_run.h"
#include "bench/load_summary.h"
#include "bench/load_target.h"
#include "bench/server_counters.h"

namespace mimo {

// A client that is busier than this delays what it measures.
inline constexpr double kMostClientCpu = 0.8;

struct ServeBenchOptions {
  RequestStyle style;
  DatasetOptions dataset;
  AgentsOptions agents;  // with Dataset::kAgents
  Pace pace;
  int warmup_requests = 1;
  int rounds = 1;
  bool warm = false;   // every prompt is sent before it is measured; otherwise each round has its own
  bool flush = false;  // the prefix cache, before each round
  GoodputLimits goodput;
};

struct BenchRound {
  LoadResult load;
  LoadSummary summary;
  ServerWork work;

  // Of a core.
  double client_cpu() const {
    return load.cost.wall_seconds > 0 ? load.cost.cpu_seconds / load.cost.wall_seconds : 0;
  }
  bool ok() const { return summary.failed == 0 && client_cpu() <= kMostClientCpu; }
};

// What the caller hears while it runs; any may be empty.
struct BenchEvents {
  std::function<void(int round, std::int64_t requests)> round_begins;
  std::function<void(const SentRequest&)> request_ended;
  std::function<void(int round, const BenchRound&)> round_ended;
};

Result<std::vector<BenchRound>> run_serve_bench(LoadTarget& target, ServeBenchOptions options,
                                                const BenchEvents& events = {});

json::object round_json(const BenchRound& round);
std::string round_text(const BenchRound& round);

// (max - min) / mean of the rounds' output throughput.
double spread(const std::vector<BenchRound>& rounds);

}  // namespace mimo
