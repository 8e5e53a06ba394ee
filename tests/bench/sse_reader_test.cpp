#include "bench/sse_reader.h"

#include <gtest/gtest.h>

#include <vector>

namespace mimo {
namespace {

struct Got {
  std::string name, data;
  bool operator==(const Got&) const = default;
};

Result<std::vector<Got>> read_all(std::string_view text, std::size_t piece) {
  SseReader reader;
  std::vector<Got> got;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    const Status fed = reader.feed(text.substr(at, piece), [&](const SseEvent& event) -> Status {
      got.push_back({std::string(event.name), std::string(event.data)});
      return {};
    });
    if (!fed) return forward_error(fed);
  }
  if (const Status ended = reader.finish(); !ended) return forward_error(ended);
  return got;
}

TEST(SseReader, EveryCutGivesTheSameEvents) {
  const std::string text =
      ": hello\n\ndata: {\"a\": 1}\n\nevent: ping\r\ndata:two\r\ndata: lines\r\nid: 7\r\n\r\nretry: 10\n\n"
      "data\n\ndata: [DONE]\n\n";
  const std::vector<Got> want = {{"", "{\"a\": 1}"}, {"ping", "two\nlines"}, {"", ""}, {"", "[DONE]"}};
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    const auto got = read_all(text, piece);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(*got, want) << piece;
  }
}

TEST(SseReader, WhatIsNoEventStreamIsAnError) {
  EXPECT_EQ(read_all("{\"error\": \"no\"}\n", 5).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(read_all("data: x\n", 5).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(read_all("data: x", 5).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(read_all("event: x\n", 5).error().code, ErrorCode::kCorrupt);
}

TEST(SseReader, AnErrorOfTheReceiverEndsReading) {
  SseReader reader;
  int calls = 0;
  const Status fed = reader.feed("data: 1\n\ndata: 2\n\n", [&](const SseEvent&) -> Status {
    ++calls;
    return fail(ErrorCode::kCancelled, "enough");
  });
  EXPECT_EQ(fed.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace mimo
