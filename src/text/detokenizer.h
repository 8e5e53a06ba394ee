// Token ids of a running generation to text that can be sent at once: a character whose bytes are spread over
// several tokens is held back until it is complete.
#pragma once

#include <string>

#include "core/result.h"
#include "text/tokenizer.h"
#include "text/unicode_utf8.h"

namespace mimo {

class Detokenizer {
 public:
  // `tokenizer` must outlive this object. `skip_special` as in Tokenizer::decode.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that is complete after this token, valid UTF-8, possibly empty. An id that is no token is an
  // error and changes nothing.
  Result<std::string> push(TokenId id);

  // The end of the output: a character that stayed incomplete becomes one U+FFFD. All texts together equal
  // decode() of all ids with invalid parts replaced as unicode_utf8.h says.
  std::string finish() { return stream_.finish(); }

  // True while bytes of an incomplete character are held back.
  bool holds_bytes() const { return stream_.holds_bytes(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Utf8Stream stream_;
};

}  // namespace mimo
