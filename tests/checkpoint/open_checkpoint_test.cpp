// Whole directories: every layout opens and matches the plain reader at every tensor-parallel width; every
// damage is a named error.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/sharding.h"
#include "checkpoint/weight_source.h"
#include "support/checkpoint_match.h"
#include "support/checkpoint_writer.h"

namespace mimo {
namespace {

using testing::PlainCheckpoint;
using testing::TempDir;
using testing::TinyCheckpoint;
using testing::TinyModel;
using Format = TinyModel::Format;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string error_of(const TempDir& dir, const OpenOptions& options = {}) {
  const auto source = open_checkpoint(dir.path(), options);
  return source ? "" : source.error().message;
}

struct Layout {
  const char* name;
  TinyModel model;
  int shards;
  std::vector<int> sizes;
};

class Layouts : public ::testing::TestWithParam<Layout> {};

TEST_P(Layouts, C69EveryShardMatchesPlainReader) {
  const Layout& layout = GetParam();
  TempDir dir;
  TinyCheckpoint(layout.model).write(dir.path(), layout.shards);
  OpenOptions options;
  options.mtp = layout.model.mtp_heads > 0;
  const auto source = open_checkpoint(dir.path(), options);
  ASSERT_TRUE(source) << source.error().message;
  const PlainCheckpoint plain(dir.path());
  EXPECT_EQ((*source)->mtp_heads(), layout.model.mtp_heads);
  const int chunks = layout.model.fused ? layout.model.stored_chunks : 1;
  testing::expect_globals_match(**source, plain);
  EXPECT_EQ(supported_shard_sizes((*source)->config()), layout.sizes);
  for (const int size : layout.sizes) {
    for (int rank = 0; rank < size; ++rank) {
      for (int i = 0; i < 3; ++i) testing::expect_layer_matches(**source, plain, i, {rank, size}, chunks);
      for (int k = 0; k < layout.model.mtp_heads; ++k) {
        testing::expect_mtp_matches(**source, plain, k, {rank, size}, chunks);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Layouts,
    ::testing::Values(
        Layout{"FusedFp8Mxfp4", {.mtp_heads = 2}, 0, {1, 2, 4, 8}},
        Layout{"FusedFp8Mxfp4Sharded", {.mtp_heads = 1}, 3, {1, 2, 4, 8}},
        Layout{"FusedFp8Fp8",
               {.experts = Format::kFp8, .router_f32 = true, .moe_intermediate = 1024},
               2,
               {1, 2, 4, 8}},
        Layout{"PlainReexport", {.stored_chunks = 1}, 0, {1, 2, 4, 8}},
        Layout{"FusedBf16", {.dense = Format::kBF16, .experts = Format::kBF16}, 0, {1, 2, 4, 8, 16}},
        Layout{"SplitFp8",
               {.fused = false,
                .experts = Format::kFp8,
                .router_f32 = true,
                .mtp_heads = 1,
                .moe_intermediate = 512},
               1,
               {1, 2, 4}},
        Layout{"SplitBf16",
               {.fused = false, .dense = Format::kBF16, .experts = Format::kBF16},
               4,
               {1, 2, 4, 8, 16}},
        Layout{"MoreRanksThanKvHeads",
               {.fused = false,
                .dense = Format::kBF16,
                .experts = Format::kBF16,
                .full_kv_heads = 2,
                .window_kv_heads = 4},
               0,
               {1, 2, 4, 8, 16}},
        Layout{"FusedTwoChunks",
               {.stored_chunks = 2, .full_kv_heads = 2, .window_kv_heads = 4},
               0,
               {1, 2, 4, 8}},
        Layout{"WidthsNotBlocks",
               {.fused = false,
                .experts = Format::kFp8,
                .hidden = 144,
                .intermediate = 200,
                .moe_intermediate = 72},
               0,
               {1}}),
    [](const auto& param) { return std::string(param.param.name); });

// Spec model 3.4 and issue case: the real geometry rules in small. Full layers have 4 KV heads in 4 chunks,
// window layers 8 in 4, and no chunk is a multiple of 128 rows.
TEST(FusedQkv, C69ChunkScalesDifferFromPlainOnes) {
  TempDir dir;
  TinyCheckpoint checkpoint{TinyModel{}};
  EXPECT_EQ(checkpoint.tensors.at("model.layers.0.self_attn.qkv_proj.weight_scale_inv").shape.at(0), 4 * 3);
  EXPECT_EQ(checkpoint.tensors.at("model.layers.1.self_attn.qkv_proj.weight_scale_inv").shape.at(0), 4 * 3);
  checkpoint.write(dir.path());
  const auto source = open_checkpoint(dir.path(), {});
  ASSERT_TRUE(source) << source.error().message;
  const auto layer = (*source)->layer(0, {});
  ASSERT_TRUE(layer);
  // Q of four chunks, then K, then V: no two pieces are neighbours in the file.
  EXPECT_EQ(layer->attention.qkv.segments.size(), 12u);
  EXPECT_EQ(layer->attention.qkv.segments[5].grid_row,
            1 * 384 + 192);  // K of chunk 1 on that chunk's own grid
}

TEST(FusedQkv, OneRankOfFourIsOneRun) {
  TempDir dir;
  TinyCheckpoint(TinyModel{}).write(dir.path());
  const auto source = open_checkpoint(dir.path(), {});
  ASSERT_TRUE(source);
  const auto layer = (*source)->layer(0, {2, 4});
  ASSERT_TRUE(layer);
  EXPECT_EQ(layer->attention.qkv.segments.size(), 1u);  // a whole chunk is already [Q | K | V]
}

TEST(FusedQkv, PlainReexportIsDetectedAndReported) {
  TempDir dir;
  TinyModel model;
  model.stored_chunks = 1;
  TinyCheckpoint(model).write(dir.path());
  const auto source = open_checkpoint(dir.path(), {});
  ASSERT_TRUE(source) << source.error().message;
  ASSERT_EQ((*source)->config().warnings.size(), 1u);
  EXPECT_THAT((*source)->config().warnings[0], HasSubstr("plain"));
}

TEST(FusedQkv, C69WrongChunkCountIsAnError) {
  {
    TempDir dir;
    TinyModel model;
    TinyCheckpoint checkpoint(model);
    checkpoint.config["num_key_value_heads"] = 2;  // rows no longer add up
    checkpoint.write(dir.path());
    EXPECT_THAT(error_of(dir), HasSubstr("qkv_proj"));
  }
  {
    TempDir dir;
    TinyModel model;
    model.stored_chunks = 2;  // 2 * ceil(544 / 128) = 10 scale rows: neither 12 (4 chunks) nor 9 (plain)
    TinyCheckpoint(model).write(dir.path());
    EXPECT_THAT(error_of(dir),
                AllOf(HasSubstr("weight_scale_inv"), HasSubstr("10 rows"), HasSubstr("12"), HasSubstr("9")));
  }
  {
    TempDir dir;
    TinyCheckpoint checkpoint{TinyModel{}};
    checkpoint.index_tp_size = 8;
    checkpoint.write(dir.path(), 2);
    EXPECT_THAT(error_of(dir), AllOf(HasSubstr("tp_size"), HasSubstr("8"), HasSubstr("4")));
  }
}

TEST(FusedQkv, OverrideDecidesWhenNothingElseCan) {
  TempDir dir;
  TinyModel model;
  model.dense = Format::kBF16;
  model.experts = Format::kBF16;
  TinyCheckpoint checkpoint(model);
  checkpoint.write(dir.path());
  auto source = open_checkpoint(dir.path(), {});
  ASSERT_TRUE(source) << source.error().message;
  ASSERT_EQ((*source)->config().warnings.size(), 1u);
  EXPECT_THAT((*source)->config().warnings[0], HasSubstr("chunked or plain"));
  const PlainCheckpoint plain(dir.path());
  testing::expect_layer_matches(**source, plain, 0, {1, 2}, 4);
  OpenOptions options;
  options.qkv_layout = OpenOptions::QkvLayout::kPlain;
  source = open_checkpoint(dir.path(), options);
  ASSERT_TRUE(source);
  testing::expect_layer_matches(**source, plain, 0, {1, 2}, 1);
}

TEST(FusedQkv, OverrideThatContradictsTheFilesIsRefused) {
  TempDir dir;
  TinyCheckpoint(TinyModel{}).write(dir.path());
  OpenOptions options;
  options.qkv_layout = OpenOptions::QkvLayout::kPlain;
  EXPECT_THAT(error_of(dir, options), HasSubstr("weight_scale_inv"));
  TempDir split;
  TinyModel model;
  model.fused = false;
  TinyCheckpoint(model).write(split.path());
  options.qkv_layout = OpenOptions::QkvLayout::kChunked;
  EXPECT_THAT(error_of(split, options), HasSubstr("split"));
}

TEST(Sharding, C77UnsupportedSizesAreRefusedWithTheList) {
  TempDir dir;
  TinyCheckpoint(TinyModel{.mtp_heads = 1}).write(dir.path());
  OpenOptions options;
  options.mtp = true;
  const auto source = open_checkpoint(dir.path(), options);
  ASSERT_TRUE(source) << source.error().message;
  for (const int size : {3, 16, 32}) {
    const auto layer = (*source)->layer(0, {0, size});
    ASSERT_FALSE(layer) << size;
    EXPECT_THAT(layer.error().message, AllOf(HasSubstr(fmt::format("{}", size)), HasSubstr("1, 2, 4, 8")));
    EXPECT_FALSE((*source)->mtp(0, {0, 3}));
  }
  EXPECT_FALSE((*source)->layer(0, {4, 4}));
  EXPECT_FALSE((*source)->layer(0, {-1, 4}));
  EXPECT_FALSE((*source)->layer(0, {0, 0}));
}

// Changes the tensors of a good checkpoint and returns the message of the refusal.
template <class Change>
std::string broken(Change change, const TinyModel& model = {}, int shards = 0) {
  TempDir dir;
  TinyCheckpoint checkpoint(model);
  change(checkpoint);
  checkpoint.write(dir.path(), shards);
  return error_of(dir);
}

TEST(Strict, C65MissingTensorIsNamed) {
  for (const char* name :
       {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
        "model.layers.2.input_layernorm.weight", "model.layers.1.self_attn.attention_sink_bias",
        "model.layers.1.mlp.gate.e_score_correction_bias",
        "model.layers.2.mlp.experts.3.down_proj.weight_scale",
        "model.layers.0.self_attn.qkv_proj.weight_scale_inv"}) {
    EXPECT_THAT(broken([&](TinyCheckpoint& c) { c.tensors.erase(name); }),
                AllOf(HasSubstr(name), HasSubstr("missing")));
  }
}

TEST(Strict, WrongDtypeOrShapeIsNamed) {
  const auto dtype =
      broken([](TinyCheckpoint& c) { c.tensors.at("model.layers.0.mlp.up_proj.weight").dtype = "U8"; });
  EXPECT_THAT(dtype,
              AllOf(HasSubstr("model.layers.0.mlp.up_proj.weight"), HasSubstr("U8"), HasSubstr("F8_E4M3")));
  const auto shape = broken([](TinyCheckpoint& c) {
    c.tensors.at("model.layers.0.mlp.up_proj.weight").shape = {128, 1024};
  });
  EXPECT_THAT(shape, AllOf(HasSubstr("[128, 1024]"), HasSubstr("[1024, 128]")));
  const auto rank = broken([](TinyCheckpoint& c) { c.tensors.at("lm_head.weight").shape = {96 * 128}; });
  EXPECT_THAT(rank, HasSubstr("lm_head.weight"));
}

TEST(Strict, LeftoverTensorsAreErrorsAtMostTenByName) {
  const auto message = broken([](TinyCheckpoint& c) {
    for (int i = 0; i < 15; ++i) {
      c.tensors[fmt::format("model.layers.0.extra.{:02}.weight", i)] = c.tensors.at("model.norm.weight");
    }
  });
  EXPECT_THAT(message, AllOf(HasSubstr("extra.00"), HasSubstr("extra.09"), Not(HasSubstr("extra.10")),
                             HasSubstr("and 5 more")));
  // A sink on a full layer is as unexplained as any other name.
  EXPECT_THAT(broken([](TinyCheckpoint& c) {
                c.tensors["model.layers.0.self_attn.attention_sink_bias"] =
                    c.tensors.at("model.layers.1.self_attn.attention_sink_bias");
              }),
              HasSubstr("model.layers.0.self_attn.attention_sink_bias"));
  EXPECT_THAT(broken([](TinyCheckpoint& c) {
                c.tensors["model.layers.3.input_layernorm.weight"] = c.tensors.at("model.norm.weight");
              }),
              HasSubstr("model.layers.3.input_layernorm.weight"));
}

TEST(Strict, EncodersAndUnaskedHeadsAreSkipped) {
  TempDir dir;
  TinyModel model;
  model.mtp_heads = 2;
  TinyCheckpoint checkpoint(model);
  for (const char* name : {"visual.blocks.0.weight", "audio_encoder.conv.weight",
                           "speech_embeddings.0.weight", "vision_model.x", "audio_projector.weight"}) {
    checkpoint.tensors[name] = checkpoint.tensors.at("model.norm.weight");
  }
  checkpoint.write(dir.path());
  const auto source = open_checkpoint(dir.path(), {});
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ((*source)->mtp_heads(), 0);
  EXPECT_THAT(
      (*source)->skipped(),
      ::testing::ElementsAre("audio_*: 2 tensors, 512 bytes", HasSubstr("model.mtp.*: 32 tensors"),
                             "speech_embeddings.*: 1 tensors, 256 bytes",
                             "vision_model.*: 1 tensors, 256 bytes", "visual.*: 1 tensors, 256 bytes"));
}

TEST(Strict, MtpHeadsMustBeThereWhenAskedFor) {
  OpenOptions options;
  options.mtp = true;
  {
    TempDir dir;
    TinyCheckpoint(TinyModel{}).write(dir.path());
    EXPECT_THAT(error_of(dir, options), HasSubstr("no MTP heads"));
  }
  {
    TempDir dir;
    TinyCheckpoint checkpoint(TinyModel{.mtp_heads = 2});
    checkpoint.tensors.erase("model.mtp.layers.0.eh_proj.weight");
    checkpoint.write(dir.path());
    EXPECT_THAT(error_of(dir, options), HasSubstr("model.mtp.layers.0.eh_proj.weight"));
  }
  {
    TempDir dir;
    TinyCheckpoint checkpoint(TinyModel{.mtp_heads = 2});
    checkpoint.config["num_nextn_predict_layers"] = 3;
    checkpoint.write(dir.path());
    EXPECT_THAT(error_of(dir), AllOf(HasSubstr("num_nextn_predict_layers"), HasSubstr("3"), HasSubstr("2")));
  }
}

TEST(Strict, NanScalesAndVectorsAreRefusedWhenHandedOut) {
  const auto layer_error = [](auto change, int layer) {
    TempDir dir;
    TinyCheckpoint checkpoint{TinyModel{}};
    change(checkpoint);
    checkpoint.write(dir.path());
    const auto source = open_checkpoint(dir.path(), {});
    if (!source) return std::string("did not open: ") + source.error().message;
    const auto weights = (*source)->layer(layer, {});
    return weights ? std::string() : weights.error().message;
  };
  EXPECT_EQ(layer_error([](TinyCheckpoint&) {}, 1), "");
  EXPECT_THAT(layer_error(
                  [](TinyCheckpoint& c) {
                    c.tensors.at("model.layers.1.mlp.experts.2.up_proj.weight_scale").bytes.back() = 255;
                  },
                  1),
              AllOf(HasSubstr("model.layers.1.mlp.experts.2.up_proj.weight_scale"), HasSubstr("255")));
  EXPECT_THAT(layer_error(
                  [](TinyCheckpoint& c) {
                    auto& bytes = c.tensors.at("model.layers.0.mlp.down_proj.weight_scale_inv").bytes;
                    bytes[6] = 0x80;  // +infinity
                    bytes[7] = 0x7F;
                    bytes[4] = bytes[5] = 0;
                  },
                  0),
              AllOf(HasSubstr("model.layers.0.mlp.down_proj.weight_scale_inv[1]"), HasSubstr("inf")));
  EXPECT_THAT(layer_error(
                  [](TinyCheckpoint& c) {
                    auto& bytes = c.tensors.at("model.layers.1.mlp.gate.e_score_correction_bias").bytes;
                    std::fill(bytes.begin(), bytes.begin() + 4, 0xFF);
                  },
                  1),
              AllOf(HasSubstr("e_score_correction_bias[0]"), HasSubstr("nan")));
}

TEST(Shards, C65MissingFileIsNamed) {
  TempDir dir;
  TinyCheckpoint(TinyModel{}).write(dir.path(), 4);
  std::filesystem::remove(dir.file("model_part1.safetensors"));
  std::filesystem::remove(dir.file("model_part3.safetensors"));
  EXPECT_THAT(error_of(dir), AllOf(HasSubstr("model_part1.safetensors"), HasSubstr("model_part3.safetensors"),
                                   Not(HasSubstr("model_part0"))));
}

TEST(Shards, TruncatedFileIsNamed) {
  TempDir dir;
  TinyCheckpoint(TinyModel{}).write(dir.path(), 2);
  const std::string path = dir.file("model_part1.safetensors");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(error_of(dir), AllOf(HasSubstr("model_part1.safetensors"), HasSubstr("truncated")));
  std::filesystem::resize_file(path, 5);
  EXPECT_THAT(error_of(dir), HasSubstr("model_part1.safetensors"));
  std::filesystem::resize_file(path, 0);
  EXPECT_THAT(error_of(dir), HasSubstr("model_part1.safetensors"));
}

TEST(Shards, IndexMustAgreeWithTheFiles) {
  EXPECT_THAT(broken(
                  [](TinyCheckpoint& c) {
                    c.weight_map["model.norm.weight"] = "model_part0.safetensors";
                    c.weight_map["lm_head.weight"] = "model_part0.safetensors";
                  },
                  {}, 5),
              HasSubstr("is not here but in"));
  EXPECT_THAT(
      broken([](TinyCheckpoint& c) { c.weight_map["no.such.tensor"] = "model_part0.safetensors"; }, {}, 2),
      AllOf(HasSubstr("no.such.tensor"), HasSubstr("not in the file")));
  EXPECT_THAT(
      broken([](TinyCheckpoint& c) { c.weight_map["lm_head.weight"] = "model_part9.safetensors"; }, {}, 2),
      HasSubstr("model_part9.safetensors"));
}

TEST(Shards, FileNamesMayNotLeaveTheFolder) {
  for (const char* file : {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..\\x.safetensors",
                           "passwd", "", ".safetensors"}) {
    EXPECT_THAT(broken([&](TinyCheckpoint& c) { c.weight_map["lm_head.weight"] = file; }, {}, 2),
                AllOf(HasSubstr("lm_head.weight"), HasSubstr("same folder")))
        << file;
  }
}

TEST(Shards, TensorOutsideTheIndexIsNamed) {
  TempDir dir;
  TinyCheckpoint checkpoint{TinyModel{}};
  checkpoint.write(dir.path(), 1);
  checkpoint.tensors["stray.weight"] = checkpoint.tensors.at("model.norm.weight");
  testing::write_safetensors(dir.file("model_part0.safetensors"), checkpoint.tensors);
  EXPECT_THAT(error_of(dir), AllOf(HasSubstr("stray.weight"), HasSubstr("not in the index")));
}

TEST(Shards, TensorInTwoFilesIsNamed) {
  TempDir dir;
  TinyCheckpoint checkpoint{TinyModel{}};
  checkpoint.write(dir.path(), 1);
  std::filesystem::rename(dir.file("model_part0.safetensors"), dir.file("a.safetensors"));
  std::filesystem::remove(dir.file("model.safetensors.index.json"));
  testing::write_safetensors(dir.file("b.safetensors"),
                             {{"model.norm.weight", checkpoint.tensors.at("model.norm.weight")}});
  EXPECT_THAT(error_of(dir), AllOf(HasSubstr("model.norm.weight"), HasSubstr("two files")));
}

TEST(Shards, SeveralFilesWithoutAnIndexAreOneCheckpoint) {
  TempDir dir;
  TinyCheckpoint(TinyModel{}).write(dir.path(), 3);
  std::filesystem::remove(dir.file("model.safetensors.index.json"));
  const auto source = open_checkpoint(dir.path(), {});
  ASSERT_TRUE(source) << source.error().message;
  testing::expect_layer_matches(**source, PlainCheckpoint(dir.path()), 1, {}, 4);
}

TEST(Shards, BadIndexFiles) {
  TempDir dir;
  TinyCheckpoint(TinyModel{}).write(dir.path(), 1);
  const std::string index = dir.file("model.safetensors.index.json");
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})",
        R"({"metadata":{"tp_size":0},"weight_map":{"a":"x.safetensors"}})"}) {
    testing::write_text(index, text);
    EXPECT_THAT(error_of(dir), HasSubstr("index.json")) << text;
  }
}

TEST(Open, NoDirectoryNoConfigNoWeights) {
  EXPECT_THAT(open_checkpoint("/nonexistent/dir", {}).error().message, HasSubstr("/nonexistent/dir"));
  TempDir dir;
  EXPECT_THAT(error_of(dir), HasSubstr("config.json"));
  TinyCheckpoint(TinyModel{}).write(dir.path());
  std::filesystem::remove(dir.file("model.safetensors"));
  EXPECT_THAT(error_of(dir), HasSubstr("no .safetensors file"));
}

TEST(Open, MisalignedDataIsRead) {
  TempDir dir;
  const TinyCheckpoint checkpoint{TinyModel{}};
  checkpoint.write(dir.path());
  testing::write_safetensors(dir.file("model.safetensors"), checkpoint.tensors, 3);
  const auto source = open_checkpoint(dir.path(), {});
  ASSERT_TRUE(source) << source.error().message;
  const PlainCheckpoint plain(dir.path());
  testing::expect_globals_match(**source, plain);
  for (int i = 0; i < 3; ++i) {
    testing::expect_layer_matches(**source, plain, i, {1, 2}, 4);
    (*source)->release_layer(i);
    testing::expect_layer_matches(**source, plain, i, {}, 4);
  }
}

TEST(Open, StoredRouterDtypeDecides) {
  TempDir dir;
  TinyCheckpoint checkpoint(TinyModel{.router_f32 = true});
  checkpoint.config["moe_router_dtype"] = "bfloat16";
  checkpoint.write(dir.path());
  const auto source = open_checkpoint(dir.path(), {});
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ((*source)->config().router_format, WeightFormat::kF32);
  EXPECT_EQ((*source)->layer(1, {})->moe->router.format, WeightFormat::kF32);
}

TEST(Open, DflashFolderIsLeftAlone) {
  TempDir dir;
  TinyCheckpoint(TinyModel{}).write(dir.path());
  std::filesystem::create_directory(dir.file("dflash"));
  testing::write_text(dir.file("dflash/model.safetensors"), "not a safetensors file");
  EXPECT_EQ(error_of(dir), "");
}

TEST(Open, ModuleNamedInIgnoredLayersIsBf16) {
  TempDir dir;
  TinyCheckpoint checkpoint{TinyModel{}};
  auto& ignored = checkpoint.config["quantization_config"].as_object()["ignored_layers"].as_array();
  ignored.emplace_back("model.layers.0.mlp.gate_proj");
  checkpoint.tensors.erase("model.layers.0.mlp.gate_proj.weight_scale_inv");
  auto& gate = checkpoint.tensors.at("model.layers.0.mlp.gate_proj.weight");
  gate.dtype = "BF16";
  gate.bytes = TinyCheckpoint(TinyModel{.dense = Format::kBF16, .experts = Format::kBF16})
                   .tensors.at("model.layers.0.mlp.gate_proj.weight")
                   .bytes;
  checkpoint.write(dir.path());
  const auto source = open_checkpoint(dir.path(), {});
  ASSERT_TRUE(source) << source.error().message;
  testing::expect_layer_matches(**source, PlainCheckpoint(dir.path()), 0, {}, 4);
}

}  // namespace
}  // namespace mimo
