#include "bench/prompt_maker.h"

#include <algorithm>

namespace mimo {
namespace {

// Enough that no two prompts are alike; finding all words of a large vocabulary would take a second.
constexpr std::size_t kMostWords = 4096;
constexpr std::size_t kFewestWords = 64;
constexpr const char* kFirst = "A";

// A space and lower-case letters.
bool is_word(std::string_view bytes) {
  return bytes.size() >= 3 && bytes.front() == ' ' &&
         std::all_of(bytes.begin() + 1, bytes.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

template <class T>
const T& pick(std::mt19937_64& random, const std::vector<T>& from) {
  return from[random() % from.size()];
}

}  // namespace

Result<PromptMaker> PromptMaker::make(const Tokenizer& tokenizer) {
  PromptMaker maker(tokenizer);
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(tokenizer.vocab_size()); ++id) {
    if (tokenizer.is_added(id)) continue;
    const Result<std::string_view> bytes = tokenizer.token_bytes(id);
    if (!bytes) continue;
    maker.ordinary_.push_back(id);
    if (maker.words_.size() >= kMostWords || !is_word(*bytes)) continue;
    const std::string word(*bytes);
    // A word that stays itself after the first token and after another word.
    if (tokenizer.encode(kFirst + word, {}) ==
            std::vector<TokenId>{tokenizer.encode(kFirst, {}).front(), id} &&
        tokenizer.encode(word + word, {}) == std::vector<TokenId>{id, id}) {
      maker.words_.push_back(word);
    }
  }
  if (maker.words_.size() < kFewestWords) {
    return fail(ErrorCode::kUnsupported,
                "the tokenizer has {} words that are one token wherever they stand; random text needs {}",
                maker.words_.size(), kFewestWords);
  }
  return maker;
}

std::vector<std::int32_t> PromptMaker::ids(std::mt19937_64& random, std::int64_t count) const {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids) id = pick(random, ordinary_);
  return ids;
}

std::string PromptMaker::text(std::mt19937_64& random, std::int64_t count) const {
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) text += i == 0 ? std::string(kFirst) : pick(random, words_);
  return text;
}

}  // namespace mimo
