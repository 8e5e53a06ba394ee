// A megabyte of one character: linear time and constant stack. The limit is far above what is measured (about
// 0.1 s) and far below what anything quadratic takes.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "text/tokenizer_fixture.h"

namespace mimo::test {
namespace {

constexpr std::size_t kBytes = 1u << 20;
constexpr std::chrono::seconds kLimit{5};

void check_runs(const Tokenizer& tokenizer) {
  // A worker thread with the default stack, as in the server.
  std::thread([&tokenizer] {
    for (const char* unit : {"Z", ".", " ", "7", "你", "\u0301", "\n", "\xFF", "<", "\u3000", "ab", "\r\n",
                             "a\u0301", "<|im_"}) {
      std::string text;
      while (text.size() < kBytes) text += unit;
      const auto start = std::chrono::steady_clock::now();
      const auto ids = tokenizer.encode(text, {.allow_added_tokens = true});
      EXPECT_LT(std::chrono::steady_clock::now() - start, kLimit) << unit;
      EXPECT_FALSE(ids.empty());
      const auto back = tokenizer.decode(ids, false);
      ASSERT_TRUE(back);
      const bool rewritten = std::string_view(unit) == "\xFF" || std::string_view(unit) == "a\u0301";
      EXPECT_TRUE(rewritten || *back == text) << unit;
    }
  }).join();
}

TEST(TokenizerLongRun, TinyVocabulary) { check_runs(tiny_tokenizer()); }

TEST(TokenizerLongRun, QwenVocabulary) {
  MIMO_NEED_XZ();
  check_runs(qwen_tokenizer());
}

}  // namespace
}  // namespace mimo::test
