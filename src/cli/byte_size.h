// Amounts of memory as people write them.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/result.h"

namespace mimo {

// "1048576", "24GiB", "80GB", "512MiB", "1.5TiB" (also K, M, G, T alone: powers of 1024). `what` names the
// option.
Result<std::uint64_t> parse_byte_size(std::string_view text, std::string_view what);

}  // namespace mimo
