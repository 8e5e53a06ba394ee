// The two vocabularies that the tokenizer tests use, each read once per process.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>

#include "text/tokenizer.h"

namespace mimo::test {

inline const std::string kTinyPath = MIMO_SOURCE_DIR "/models/tiny/tokenizer.json";
inline const std::string kTextData = MIMO_SOURCE_DIR "/tests/text/data/";

// The contents of an .xz file by way of the xz program; nothing if that is missing or fails.
inline std::optional<std::string> read_xz(const std::string& path) {
  FILE* pipe = popen(("xz -dc '" + path + "' 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string out;
  std::array<char, 1 << 16> buffer;
  for (std::size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) out.append(buffer.data(), n);
  if (pclose(pipe) != 0) return std::nullopt;
  return out;
}

inline bool have_xz() { return std::system("xz --version >/dev/null 2>&1") == 0; }

inline const Tokenizer& tiny_tokenizer() {
  static const Result<Tokenizer> tokenizer = Tokenizer::load(kTinyPath);
  if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
  return *tokenizer;
}

// The full-size Qwen vocabulary: MiMo's without MiMo's own last six added tokens. Call after have_xz().
inline const Tokenizer& qwen_tokenizer() {
  static const Result<Tokenizer> tokenizer = [] {
    const auto text = read_xz(kTextData + "qwen_tokenizer/tokenizer.json.xz");
    if (!text) throw std::runtime_error("cannot decompress the Qwen tokenizer");
    return Tokenizer::from_json(*text, "qwen tokenizer.json");
  }();
  if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
  return *tokenizer;
}

}  // namespace mimo::test

#define MIMO_NEED_XZ() \
  if (!::mimo::test::have_xz()) GTEST_SKIP() << "the xz program is not installed"
