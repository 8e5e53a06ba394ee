#include "text/detokenizer.h"

namespace mimo {

Result<std::string> Detokenizer::push(TokenId id) {
  const auto bytes = tokenizer_->token_bytes(id);
  if (!bytes) return forward_error(bytes);
  if (skip_special_ && tokenizer_->is_special(id)) return std::string();
  return stream_.push(*bytes);
}

}  // namespace mimo
