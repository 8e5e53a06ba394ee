#include "cuda/attention_case.h"
#include "ops/cuda/kernels/attention_plain.h"

namespace mimo::cuda::test {
namespace {

void plain(const AttentionArgs& args) { attention_plain(args, nullptr); }

// fp32 sums of n products: about 1e-7 * sqrt(n) of the magnitude; a bf16 result adds half a unit of 2^-7.
double tolerance(const AttentionShape& shape) { return shape.type == ActType::kF32 ? 3e-6 : 1.01 / 256; }

std::vector<float> run(AttentionCase& problem) {
  problem.upload();
  plain(problem.args());
  EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
  return problem.download();
}

TEST(AttentionPlain, RandomShapesAgreeWithDouble) {
  std::mt19937 random(7);
  const auto pick = [&](std::initializer_list<int> from) { return *(from.begin() + random() % from.size()); };
  double worst32 = 0;
  double worst16 = 0;
  for (unsigned i = 0; i < (small_cases() ? 5 : 120); ++i) {
    AttentionShape a;
    a.kv_heads = pick({1, 2, 3, 4});
    a.q_heads = a.kv_heads * pick({1, 2, 3, 8, 16, 20});
    const bool odd = random() % 4 == 0;
    a.qk_dim = odd ? pick({6, 17, 64, 256}) : pick({192, 128});
    a.v_dim = odd ? pick({5, 16, 40, 256}) : 128;
    a.page_size = pick({1, 3, 7, 16, 64, 128, 256});
    a.fp8 = random() % 2 == 0;
    a.bidirectional = random() % 3 == 0;
    a.window = pick({0, 0, 1, 5, 128});
    a.anchor = random() % 2 == 0;
    a.sinks = random() % 2 == 0;
    a.type = random() % 3 == 0 ? ActType::kBF16 : ActType::kF32;
    const int count = static_cast<int>(random() % 4) + 1;
    for (int s = 0; s < count; ++s) {
      SequenceShape q;
      q.rows = pick({0, 1, 1, 2, 5, 8, 33});
      q.position = pick({0, 1, 15, 31, 32, 127, 128, 200, 300});
      q.first_key =
          random() % 3 == 0 ? static_cast<int>(random() % static_cast<unsigned>(q.position + 1)) : 0;
      a.sequences.push_back(q);
    }
    a.max_sequences = count + static_cast<int>(random() % 2);
    AttentionCase problem(a, i);
    problem.reference();
    const double error = worst_error(problem, run(problem));
    EXPECT_LE(error, tolerance(a)) << a.text();
    (a.type == ActType::kF32 ? worst32 : worst16) =
        std::max(a.type == ActType::kF32 ? worst32 : worst16, error);
  }
  std::printf("worst error over magnitude: f32 %.2e, bf16 %.2e\n", worst32, worst16);
}

// A token verified among others gets the bits that it would get alone.
TEST(AttentionPlain, RowsDoNotKnowTheirNeighbours) {
  for (const bool fp8 : {false, true}) {
    for (const int window : {0, 128}) {
      AttentionShape a;
      a.q_heads = 16;
      a.kv_heads = 2;
      a.fp8 = fp8;
      a.window = window;
      a.sinks = window > 0;
      a.type = ActType::kF32;
      a.loud = false;
      a.sequences = {{5, 300, 0}, {8, 777, 0}};
      AttentionCase together(a, 3);
      const std::vector<float> all = run(together);
      const std::size_t width = static_cast<std::size_t>(a.q_heads * a.v_dim);
      for (int r = 0; r < 8; ++r) {
        AttentionShape one = a;
        one.sequences = {{0, 300, 0}, {1, 777 + r, 0}};
        AttentionCase alone(one, 3);
        const std::vector<float> out = run(alone);
        std::size_t from = 0;
        while (std::isnan(out[from])) ++from;
        std::size_t last = all.size() - (8 - static_cast<std::size_t>(r)) * width;
        for (std::size_t i = 0; i < width; ++i) ASSERT_EQ(out[from + i], all[last + i]) << r << " " << i;
      }
    }
  }
}

TEST(AttentionPlain, WideHeadsAreRefused) {
  AttentionArgs args;
  args.kv.qk_dim = 257;
  EXPECT_THROW(attention_plain(args, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace mimo::cuda::test
