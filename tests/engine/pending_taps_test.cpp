// Rows that wait for the drafter: the newest, in order, with the tokens of each and of the one after them.

#include "engine/pending_taps.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "ops/reference/reference_ops.h"

namespace mimo {
namespace {

constexpr std::size_t kWidth = 3;

Ops& ops() {
  static const std::unique_ptr<Ops> made = make_reference_ops();
  return *made;
}

std::int32_t token_at(std::int64_t position) { return static_cast<std::int32_t>(1000 + position); }

void add(PendingTaps& pending, std::int64_t position, std::int64_t rows) {
  std::vector<float> taps;
  std::vector<std::int32_t> tokens;
  for (std::int64_t p = position; p < position + rows; ++p) {
    for (std::size_t i = 0; i < kWidth; ++i) {
      taps.push_back(static_cast<float>(p) + 0.25f * static_cast<float>(i));
    }
    tokens.push_back(token_at(p));
  }
  tokens.push_back(token_at(position + rows));
  pending.add(position, taps, tokens);
}

// Everything from `begin` to `end` and nothing else, behind what the buffer held.
void expect_rows(const PendingTaps& pending, std::int64_t begin, std::int64_t end) {
  std::vector<float> taps((2 + static_cast<std::size_t>(pending.rows()) + 1) * kWidth, -1.0f);
  const DraftObservation seen = pending.copy_to(taps.data(), 2);
  EXPECT_EQ(seen.row_begin, 2);
  EXPECT_EQ(seen.position, begin);
  ASSERT_EQ(seen.position + seen.rows, end);
  ASSERT_EQ(pending.rows(), end - begin);
  for (std::size_t i = 0; i < kWidth; ++i) {
    EXPECT_EQ(taps[i], -1.0f);
    EXPECT_EQ(taps[taps.size() - 1 - i], -1.0f) << "behind the last row";
  }
  ASSERT_EQ(std::ssize(seen.tokens), end - begin + 1);
  for (std::int64_t p = begin; p <= end; ++p) {
    EXPECT_EQ(seen.tokens[static_cast<std::size_t>(p - begin)], token_at(p));
    if (p == end) break;
    for (std::size_t i = 0; i < kWidth; ++i) {
      ASSERT_EQ(taps[static_cast<std::size_t>(2 + p - begin) * kWidth + i],
                static_cast<float>(p) + 0.25f * static_cast<float>(i));
    }
  }
}

TEST(PendingTaps, KeepsTheNewestRowsWhateverTheyComeIn) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    TapBuffers buffers(ops(), 1 + static_cast<int>(random() % 12), kWidth);
    PendingTaps pending(buffers);
    EXPECT_TRUE(pending.empty());
    const std::int64_t begin = random() % 40;
    std::int64_t end = begin;
    for (int part = 0; part < 8; ++part) {
      const auto rows = static_cast<std::int64_t>(1 + random() % 20);
      add(pending, end, rows);
      end += rows;
      EXPECT_FALSE(pending.empty());
      expect_rows(pending, std::max(begin, end - buffers.rows()), end);
    }
    pending.clear();
    EXPECT_TRUE(pending.empty());
    add(pending, end + 5, 1);
    expect_rows(pending, end + 5, end + 6);
  }
}

TEST(PendingTaps, BuffersAreUsedAgain) {
  TapBuffers buffers(ops(), 4, kWidth);
  const float* first = nullptr;
  {
    BackendArray<float> buffer = buffers.take();
    first = buffer.data();
    buffers.give_back(std::move(buffer));
  }
  for (int i = 0; i < 3; ++i) {
    PendingTaps pending(buffers);
    add(pending, 0, 2);
    const BackendArray<float> other = buffers.take();
    EXPECT_NE(other.data(), first) << "it is in use";
  }
  EXPECT_EQ(buffers.take().data(), first);
}

}  // namespace
}  // namespace mimo
