// Whole models on the CUDA backend against the golden logits of an independent implementation.
#include <gtest/gtest.h>

#include "cuda/device_ops.h"
#include "support/golden.h"
#include "support/model_driver.h"

namespace mimo::testing {
namespace {

// Logits of the golden prompt, prefilled in chunks.
double golden_error(const char* name, bool exact, KvDType kv, int chunk, int page_size) {
  const Result<Golden> loaded = load_golden(golden_directory(name));
  if (!loaded) throw std::runtime_error(loaded.error().message);
  const Golden& golden = *loaded;
  ModelDriver driver(golden_directory(name), make_cuda(exact), {.kv = kv, .page_size = page_size});
  const int sequence = driver.add_sequence();
  std::vector<float> logits;
  for (std::size_t at = 0; at < golden.input_ids.size();) {
    const std::size_t count = std::min(golden.input_ids.size() - at, static_cast<std::size_t>(chunk));
    const auto begin = golden.input_ids.begin() + static_cast<std::ptrdiff_t>(at);
    const std::vector<float> part =
        driver.step({sequence}, {{begin, begin + static_cast<std::ptrdiff_t>(count)}});
    logits.insert(logits.end(), part.begin(), part.end());
    at += count;
  }
  return relative_error(logits, golden.logits);
}

TEST(CudaModel, GoldenLogits) {
  for (const char* name : {"v26_tiny"}) {
    // This checkpoint of random weights magnifies rounding: on the CPU, in its exact mode, BF16 keys and values cost
    // 0.021 and FP8 ones 0.092. FP8 activations before FP8 weights cost more than both.
    EXPECT_LT(golden_error(name, true, KvDType::kBF16, 1 << 20, 16), 3e-2) << name;
    EXPECT_LT(golden_error(name, true, KvDType::kBF16, 7, 1), 3e-2) << name;
    EXPECT_LT(golden_error(name, false, KvDType::kBF16, 50, 64), 0.15) << name;
    EXPECT_LT(golden_error(name, false, KvDType::kFp8, 50, 64), 0.17) << name;
  }
}

}  // namespace
}  // namespace mimo::testing
