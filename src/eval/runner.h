// Asks problems and hands back answers; where the model lives is the implementation's business.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "core/result.h"
#include "eval/problem.h"

namespace mimo {

struct RunSettings {
  double temperature = 0;
  double top_p = 1;
  std::uint64_t seed = 0;  // of sampling; each problem draws with a seed of its own made from it
  std::int64_t max_tokens = 1024;
  int concurrency = 1;                       // problems in flight at a time
  std::optional<bool> enable_thinking = {};  // overrides the problems' own
};

// Called once for each problem, in the order in which they end, by one thread at a time.
using OnAnswer = std::function<void(std::size_t index, Answer answer)>;

class Runner {
 public:
  virtual ~Runner() = default;
  // What can go wrong for one problem is that answer's error; fails as a whole only where no problem can be
  // asked. Answers do not depend on concurrency, order, or what else is asked.
  virtual Status run(std::span<const Problem> problems, const RunSettings& settings,
                     const OnAnswer& on_answer) = 0;
};

// The seed of a problem's sampler: below 2^53, so that every JSON reader keeps it.
std::uint64_t problem_seed(const RunSettings& settings, const Problem& problem);

}  // namespace mimo
