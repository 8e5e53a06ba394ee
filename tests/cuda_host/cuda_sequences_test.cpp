// What kernels are told of the sequences of a step, and when two steps may share a graph. The arrays are staged on the
// CPU, so that any backend's memory will do.
#include "ops/cuda/cuda_sequences.h"

#include <gtest/gtest.h>

#include "ops/attention_select.h"
#include "ops/reference/reference_ops.h"

namespace mimo::cuda {
namespace {

class CudaSequencesTest : public ::testing::Test {
 protected:
  std::vector<std::int64_t> key() const {
    std::vector<std::int64_t> key;
    sequences_.add_key(key);
    return key;
  }
  std::vector<std::int64_t> key_of(std::vector<SequenceRows> rows) {
    sequences_.set(rows);
    return key();
  }

  std::unique_ptr<Ops> ops_ = make_reference_ops();
  CudaSequences sequences_{*ops_, {1e4f, 64}};
};

TEST_F(CudaSequencesTest, ArraysSayWhereRowsStand) {
  const std::vector<std::int32_t> first = {-1, 7, 3};
  const std::vector<std::int32_t> second = {5};
  sequences_.set(std::vector<SequenceRows>{{0, 2, 40, first, 20}, {2, 1, 0, second, 0}});
  const SequenceView& view = sequences_.view();
  EXPECT_EQ(view.sequences, 2);
  EXPECT_EQ(view.total_rows, 3);
  EXPECT_EQ(view.max_rows, 2);
  EXPECT_GE(view.max_keys, 42);
  ASSERT_GE(view.page_stride, 3);
  EXPECT_EQ(view.row_begin[1], 2);
  EXPECT_EQ(view.rows[0], 2);
  EXPECT_EQ(view.position[0], 40);
  EXPECT_EQ(view.first_key[0], 20);
  EXPECT_EQ(std::vector<std::int32_t>(view.row_sequence, view.row_sequence + 3),
            (std::vector<std::int32_t>{0, 0, 1}));
  EXPECT_EQ(std::vector<std::int32_t>(view.pages, view.pages + 3), first);
  EXPECT_EQ(view.pages[view.page_stride], 5);
  // Behind a table there is no page.
  for (int p = 1; p < view.page_stride; ++p) EXPECT_EQ(view.pages[view.page_stride + p], -1);
  EXPECT_EQ(sequences_.rotary_dims(), 64);
  EXPECT_FLOAT_EQ(sequences_.inverse_frequencies()[1], 0.749894202f);
}

TEST_F(CudaSequencesTest, StepsAlikeShareAKeyAndAddresses) {
  const std::vector<std::int32_t> pages(40, 1);
  const std::span<const std::int32_t> table(pages);
  const auto before = key_of({{0, 1, 300, table.first(19)}, {1, 1, 290, table.first(19)}});
  const std::int32_t* address = sequences_.view().pages;
  // The next token of each, one of which has got a page.
  EXPECT_EQ(key_of({{0, 1, 301, table.first(20)}, {1, 1, 291, table.first(19)}}), before);
  EXPECT_EQ(sequences_.view().pages, address);
  EXPECT_EQ(sequences_.view().position[0], 301);
}

TEST_F(CudaSequencesTest, WhatLaunchesDependOnIsInTheKey) {
  const std::vector<std::int32_t> pages(400, 1);
  const std::span<const std::int32_t> table(pages);
  const auto before = key_of({{0, 1, 300, table.first(20)}});
  EXPECT_NE(key_of({{0, 2, 300, table.first(20)}}), before) << "rows";
  EXPECT_NE(key_of({{0, 1, 300, table.first(20)}, {1, 1, 3, table.first(1)}}), before) << "sequences";
  EXPECT_NE(key_of({{0, 1, 300, table.first(300)}}), before) << "width of the table";
  EXPECT_NE(key_of({{0, 1, 5000, table.first(20)}}), before) << "longest context";
  // The same rows, otherwise shared out: the longest part differs.
  EXPECT_NE(key_of({{0, 3, 9, table.first(1)}, {3, 1, 9, table.first(1)}}),
            key_of({{0, 2, 9, table.first(1)}, {2, 2, 9, table.first(1)}}));
}

// Decoding requests beside a prompt: attention takes them apart, each part with its own bounds.
TEST_F(CudaSequencesTest, FewRowsAndManyAreApart) {
  const std::vector<std::int32_t> a = {4};
  const std::vector<std::int32_t> b = {5, 6};
  const std::vector<std::int32_t> c = {7};
  const int most = kAttentionDecodeRows;
  const std::vector<SequenceRows> rows = {{0, 1, 9, a}, {1, most + 1, 64, b, 3}, {most + 2, most, 2, c}};
  sequences_.set(rows);
  EXPECT_EQ(sequences_.view().sequences, 3);
  ASSERT_EQ(sequences_.parts().size(), 2u);
  const SequenceView& few = sequences_.parts()[0];
  const SequenceView& many = sequences_.parts()[1];
  EXPECT_NE(few.version, many.version);
  EXPECT_EQ(few.sequences, 2);
  EXPECT_EQ(few.max_rows, most);
  EXPECT_EQ(few.row_begin[1], most + 2);
  EXPECT_EQ(few.position[0], 9);
  EXPECT_EQ(few.pages[few.page_stride], 7);
  EXPECT_EQ(many.sequences, 1);
  EXPECT_EQ(many.max_rows, most + 1);
  EXPECT_EQ(many.row_begin[0], 1);
  EXPECT_EQ(many.first_key[0], 3);
  EXPECT_EQ(many.pages[1], 6);
  for (const SequenceView* part : {&few, &many}) {
    EXPECT_EQ(part->total_rows, 2 * most + 2);
    for (int r = 0; r < part->total_rows; ++r) {
      const int owner = r == 0 ? 0 : (r < most + 2 ? 1 : 2);
      const bool own = (owner == 1) == (part == &many);
      EXPECT_EQ(part->row_sequence[r], own ? (owner == 2 ? 1 : 0) : -1) << r;
    }
  }
  // Alone, each is the only part.
  sequences_.set(std::span(rows).first(1));
  ASSERT_EQ(sequences_.parts().size(), 1u);
  EXPECT_EQ(sequences_.parts()[0].version, sequences_.view().version);
}

}  // namespace
}  // namespace mimo::cuda
