#include "eval/runner.h"

#include "core/philox.h"

namespace mimo {

std::uint64_t problem_seed(const RunSettings& settings, const Problem& problem) {
  constexpr double kRange = 9007199254740992.0;  // 2^53
  return static_cast<std::uint64_t>(philox_uniform(settings.seed, static_cast<std::int64_t>(problem.index)) *
                                    kRange);
}

}  // namespace mimo
