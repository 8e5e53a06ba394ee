// The two committed golden checkpoints open, and every view holds the values that a plain reader computes.
#include <gtest/gtest.h>

#include "checkpoint/weight_source.h"
#include "support/checkpoint_match.h"

namespace mimo {
namespace {

using testing::PlainCheckpoint;

void expect_golden(const std::string& name, const std::vector<int>& sizes, int chunks) {
  const std::string directory = std::string(MIMO_SOURCE_DIR) + "/tests/golden/" + name;
  const auto source = open_checkpoint(directory, {});
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_TRUE((*source)->config().warnings.empty()) << (*source)->config().warnings.front();
  const PlainCheckpoint plain(directory);
  std::uint64_t bytes = 0;
  for (const auto& [key, tensor] : plain.tensors()) bytes += tensor.bytes.size();
  EXPECT_EQ((*source)->total_bytes(), bytes);
  testing::expect_globals_match(**source, plain);
  for (int layer = 0; layer < (*source)->config().layers; ++layer) {
    for (const int size : sizes) {
      for (int rank = 0; rank < size; ++rank) {
        testing::expect_layer_matches(**source, plain, layer, {rank, size}, chunks);
      }
    }
    (*source)->release_layer(layer);
    testing::expect_layer_matches(**source, plain, layer, {}, chunks);  // pages come back
  }
  (*source)->release_globals();
}

TEST(Golden, V26TinyMatchesPlainReader) { expect_golden("v26_tiny", {1, 2, 4}, 2); }

TEST(Golden, V2FlashTinyMatchesPlainReader) { expect_golden("v2flash_tiny", {1, 2, 8}, 1); }

TEST(Golden, V2FlashTinyConfigIsReadFromTransformersNames) {
  const auto config = load_config(std::string(MIMO_SOURCE_DIR) + "/tests/golden/v2flash_tiny");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->full.kv_heads, 1);
  EXPECT_EQ(config->window.kv_heads, 2);
  EXPECT_EQ(config->full.rotary_dims, 64);
  EXPECT_EQ(config->full.rope_theta, 5e6f);
  EXPECT_EQ(config->window.rope_theta, 1e4f);
  EXPECT_EQ(config->window.window, 128);
  EXPECT_TRUE(config->window.sink);
  EXPECT_FALSE(config->full.sink);
  EXPECT_EQ(config->norm_eps, 1e-5f);
  EXPECT_EQ(config->layer_is_moe, (std::vector<bool>{false, true, true, true, false, true}));
}

}  // namespace
}  // namespace mimo
