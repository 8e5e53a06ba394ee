// Names for answers, tool calls and the like.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mimo {

// `prefix` and that many random letters and digits. Not a secret. From any thread.
std::string random_id(std::string_view prefix, std::size_t characters);

// "call_" and 24 characters: some clients use it as a key over a whole conversation.
std::string tool_call_id();

}  // namespace mimo
