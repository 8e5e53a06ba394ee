// The description of the API, openapi.json beside this file, as part of the program.
#pragma once

#include <string_view>

namespace mimo {

std::string_view openapi_json();

}  // namespace mimo
