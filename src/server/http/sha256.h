// SHA-256 (FIPS 180-4). Its own file because API keys are the only thing hashed here: not worth a library.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace mimo::http {

using Sha256 = std::array<std::uint8_t, 32>;

Sha256 sha256(std::string_view bytes);

}  // namespace mimo::http
