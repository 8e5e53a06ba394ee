// Text to token ids and back, as the Hugging Face tokenizer of the checkpoint does it.
//
// Encoding: invalid UTF-8 becomes U+FFFD (unicode_utf8.h); added tokens are cut out of the parts of the text
// that may hold them; the rest is normalised (NFC), split by the pre-tokenizer and merged by BPE. It never
// fails, whatever the text, and takes O(n log n) time and constant stack.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_vocab.h"

namespace mimo {

// A part of a prompt and who wrote it.
struct TextPiece {
  std::string_view text;
  // Written by the chat template: the spelling of an added token in it becomes that token. Text from messages
  // is not trusted and stays text, whatever it spells.
  bool trusted = false;
};

struct EncodeOptions {
  bool allow_added_tokens = false;
};

// Const methods may be called from several threads at a time.
class Tokenizer {
 public:
  static Result<Tokenizer> load(const std::string& path);
  // `what` names the text in error messages.
  static Result<Tokenizer> from_json(std::string_view text, std::string_view what);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::vector<TokenId> encode(std::string_view text, EncodeOptions options) const;

  // The pieces are encoded as one text (merges may cross their borders), except that an added token is
  // recognised only where all of its bytes are trusted.
  std::vector<TokenId> encode(std::span<const TextPiece> pieces) const;

  // The bytes of the ids, which need not be valid UTF-8. `skip_special` leaves out added tokens marked
  // "special". An id that is no token is an error.
  Result<std::string> decode(std::span<const TokenId> ids, bool skip_special) const;

  // Valid as long as this tokenizer.
  Result<std::string_view> token_bytes(TokenId id) const;

  // The added token with this spelling, or else the ordinary token with these bytes.
  std::optional<TokenId> token_id(std::string_view content) const;

  // In order of ids.
  std::span<const AddedToken> added_tokens() const;
  bool is_added(TokenId id) const;
  bool is_special(TokenId id) const;

  // Highest id + 1. The rows of a checkpoint's embedding may be more: those ids are no tokens.
  std::size_t vocab_size() const;

 private:
  struct State;

  explicit Tokenizer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace mimo
