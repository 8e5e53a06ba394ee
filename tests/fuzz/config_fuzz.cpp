// Any text as config.json: an error or a config whose derived sizes can be computed.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "checkpoint/config.h"
#include "checkpoint/model_size.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto config = mimo::parse_config({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!config) {
    if (config.error().message.empty()) std::abort();
    return 0;
  }
  if (config->layer_kinds.size() != static_cast<std::size_t>(config->layers)) std::abort();
  // The table of a large model takes longer than a fuzzing step should.
  constexpr std::int64_t kMaxExperts = 2048;
  if (std::int64_t{config->layers} * (config->experts + 1) > kMaxExperts) return 0;
  const mimo::ModelSize sizes = mimo::model_size(*config, 1);
  if (sizes.active_parameters > sizes.total_parameters) std::abort();
  return 0;
}
