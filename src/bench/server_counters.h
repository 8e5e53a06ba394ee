// Counters of a server's /metrics, before and after a run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "bench/load_client.h"
#include "core/json.h"
#include "core/result.h"

namespace mimo {

// Prometheus' text format: series of one name are added up. Lines that cannot be read are left out.
std::map<std::string, double, std::less<>> parse_counters(std::string_view text);

class ServerCounters {
 public:
  ServerCounters() = default;
  explicit ServerCounters(std::string_view text) : values_(parse_counters(text)) {}

  // What /metrics says; nothing if there is no such route.
  static Result<ServerCounters> read(LoadClient& client);

  bool empty() const { return values_.empty(); }
  // The first that is there of these names, which mean the same in different servers.
  std::optional<double> value(std::initializer_list<const char*> names) const;

 private:
  std::map<std::string, double, std::less<>> values_;
};

// What a server did in between; absent: it does not say.
struct ServerWork {
  std::optional<double> verify_steps;
  std::optional<double> proposed;  // drafts
  std::optional<double> accepted;
  std::optional<double> retractions;
  std::optional<double> evicted_pages;
  std::optional<double> host_restores;  // prefixes that came back from host memory
  std::optional<double>
      gauge_accept_length;  // of servers that have no counters for it; may cover more than the run

  // Tokens a verified block gave, pooled: 1 + accepted / steps. None: nothing was drafted.
  std::optional<double> accept_length() const;
  std::optional<double> acceptance_rate() const;
};

ServerWork work_between(const ServerCounters& before, const ServerCounters& after);
json::object work_json(const ServerWork& work);

}  // namespace mimo
