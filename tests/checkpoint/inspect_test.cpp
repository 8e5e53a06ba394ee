#include "checkpoint/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/file.h"
#include "support/checkpoint_writer.h"

namespace mimo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::TinyCheckpoint;
using testing::TinyModel;

ModelConfig released(const std::string& name) {
  const std::string path = std::string(MIMO_SOURCE_DIR) + "/tests/checkpoint/data/configs/" + name + ".json";
  return *parse_config(*read_file(path, 1 << 20), path);
}

std::uint64_t group(const std::array<std::uint64_t, kTensorGroups>& values, TensorGroup which) {
  return values[static_cast<std::size_t>(which)];
}

// Spec model 6.1 and 6.2.
TEST(ModelSize, ReleasedSizes) {
  const ModelSize flash = model_size(released("v2_6_flash"), 1);
  EXPECT_NEAR(static_cast<double>(flash.total_parameters), 308.78e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(flash.active_parameters), 14.82e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(group(flash.bytes, TensorGroup::kMtp)), 396.5e6, 0.05e6);
  EXPECT_NEAR(static_cast<double>(group(flash.parameters, TensorGroup::kMtp)), 0.329e9, 0.001e9);
  EXPECT_EQ(group(flash.parameters, TensorGroup::kExperts), 47ull * 256 * 3 * 4096 * 2048);
  EXPECT_EQ(group(flash.bytes, TensorGroup::kExperts), 47ull * 256 * 13'369'344);
  const ModelSize pro = model_size(released("v2_6_pro"), 1);
  EXPECT_NEAR(static_cast<double>(pro.total_parameters), 1021.2e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(pro.active_parameters), 40.96e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(group(pro.bytes, TensorGroup::kMtp)), 821.2e6, 0.1e6);
  EXPECT_EQ(group(pro.bytes, TensorGroup::kExperts), 69ull * 384 * 20'054'016);
  EXPECT_EQ(group(model_size(released("v2_5"), 0).bytes, TensorGroup::kExperts), 47ull * 256 * 25'171'968);
  EXPECT_EQ(group(model_size(released("v2_5_pro"), 0).bytes, TensorGroup::kExperts),
            69ull * 384 * 37'757'952);
}

// Spec model 6.3.
TEST(ModelSize, KvBytes) {
  const ModelConfig flash = released("v2_6_flash");
  const ModelConfig pro = released("v2_6_pro");
  EXPECT_EQ(kv_bytes(flash, KvFormat::kBF16, false).full_per_token, 23'040u);
  EXPECT_EQ(kv_bytes(flash, KvFormat::kFp8, false).full_per_token, 11'520u);
  EXPECT_EQ(kv_bytes(pro, KvFormat::kBF16, false).full_per_token, 51'200u);
  EXPECT_EQ(kv_bytes(pro, KvFormat::kFp8, false).full_per_token, 25'600u);
  EXPECT_NEAR(static_cast<double>(kv_bytes(flash, KvFormat::kBF16, false).window_per_token) * 128, 25.56e6,
              0.01e6);
  EXPECT_NEAR(static_cast<double>(kv_bytes(pro, KvFormat::kBF16, false).window_per_token) * 128, 39.32e6,
              0.01e6);
  EXPECT_EQ(kv_bytes_per_token(flash.full, 4, KvFormat::kFp8, true), 1312u);
  EXPECT_EQ(kv_bytes_per_token(flash.window, 8, KvFormat::kFp8, true), 2624u);
}

TEST(Inspect, CompleteCheckpoint) {
  TempDir dir;
  TinyModel model;
  model.mtp_heads = 2;
  TinyCheckpoint checkpoint(model);
  checkpoint.tensors["visual.blocks.0.weight"] = checkpoint.tensors.at("model.norm.weight");
  checkpoint.config["mystery"] = 1;
  checkpoint.write(dir.path(), 2);
  testing::write_safetensors(dir.file("golden.safetensors"), {});
  const auto report = inspect_checkpoint(dir.path(), {});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->problems.empty()) << report->problems.front();
  EXPECT_EQ(report->mtp_heads, 2);
  EXPECT_EQ(report->stored_bytes, report->size.total_bytes);
  EXPECT_EQ(report->other_files, std::vector<std::string>{"golden.safetensors"});
  EXPECT_EQ(report->skipped.at("visual.").count, 1u);
  EXPECT_EQ(report->tensor_parallel, (std::vector<int>{1, 2, 4, 8}));
  const std::string text = to_text(*report);
  EXPECT_THAT(text, AllOf(HasSubstr("fused in 4 chunks"), HasSubstr("mxfp4"), HasSubstr("mystery"),
                          HasSubstr("visual."), HasSubstr("complete"), HasSubstr("golden.safetensors")));
  const json::value value = to_json(*report);
  EXPECT_EQ(value.at("complete"), true);
  EXPECT_EQ(value.at("layer_table").as_array().size(), 3u);
  EXPECT_EQ(value.at("layer_table").at(1).at("attention"), "window");
  EXPECT_EQ(value.at("layer_table").at(0).at("mlp"), "dense");
  EXPECT_EQ(value.at("mtp_heads"), 2);
  EXPECT_EQ(value.at("warnings").as_array().size(), 1u);
}

TEST(Inspect, ProblemsAreListedNotFatal) {
  TempDir dir;
  TinyCheckpoint(TinyModel{}).write(dir.path(), 3);
  std::filesystem::remove(dir.file("model_part2.safetensors"));
  const auto report = inspect_checkpoint(dir.path(), {});
  ASSERT_TRUE(report);
  EXPECT_THAT(report->problems, ::testing::Contains(HasSubstr("model_part2.safetensors")));
  EXPECT_THAT(report->problems, ::testing::Contains(HasSubstr("missing")));
  EXPECT_LT(report->stored_bytes, report->size.total_bytes);
  EXPECT_EQ(to_json(*report).at("complete"), false);
  EXPECT_THAT(to_text(*report), HasSubstr("PROBLEM"));
}

TEST(Inspect, ConfigWithoutWeights) {
  TempDir dir;
  TinyCheckpoint(TinyModel{}).write(dir.path());
  std::filesystem::remove(dir.file("model.safetensors"));
  const auto report = inspect_checkpoint(dir.path(), {});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->problems.size(), 1u);
  EXPECT_GT(report->size.total_parameters, 0u);
  EXPECT_FALSE(inspect_checkpoint("/nonexistent", {}));
}

// Chunks whose whole blocks reach 448 while the rows between them do not: read with other borders, blocks
// miss it.
TEST(Inspect, BlockStatisticShowsAWrongLayout) {
  TempDir dir;
  TinyCheckpoint checkpoint{TinyModel{}};
  auto& weight = checkpoint.tensors.at("model.layers.0.self_attn.qkv_proj.weight");
  for (std::int64_t r = 0; r < weight.shape[0]; ++r) {
    for (std::int64_t c = 0; c < weight.shape[1]; ++c) {
      const std::int64_t local = r % 272;  // rows per chunk
      weight.bytes[static_cast<std::size_t>(r * weight.shape[1] + c)] =
          local == 127 || local == 255 ? 0x7E : 0x10;
    }
  }
  checkpoint.write(dir.path());
  const auto good = inspect_checkpoint(dir.path(), {});
  ASSERT_TRUE(good);
  EXPECT_EQ(good->qkv_blocks_at_448, 1.0);
  EXPECT_TRUE(good->config.warnings.empty());
  OpenOptions options;
  options.qkv_layout = OpenOptions::QkvLayout::kPlain;
  const auto bad = inspect_checkpoint(dir.path(), options);
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->qkv_blocks_at_448, 0.875);
  EXPECT_THAT(bad->config.warnings, ::testing::Contains(HasSubstr("another layout")));
}

TEST(Inspect, MtpOnRequest) {
  TempDir dir;
  TinyCheckpoint(TinyModel{}).write(dir.path());
  EXPECT_TRUE(inspect_checkpoint(dir.path(), {})->problems.empty());
  OpenOptions options;
  options.mtp = true;
  EXPECT_THAT(inspect_checkpoint(dir.path(), options)->problems, ::testing::Contains(HasSubstr("MTP")));
}

}  // namespace
}  // namespace mimo
