// A page of all layers of a kind as one run of bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "model/target.h"
#include "ops/reference/reference_ops.h"

namespace mimo {
namespace {

TEST(ModelKvPages, AllLayersOfAKindAndNoOther) {
  ModelConfig config;
  config.layers = 5;
  config.layer_kinds = {LayerKind::kFull, LayerKind::kWindow, LayerKind::kWindow, LayerKind::kFull,
                        LayerKind::kWindow};
  config.full.kv_heads = 1;
  config.full.qk_dim = 24;
  config.full.v_dim = 16;
  config.window.kv_heads = 2;
  config.window.qk_dim = 24;
  config.window.v_dim = 16;
  const std::unique_ptr<Ops> ops = make_reference_ops();
  ModelKv kv = std::move(*ModelKv::make(*ops, config, {.page_size = 4, .full_pages = 3, .window_pages = 6}));
  const std::size_t full = kv.page_bytes(config, LayerKind::kFull);
  const std::size_t window = kv.page_bytes(config, LayerKind::kWindow);
  EXPECT_EQ(full, 2 * kv.layer(0).page_bytes());
  EXPECT_EQ(window, 3 * kv.layer(1).page_bytes());
  EXPECT_EQ(3 * full + 6 * window, kv.bytes());

  const auto pattern = [](std::size_t size, unsigned seed) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 13 + i / 251 + seed);
    return bytes;
  };
  for (std::int32_t p = 0; p < 3; ++p) {
    kv.write_page(config, LayerKind::kFull, p, pattern(full, static_cast<unsigned>(p)));
  }
  for (std::int32_t p = 0; p < 6; ++p) {
    kv.write_page(config, LayerKind::kWindow, p, pattern(window, 50 + static_cast<unsigned>(p)));
  }
  kv.poison(config, LayerKind::kWindow, 4);
  std::vector<std::byte> bytes(full);
  for (std::int32_t p = 0; p < 3; ++p) {
    kv.read_page(config, LayerKind::kFull, p, bytes);
    EXPECT_EQ(bytes, pattern(full, static_cast<unsigned>(p)));
  }
  bytes.resize(window);
  for (std::int32_t p = 0; p < 6; ++p) {
    kv.read_page(config, LayerKind::kWindow, p, bytes);
    EXPECT_EQ(bytes == pattern(window, 50 + static_cast<unsigned>(p)), p != 4) << p;
  }
  // Every layer has its own part.
  kv.read_page(config, LayerKind::kWindow, 1, bytes);
  std::vector<std::byte> layer(kv.layer(2).page_bytes());
  kv.layer(2).read_page(1, layer);
  EXPECT_TRUE(
      std::equal(layer.begin(), layer.end(), bytes.begin() + static_cast<std::ptrdiff_t>(layer.size())));
}

}  // namespace
}  // namespace mimo
