// The CPU backends a test runs: every instruction set of this machine and both activation precisions.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "core/cpu_features.h"
#include "ops/cpu/cpu_ops.h"

namespace mimo::testing {

// MIMO_CPU_LEVEL for the lifetime of the object.
class ScopedCpuLevel {
 public:
  explicit ScopedCpuLevel(const char* value) {
    if (const char* old = std::getenv("MIMO_CPU_LEVEL")) old_ = old, had_ = true;
    ::setenv("MIMO_CPU_LEVEL", value, 1);
  }
  ~ScopedCpuLevel() {
    if (had_) {
      ::setenv("MIMO_CPU_LEVEL", old_.c_str(), 1);
    } else {
      ::unsetenv("MIMO_CPU_LEVEL");
    }
  }
  ScopedCpuLevel(const ScopedCpuLevel&) = delete;
  ScopedCpuLevel& operator=(const ScopedCpuLevel&) = delete;

 private:
  std::string old_;
  bool had_ = false;
};

inline bool has_level(CpuLevel level) {
  const ScopedCpuLevel scope(cpu_level_name(level));
  return detect_cpu_level().has_value();
}

inline std::vector<CpuLevel> cpu_levels() {
  std::vector<CpuLevel> levels;
  for (const CpuLevel level : {CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Fp16}) {
    if (has_level(level)) levels.push_back(level);
  }
  return levels;
}

inline std::unique_ptr<Ops> make_cpu(CpuLevel level,
                                     ActivationPrecision precision = ActivationPrecision::kFast,
                                     int threads = 2) {
  const ScopedCpuLevel scope(cpu_level_name(level));
  Result<std::unique_ptr<Ops>> ops = make_cpu_ops({.threads = threads, .pin = false, .precision = precision});
  if (!ops) throw std::runtime_error(ops.error().message);
  return std::move(*ops);
}

struct Backend {
  CpuLevel level = CpuLevel::kAvx2;
  ActivationPrecision precision = ActivationPrecision::kFast;
  int threads = 2;
  Ops* ops = nullptr;
  std::string name() const {
    return std::string(cpu_level_name(level)) +
           (precision == ActivationPrecision::kFast ? " fast " : " exact ") + std::to_string(threads) +
           " threads";
  }
};

// One backend a level and precision with this many threads; made once and kept.
inline std::vector<Backend> cpu_backends(int threads = 2) {
  using Key = std::tuple<CpuLevel, ActivationPrecision, int>;
  static std::map<Key, std::unique_ptr<Ops>> made;
  std::vector<Backend> backends;
  for (const CpuLevel level : cpu_levels()) {
    for (const ActivationPrecision precision : {ActivationPrecision::kFast, ActivationPrecision::kExact}) {
      std::unique_ptr<Ops>& ops = made[{level, precision, threads}];
      if (!ops) ops = make_cpu(level, precision, threads);
      backends.push_back({level, precision, threads, ops.get()});
    }
  }
  return backends;
}

}  // namespace mimo::testing
