// The logits of a token depend on its own sequence only, bit for bit: not on how its prompt was cut, on page
// sizes, on which other sequences are in the step, nor on thread counts. Freed pages hold NaN throughout.

#include <gtest/gtest.h>

#include <cstring>

#include "ops/backends.h"
#include "ops/cpu/cpu_ops.h"
#include "support/golden.h"
#include "support/model_driver.h"

namespace mimo {
namespace {

std::unique_ptr<Ops> cpu(int threads = 2) {
  Result<std::unique_ptr<Ops>> ops = make_cpu_ops({.threads = threads, .pin = false});
  EXPECT_TRUE(ops) << ops.error().message;
  return std::move(*ops);
}

class BatchInvariance : public ::testing::TestWithParam<KvDType> {
 protected:
  void SetUp() override {
    Result<Golden> golden = load_golden(directory());
    ASSERT_TRUE(golden) << golden.error().message;
    prompt_ = golden->input_ids;
    // Long enough for pages of every size to leave the window.
    while (prompt_.size() < 330) prompt_.push_back(prompt_[prompt_.size() % 97]);
    prompt_.resize(330);
  }
  static std::string directory() { return golden_directory("v26_tiny"); }
  std::unique_ptr<ModelDriver> driver(int page_size = 16, int threads = 2) const {
    return std::make_unique<ModelDriver>(directory(), cpu(threads),
                                         DriverOptions{.kv = GetParam(), .page_size = page_size});
  }
  std::vector<std::int32_t> slice(std::size_t begin, std::size_t count) const {
    return {prompt_.begin() + static_cast<std::ptrdiff_t>(begin),
            prompt_.begin() + static_cast<std::ptrdiff_t>(begin + count)};
  }
  // Logits of the whole prompt, fed in chunks.
  std::vector<float> in_chunks(ModelDriver& driver, std::size_t chunk) const {
    const int sequence = driver.add_sequence();
    std::vector<float> all;
    for (std::size_t at = 0; at < prompt_.size(); at += chunk) {
      const std::vector<float> logits =
          driver.step({sequence}, {slice(at, std::min(chunk, prompt_.size() - at))});
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }
  static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  std::vector<std::int32_t> prompt_;
};

TEST_P(BatchInvariance, ChunksPagesAndThreads) {
  const std::vector<float> whole = in_chunks(*driver(), prompt_.size());
  for (const float logit : whole) ASSERT_TRUE(std::isfinite(logit)) << "a poisoned page was read";
  for (const int page : {1, 7, 16, 64, 128}) {
    const std::unique_ptr<ModelDriver> other = driver(page);
    for (const std::size_t chunk : {std::size_t{7}, std::size_t{100}}) {
      EXPECT_TRUE(same_bits(in_chunks(*other, chunk), whole)) << "page " << page << " chunk " << chunk;
    }
  }
  for (const std::size_t chunk : {1, 64})
    EXPECT_TRUE(same_bits(in_chunks(*driver(), chunk), whole)) << "chunk " << chunk;
  for (const int threads : {1, 3}) {
    EXPECT_TRUE(same_bits(in_chunks(*driver(16, threads), 64), whole)) << threads << " threads";
  }
}

TEST_P(BatchInvariance, LowerInstructionSets) {
  for (const CpuLevel level : mimo::testing::cpu_levels()) {
    const mimo::testing::ScopedCpuLevel scope(cpu_level_name(level));
    const std::vector<float> whole = in_chunks(*driver(), prompt_.size());
    EXPECT_TRUE(same_bits(in_chunks(*driver(7), 64), whole)) << cpu_level_name(level);
    EXPECT_TRUE(same_bits(in_chunks(*driver(64, 1), 7), whole)) << cpu_level_name(level);
  }
}

// The prompt in uneven pieces while two other sequences run beside it, first behind it and then before it.
TEST_P(BatchInvariance, OtherSequencesInTheStep) {
  const std::vector<float> whole = in_chunks(*driver(), prompt_.size());
  const auto vocab = whole.size() / prompt_.size();
  const std::unique_ptr<ModelDriver> mixed = driver(7);
  const int own = mixed->add_sequence();
  const int first = mixed->add_sequence();
  const int second = mixed->add_sequence();
  std::size_t at = 0;
  const std::size_t pieces[] = {1, 50, 3, 130, 16, 17, 1, 1, 111};
  for (std::size_t i = 0; at < prompt_.size(); ++i) {
    const std::size_t count = std::min(pieces[i % 9], prompt_.size() - at);
    const std::size_t before = i % 2 == 0 ? 0 : 5 + i;
    const std::vector<float> logits =
        i % 2 == 0 ? mixed->step({own, first}, {slice(at, count), slice(3 * i, 20)})
                   : mixed->step({second, own, first}, {slice(i, before), slice(at, count), slice(2 * i, 1)});
    ASSERT_EQ(
        std::memcmp(logits.data() + before * vocab, whole.data() + at * vocab, count * vocab * sizeof(float)),
        0)
        << "tokens " << at << " to " << at + count;
    at += count;
  }
}

// Three greedy generations in one ragged batch, one joining late, against each alone.
TEST_P(BatchInvariance, GreedyGenerationInABatch) {
  constexpr int kTokens = 24;
  const std::vector<std::int32_t> prompts[] = {slice(0, 140), slice(40, 9), slice(100, 63)};
  std::vector<std::vector<std::int32_t>> expected;
  for (const auto& prompt : prompts) expected.push_back(driver()->greedy(prompt, kTokens, 64));

  const std::unique_ptr<ModelDriver> batch = driver(64);
  std::vector<std::vector<std::int32_t>> got(3);
  std::vector<int> numbers;
  for (int i = 0; i < 3; ++i) numbers.push_back(batch->add_sequence());
  const auto vocab = static_cast<std::size_t>(batch->vocab());
  for (int step = 0; got[0].size() < kTokens || got[1].size() < kTokens || got[2].size() < kTokens; ++step) {
    std::vector<int> sequences;
    std::vector<std::vector<std::int32_t>> tokens;
    std::vector<std::size_t> which;
    for (std::size_t i = 0; i < 3; ++i) {
      if (got[i].size() == kTokens || (i == 2 && step < 5)) continue;
      which.push_back(i);
      sequences.push_back(numbers[i]);
      tokens.push_back(got[i].empty() ? prompts[i] : std::vector<std::int32_t>{got[i].back()});
    }
    const std::vector<float> logits = batch->step(sequences, tokens);
    std::size_t row = 0;
    for (std::size_t k = 0; k < which.size(); ++k) {
      row += tokens[k].size();
      got[which[k]].push_back(argmax({logits.data() + (row - 1) * vocab, vocab}));
    }
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(got[i], expected[i]) << "sequence " << i;
}

INSTANTIATE_TEST_SUITE_P(KvTypes, BatchInvariance,
                         ::testing::Values(KvDType::kBF16, KvDType::kFp8, KvDType::kF32),
                         [](const auto& type) {
                           return type.param == KvDType::kBF16  ? "bf16"
                                  : type.param == KvDType::kFp8 ? "fp8"
                                                                : "f32";
                         });

// A window layer holds at most the window, the step in flight and page rounding; when sequences end,
// everything is free.
TEST(PoolBalance, WindowStaysBoundedAndAllPagesReturn) {
  for (const int page : {1, 16, 64, 128}) {
    const PageLayout layout{page, 128};
    PagePool full("full", 4096 / page);
    PagePool window("window", 4096 / page);
    {
      SequencePages a(layout, full, window);
      SequencePages b(layout, full, window);
      for (int step = 0; step < 60; ++step) {
        for (SequencePages* pages : {&a, &b}) {
          ASSERT_TRUE(pages->extend(pages == &a ? 17 : 1));
          pages->commit(pages == &a ? 17 : 1);
        }
        const std::int64_t held = window.capacity() - window.free_pages();
        // 127 keys touch at most ceil(126 / page) + 1 pages; the last page may have room left.
        ASSERT_LE(held, 2 * ((126 + page - 1) / page + 2)) << "page " << page << " step " << step;
      }
    }
    EXPECT_EQ(full.free_pages(), full.capacity());
    EXPECT_EQ(window.free_pages(), window.capacity());
  }
}

}  // namespace
}  // namespace mimo
