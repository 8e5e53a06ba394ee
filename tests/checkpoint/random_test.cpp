// Random weights: deterministic, of the stated statistics, in the stored formats, through the same assembly
// as files.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>

#include "checkpoint/random_fill.h"
#include "checkpoint/weight_source.h"
#include "core/file.h"
#include "core/number_formats.h"
#include "support/checkpoint_writer.h"
#include "support/plain_checkpoint.h"

namespace mimo {
namespace {

using testing::PlainMatrix;
using testing::TinyCheckpoint;
using testing::TinyModel;
using testing::to_matrix;
using Format = TinyModel::Format;

ModelConfig tiny(const TinyModel& model) {
  TinyCheckpoint checkpoint(model);
  checkpoint.config["num_nextn_predict_layers"] = model.mtp_heads;
  auto config = parse_config(json::serialize(checkpoint.config), "config.json");
  EXPECT_TRUE(config) << (config ? "" : config.error().message);
  return *config;
}

double mean_of(const std::vector<float>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

double deviation_of(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * v;
  return std::sqrt(sum / static_cast<double>(x.size()));
}

// Deviation 1/sqrt(fan_in) within 4 standard errors of the estimate. Elements of a scale block share its
// scale, whose own spread (FP8: 20% uniform; MXFP4: two neighbouring exponents) averages out over blocks
// only.
void expect_spread(const WeightView& view, std::int64_t fan_in) {
  const PlainMatrix m = to_matrix(view);
  const double want = 1 / std::sqrt(static_cast<double>(fan_in));
  const auto n = static_cast<double>(m.values.size());
  double scale_spread = 0;
  double block = 1;
  if (view.format == WeightFormat::kFp8) {
    scale_spread = 0.2 / std::sqrt(3.0);
    block = 128 * 128;
  } else if (view.format == WeightFormat::kMxfp4) {
    scale_spread = 0.5 * 0.75;  // half the relative spread of the squares: at most (4 - 1) / 4
    block = 32;
  }
  const double error = 4 / std::sqrt(2 * n) + 4 * scale_spread * std::sqrt(block / n) + 0.005;
  EXPECT_NEAR(deviation_of(m.values), want, want * error) << view.name;
  EXPECT_NEAR(mean_of(m.values), 0.0, 4 * want / std::sqrt(n) + 1e-3 * want) << view.name;
  EXPECT_TRUE(std::all_of(m.values.begin(), m.values.end(), [](float x) { return std::isfinite(x); }))
      << view.name;
}

void expect_statistics(const TinyModel& model) {
  const auto source = open_random(tiny(model), 7);
  ASSERT_TRUE(source);
  const ModelConfig& config = (*source)->config();
  const auto globals = (*source)->globals();
  ASSERT_TRUE(globals);
  expect_spread(globals->embed, 1);
  expect_spread(globals->lm_head, config.hidden);
  EXPECT_NEAR(mean_of(globals->final_norm), 1.0, 0.05);
  for (int i = 0; i < config.layers; ++i) {
    const auto layer = (*source)->layer(i, {});
    ASSERT_TRUE(layer) << layer.error().message;
    expect_spread(layer->attention.qkv, config.hidden);
    expect_spread(layer->attention.o_proj, layer->attention.o_proj.cols);
    EXPECT_EQ(layer->attention.sinks.empty(), i != 1);
    EXPECT_NEAR(mean_of(layer->input_norm), 1.0, 0.05);
    if (layer->mlp) {
      expect_spread(layer->mlp->down, config.intermediate);
      continue;
    }
    for (const float bias : layer->moe->router_bias) EXPECT_LT(std::abs(bias), 0.05f);
    expect_spread(layer->moe->router, config.hidden);
    for (const MlpWeights& expert : layer->moe->experts) {
      expect_spread(expert.gate, config.hidden);
      expect_spread(expert.up, config.hidden);
      expect_spread(expert.down, config.moe_intermediate);
    }
  }
  for (int k = 0; k < (*source)->mtp_heads(); ++k) {
    const auto head = (*source)->mtp(k, {});
    ASSERT_TRUE(head) << head.error().message;
    expect_spread(head->eh_proj, 2 * config.hidden);
  }
}

TEST(Random, StatisticsMxfp4) { expect_statistics({.mtp_heads = 2}); }
TEST(Random, StatisticsFp8) {
  expect_statistics({.fused = false, .experts = Format::kFp8, .router_f32 = true, .moe_intermediate = 512});
}
TEST(Random, StatisticsBf16) { expect_statistics({.dense = Format::kBF16, .experts = Format::kBF16}); }

TEST(Random, DependsOnSeedAndNothingElse) {
  const ModelConfig config = tiny({});
  const auto a = open_random(config, 1);
  const auto b = open_random(config, 1);
  const auto c = open_random(config, 2);
  ASSERT_TRUE((*a)->layer(2, {}));  // another order of calls
  const auto first = (*a)->layer(1, {});
  const auto second = (*b)->layer(1, {});
  const auto other = (*c)->layer(1, {});
  const std::vector<float> values = to_matrix(first->moe->experts[1].up).values;
  EXPECT_EQ(values, to_matrix(second->moe->experts[1].up).values);
  EXPECT_NE(values, to_matrix(other->moe->experts[1].up).values);
  EXPECT_NE(values, to_matrix(first->moe->experts[2].up).values);
  (*a)->release_layer(1);
  const auto again = (*a)->layer(1, {});
  EXPECT_EQ(values, to_matrix(again->moe->experts[1].up).values);
}

TEST(Random, ThreadsDoNotChangeTheBytes) {
  const ExpectedTensor tensor{
      "model.layers.0.mlp.up_proj.weight", DType::kF8E4M3, DType::kF8E4M3, {3000, 1001}, 2};
  std::vector<std::uint8_t> one(tensor.bytes());
  std::vector<std::uint8_t> four(tensor.bytes());
  const FillJob job_one{&tensor, 1001, one.data()};
  const FillJob job_four{&tensor, 1001, four.data()};
  fill_random({&job_one, 1}, 3, 1);
  fill_random({&job_four, 1}, 3, 4);
  EXPECT_EQ(one, four);
  EXPECT_EQ(std::count_if(one.begin(), one.end(), [](std::uint8_t b) { return (b & 0x7F) == 0x7F; }), 0);
  EXPECT_GT(std::count_if(one.begin(), one.end(), [](std::uint8_t b) { return (b & 0x7F) == 0x7E; }), 0);
}

TEST(Random, ShardsTogetherAreTheWhole) {
  const auto source = open_random(tiny({}), 5);
  const auto whole = (*source)->layer(0, {});
  PlainMatrix gate;
  for (int rank = 0; rank < 4; ++rank) gate.append_rows(to_matrix((*source)->layer(0, {rank, 4})->mlp->gate));
  EXPECT_EQ(gate.values, to_matrix(whole->mlp->gate).values);
  const auto refused = (*source)->layer(0, {0, 3});
  EXPECT_FALSE(refused);
}

TEST(Random, TotalBytesOfTheReleasedSizes) {
  // Spec model 6.2: text totals 169.75 GB and 561.5 GB in MXFP4, 311.9 GB and 1030.9 GB in FP8; the V2.6
  // fixtures declare three MTP heads of 396.5 MB and 821.2 MB.
  struct Size {
    const char* name;
    double gigabytes;
  };
  for (const Size& size : {Size{"v2_6_flash", 169.75 + 3 * 0.3965}, Size{"v2_6_pro", 561.5 + 3 * 0.8212},
                           Size{"v2_5", 311.9}, Size{"v2_5_pro", 1030.9}}) {
    const std::string path =
        std::string(MIMO_SOURCE_DIR) + "/tests/checkpoint/data/configs/" + size.name + ".json";
    const auto text = read_file(path, 1 << 20);
    ASSERT_TRUE(text);
    auto config = parse_config(*text, path);
    ASSERT_TRUE(config);
    const auto source = open_random(*config, 1);
    EXPECT_NEAR(static_cast<double>((*source)->total_bytes()) / 1e9, size.gigabytes, size.gigabytes * 3e-4)
        << size.name;
  }
}

TEST(Random, IsFast) {
  // 64 MiB of each format; the floor is far below what one core does, so that a busy machine does not fail
  // it.
  struct Case {
    const char* name;
    DType dtype;
  };
  for (const Case& each :
       {Case{"x.weight", DType::kF8E4M3}, Case{"x.weight", DType::kU8}, Case{"x.weight", DType::kBF16}}) {
    const auto cols = static_cast<std::int64_t>(65536 / dtype_size(each.dtype));
    const ExpectedTensor tensor{each.name, each.dtype, each.dtype, {1024, cols}, 2};
    std::vector<std::uint8_t> out(tensor.bytes());
    const FillJob job{&tensor, cols, out.data()};
    fill_random({&job, 1}, 1, 2);
    const auto start = std::chrono::steady_clock::now();
    fill_random({&job, 1}, 2, 2);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double rate = static_cast<double>(out.size()) / seconds / 1e9;
    std::printf("[ %-8s ] %.2f GB/s on 2 threads\n", std::string(dtype_name(each.dtype)).c_str(), rate);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
    EXPECT_GT(rate, 0.2);
#endif
  }
}

}  // namespace
}  // namespace mimo
