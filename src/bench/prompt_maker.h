// Random prompts of exactly so many tokens.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/result.h"
#include "text/tokenizer.h"

namespace mimo {

class PromptMaker {
 public:
  // kUnsupported for a vocabulary without words that keep their token wherever they stand. `tokenizer` must outlive
  // it.
  static Result<PromptMaker> make(const Tokenizer& tokenizer);

  // Uniformly random ids of the ordinary vocabulary: no control tokens.
  std::vector<std::int32_t> ids(std::mt19937_64& random, std::int64_t count) const;

  // Random words; `count` tokens when encoded alone. The first token is always the same.
  std::string text(std::mt19937_64& random, std::int64_t count) const;

  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  explicit PromptMaker(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  const Tokenizer* tokenizer_;
  std::vector<std::int32_t> ordinary_;
  std::vector<std::string> words_;  // each with its leading space
};

}  // namespace mimo
