// A directory with the headers of all 72,574 tensors of the V2.6-Flash text trunk in 65 files (data: holes
// that take no disk): opening must not take longer than a second.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "checkpoint/tensor_table.h"
#include "checkpoint/weight_source.h"
#include "core/file.h"
#include "support/checkpoint_writer.h"

namespace mimo {
namespace {

using testing::TempDir;

// Which file a tensor of the released layout is in: experts in groups of four, everything else in file 0.
std::size_t file_of(const std::string& name) {
  const std::size_t at = name.find(".experts.");
  return at == std::string::npos ? 0 : static_cast<std::size_t>(std::stoi(name.substr(at + 9))) / 4;
}

TEST(OpenSpeed, V26FlashHeaders) {
  const std::string fixture = std::string(MIMO_SOURCE_DIR) + "/tests/checkpoint/data/configs/v2_6_flash.json";
  const auto text = read_file(fixture, 1 << 20);
  ASSERT_TRUE(text);
  const auto config = parse_config(*text, fixture);
  ASSERT_TRUE(config);
  const QkvLayout layout{true, 4};
  std::vector<std::vector<ExpectedTensor>> files(65);
  std::size_t count = 0;
  const auto add = [&](std::vector<ExpectedTensor> tensors) {
    count += tensors.size();
    for (ExpectedTensor& tensor : tensors) files[file_of(tensor.name)].push_back(std::move(tensor));
  };
  add(global_tensors(*config));
  for (int i = 0; i < config->layers; ++i) add(layer_tensors(*config, layout, i));
  EXPECT_EQ(count, 72'574u);  // spec model 3.1
  for (int k = 0; k < 3; ++k) {
    for (ExpectedTensor& tensor : mtp_tensors(*config, layout, k)) files[64].push_back(std::move(tensor));
  }
  EXPECT_EQ(files[64].size(), 3u * 16u);

  TempDir dir;
  testing::write_text(dir.file("config.json"), *text);
  std::string index = R"({"metadata":{"tp_size":4},"weight_map":{)";
  for (std::size_t f = 0; f < files.size(); ++f) {
    const std::string name =
        f == 64 ? "model_mtp.safetensors" : fmt::format("model_pp0_ep{}_shard0.safetensors", f);
    std::string header = "{";
    std::uint64_t offset = 0;
    for (const ExpectedTensor& tensor : files[f]) {
      header += fmt::format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                            header.size() > 1 ? "," : "", tensor.name, dtype_name(tensor.dtype),
                            fmt::join(tensor.shape(), ","), offset, offset + tensor.bytes());
      index += fmt::format("{}\"{}\":\"{}\"", index.back() == '{' ? "" : ",", tensor.name, name);
      offset += tensor.bytes();
    }
    header += "}";
    while (header.size() % 8 != 0) header += ' ';
    std::string start(8, '\0');
    const std::uint64_t length = header.size();
    std::memcpy(start.data(), &length, 8);
    testing::write_text(dir.file(name), start + header);
    std::error_code ec;
    std::filesystem::resize_file(dir.file(name), 8 + length + offset, ec);
    if (ec) GTEST_SKIP() << "no sparse files of " << offset << " bytes here: " << ec.message();
  }
  testing::write_text(dir.file("model.safetensors.index.json"), index + "}}");

  OpenOptions options;
  options.mtp = true;
  const auto start = std::chrono::steady_clock::now();
  const auto source = open_checkpoint(dir.path(), options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ((*source)->mtp_heads(), 3);
  const auto layer_start = std::chrono::steady_clock::now();
  ASSERT_TRUE((*source)->layer(5, {1, 2}));
  const double layer_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - layer_start).count();
  (*source)->release_layer(5);
  std::printf("[ open     ] %.3f s, one MoE layer handed out in %.3f s\n", seconds, layer_seconds);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(seconds, 1.0);
#endif
}

}  // namespace
}  // namespace mimo
