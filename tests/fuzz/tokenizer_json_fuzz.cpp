// Any bytes as tokenizer.json: an error or a tokenizer that works, never a crash. A small valid file is far
// from what mutation finds, so the seeds are small valid files.
#include <cstdlib>
#include <string_view>

#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto tokenizer = mimo::Tokenizer::from_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!tokenizer) {
    if (tokenizer.error().message.find("fuzz") == std::string::npos) std::abort();
    return 0;
  }
  const std::string text = "The <think> it's 12\n e\xCC\x81\xFF <|im_end|>";
  for (const bool allow : {false, true}) {
    const auto ids = tokenizer->encode(text, {.allow_added_tokens = allow});
    if (!tokenizer->decode(ids, false)) std::abort();
    for (const mimo::TokenId id : ids) {
      if (!allow && tokenizer->is_added(id)) std::abort();
    }
  }
  return 0;
}
