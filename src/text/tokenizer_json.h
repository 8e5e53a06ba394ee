// Reads a Hugging Face tokenizer.json. Only what this engine implements is accepted: byte-level BPE, NFC or
// no normaliser, the Qwen2 split pattern or GPT-2's, the ByteLevel decoder. Every other component, option or
// key is an error that names it, since ignoring one would give other ids than the model was trained with.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_vocab.h"

namespace mimo {

struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool special = false;     // left out by decode with skip_special
  bool normalized = false;  // matched after normalisation instead of before it
};

struct TokenizerFile {
  TokenVocab vocab;
  std::array<TokenId, 256> byte_ids{};  // each byte is a token
  std::vector<BpeMerge> merges;         // by rank
  std::vector<AddedToken> added;        // by id; ids and contents are unique
  bool nfc = false;
  SplitPattern pattern = SplitPattern::kQwen2;
};

// `what` names the text in error messages.
Result<TokenizerFile> parse_tokenizer_json(std::string_view text, std::string_view what);

}  // namespace mimo
