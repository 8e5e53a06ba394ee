// mask_embedding.pt: what torch.save writes in the wild, and bytes that mean harm.

#include "checkpoint/mask_embedding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "support/golden.h"
#include "support/tiny_drafter.h"

namespace mimo {
namespace {

using namespace mimo::testing;

constexpr int kId = 151675;

std::vector<float> values(int count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = 0.5f * static_cast<float>(i) - 3.0f;
  return out;
}
std::string f32_bytes(const std::vector<float>& x) {
  return {reinterpret_cast<const char*>(x.data()), x.size() * sizeof(float)};
}

std::string refused(const std::vector<std::uint8_t>& bytes, int id = kId, int hidden = 8) {
  const Result<std::vector<float>> read = parse_mask_embedding(bytes, "mask.pt", id, hidden);
  if (read) return "";
  EXPECT_NE(read.error().message.find("mask.pt"), std::string::npos) << read.error().message;
  return read.error().message;
}
void expect_refused(const std::vector<std::uint8_t>& bytes, const std::string& words, int id = kId) {
  const std::string message = refused(bytes, id);
  EXPECT_NE(message.find(words), std::string::npos) << "\"" << message << "\" should say \"" << words << "\"";
}

// A file of torch 2.11 itself.
TEST(MaskEmbedding, ReadsTheGoldenFile) {
  const std::string directory = golden_directory("v26_tiny") + "/dflash";
  const Result<std::vector<float>> read = load_mask_embedding(directory, 1023, 256);
  ASSERT_TRUE(read) << read.error().message;
  double energy = 0;
  for (const float value : *read) energy += static_cast<double>(value) * value;
  EXPECT_GT(std::sqrt(energy), 0.5);  // trap 1
  EXPECT_FALSE(load_mask_embedding(directory, 1022, 256));
  EXPECT_FALSE(load_mask_embedding(directory, 1023, 128));
}

TEST(MaskEmbedding, DictBareTensorAndFp32) {
  const std::vector<float> x = values(8);
  EXPECT_EQ(*parse_mask_embedding(mask_file(kId, x), "mask.pt", kId, 8), x);
  for (const bool row : {false, true}) {
    const std::vector<int> shape = row ? std::vector<int>{1, 8} : std::vector<int>{8};
    const auto bare = torch_archive(
        {{"archive/data.pkl", mask_pickle(-1, "FloatStorage", shape)}, {"archive/data/0", f32_bytes(x)}});
    const Result<std::vector<float>> read = parse_mask_embedding(bare, "mask.pt", kId, 8);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, x);
  }
}

TEST(MaskEmbedding, RefusesByName) {
  const std::vector<float> x = values(8);
  const std::vector<std::uint8_t> good = mask_file(kId, x);
  expect_refused(good, "mask_token_id is 151675, config.json says 7", 7);
  expect_refused(mask_file(kId, values(9)), "shape [9], expected [8]");
  expect_refused(mask_file(kId, std::vector<float>(8, 0.0f)), "all zeros");
  expect_refused(mask_file(kId, {1, 2, NAN, 4, 5, 6, 7, 8}), "not finite");
  expect_refused({}, "not a torch.save archive");
  expect_refused({'h', 'e', 'l', 'l', 'o'}, "not a torch.save archive");

  const std::string pickle = mask_pickle(kId, "FloatStorage", {8});
  expect_refused(torch_archive({{"a/data.pkl", pickle}}), "no entry */data/0");
  expect_refused(torch_archive({{"a/data/0", f32_bytes(x)}}), "no entry */data.pkl");
  expect_refused(torch_archive({{"a/data.pkl", pickle}, {"a/data/0", f32_bytes(values(7))}}),
                 "28 stored bytes from element 0, expected 32");
  expect_refused(torch_archive({{"a/data.pkl", pickle}, {"a/data/0", f32_bytes(x)}, {"a/byteorder", "big"}}),
                 "byte order");
  expect_refused(
      torch_archive({{"a/data.pkl", mask_pickle(kId, "HalfStorage", {8})}, {"a/data/0", f32_bytes(x)}}),
      "torch.HalfStorage");
  // A pickle that would run something when loaded the usual way.
  expect_refused(
      torch_archive({{"a/data.pkl", std::string("\x80\x02", 2) + "cposix\nsystem\n(X\x02\0\0\0lstR."},
                     {"a/data/0", f32_bytes(x)}}),
      "posix.system");
  expect_refused(
      torch_archive({{"a/data.pkl", pickle.substr(0, pickle.size() - 1)}, {"a/data/0", f32_bytes(x)}}),
      "ends in the middle");
  expect_refused(torch_archive({{"a/data.pkl", "."}, {"a/data/0", f32_bytes(x)}}), "0 tensors");
  std::string endless = std::string(10000, ')');
  expect_refused(torch_archive({{"a/data.pkl", endless}, {"a/data/0", f32_bytes(x)}}), "too long");
}

TEST(MaskEmbedding, RefusesCompressedEntries) {
  std::vector<std::uint8_t> bytes = mask_file(kId, values(8));
  // Method of every central directory entry: deflate.
  for (std::size_t i = 0; i + 12 < bytes.size(); ++i) {
    if (std::memcmp(bytes.data() + i, "PK\1\2", 4) == 0) bytes[i + 10] = 8;
  }
  expect_refused(bytes, "compressed or damaged");
}

// Any single byte changed or the file cut anywhere: a vector of the right size or an error, never a crash.
TEST(MaskEmbedding, DamagedBytes) {
  const std::vector<std::uint8_t> good = mask_file(kId, values(8));
  std::mt19937_64 random(1);
  int refusals = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int turn = 0; turn < 8; ++turn) {
      std::vector<std::uint8_t> bad = good;
      bad[i] = static_cast<std::uint8_t>(turn == 0 ? 0xFF : turn == 1 ? 0 : random());
      const Result<std::vector<float>> read = parse_mask_embedding(bad, "mask.pt", kId, 8);
      if (read) {
        EXPECT_EQ(read->size(), 8u);
      } else {
        ++refusals;
      }
    }
    const std::vector<std::uint8_t> cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_NE(refused(cut), "") << i;
  }
  EXPECT_GT(refusals, 100);
}

TEST(MaskEmbedding, MissingFileSaysWhatItIsFor) {
  const Result<std::vector<float>> read = load_mask_embedding("/nonexistent/dflash", kId, 8);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kNotFound);
  EXPECT_NE(read.error().message.find("/nonexistent/dflash/mask_embedding.pt"), std::string::npos);
}

}  // namespace
}  // namespace mimo
