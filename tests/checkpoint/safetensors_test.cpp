// Hand-made files with every header field wrong in turn: each is a clear error with the file's (and tensor's)
// name.
#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "support/checkpoint_writer.h"

namespace mimo {
namespace {

using ::testing::HasSubstr;

std::vector<std::uint8_t> file_of(std::uint64_t length, const std::string& header, std::size_t data) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(length >> (8 * i));
  text += header + std::string(data, '\0');
  return {text.begin(), text.end()};
}

std::vector<std::uint8_t> file_of(const std::string& header, std::size_t data) {
  return file_of(header.size(), header, data);
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

TEST(Safetensors, GoodFile) {
  const auto header = parse_safetensors(
      file_of(
          R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
          R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"s":{"dtype":"F32","shape":[],"data_offsets":[16,20]},)"
          R"("e":{"dtype":"F32","shape":[0,7],"data_offsets":[20,20]}}   )",
          20),
      "f");
  ASSERT_TRUE(header) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 4u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[1].name, "b");
  EXPECT_EQ(header->tensors[1].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(header->tensors[1].dtype, DType::kBF16);
  EXPECT_EQ(header->tensors[1].bytes, 12u);
  EXPECT_EQ(header->tensors[1].offset - header->tensors[0].offset, 4u);
  EXPECT_EQ(header->hole_bytes, 0u);
  EXPECT_EQ(header->metadata.front().second, "pt");
}

TEST(Safetensors, HolesAreCounted) {
  const auto header = parse_safetensors(file_of(entry("U8", "[4]", "[3,7]"), 9), "f");
  ASSERT_TRUE(header);
  EXPECT_EQ(header->hole_bytes, 5u);
}

struct Bad {
  const char* name;
  std::vector<std::uint8_t> bytes;
  const char* mentions;
};

class BadFile : public ::testing::TestWithParam<Bad> {};

TEST_P(BadFile, C66IsRefusedByName) {
  const auto header = parse_safetensors(GetParam().bytes, "dir/part3.safetensors");
  ASSERT_FALSE(header);
  EXPECT_THAT(header.error().message, HasSubstr("dir/part3.safetensors"));
  EXPECT_THAT(header.error().message, HasSubstr(GetParam().mentions));
}

std::vector<Bad> bad_files() {
  const std::string good = entry("U8", "[4]", "[0,4]");
  const auto with = [](const char* dtype, const char* shape, const char* offsets, std::size_t data = 8) {
    return file_of(entry(dtype, shape, offsets), data);
  };
  std::vector<Bad> bad = {
      {"Empty", {}, "too few"},
      {"SevenBytes", std::vector<std::uint8_t>(7), "too few"},
      {"LengthZero", file_of(0, good, 4), "JSON"},
      {"LengthSeven", file_of(7, good, 4), "JSON"},
      {"LengthHalf", file_of(good.size() / 2, good, 4), "JSON"},
      {"LengthPastEnd", file_of(good.size() + 5, good, 4), "truncated"},
      {"LengthOverCap", file_of(100'000'001, good, 4), "limit"},
      {"Length2To63", file_of(1ull << 63, good, 4), "limit"},
      {"LengthAllOnes", file_of(~0ull, good, 4), "limit"},
      {"LengthWraps", file_of(~0ull - 7, good, 4), "limit"},
      {"HeaderIsArray", file_of("[1,2]", 4), "object"},
      {"HeaderIsNumber", file_of("12345678", 4), "object"},
      {"HeaderIsText", file_of("\"abcdefgh\"", 4), "object"},
      {"HeaderGarbage", file_of("\xff\xfe{}", 4), "JSON"},
      {"HeaderTrailing", file_of(good + "x", 4), "JSON"},
      {"HeaderDeep", file_of("{\"w\":[[[[[[[[]]]]]]]]}", 4), "JSON"},
      {"DuplicateTensor",
       file_of(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
               4),
       "duplicate key \"w\""},
      {"DuplicateField", file_of(R"({"w":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})", 4),
       "duplicate key \"dtype\""},
      {"EntryNotObject", file_of(R"({"w":[0,4]})", 4), "\"w\""},
      {"EntryExtraKey", file_of(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}})", 4),
       "\"x\""},
      {"NoDtype", file_of(R"({"w":{"shape":[4],"data_offsets":[0,4]}})", 4), "dtype"},
      {"NoShape", file_of(R"({"w":{"dtype":"U8","data_offsets":[0,4]}})", 4), "shape"},
      {"NoOffsets", file_of(R"({"w":{"dtype":"U8","shape":[4]}})", 4), "data_offsets"},
      {"UnknownDtype", with("F7", "[4]", "[0,4]"), "F7"},
      {"DtypeNotText", file_of(R"({"w":{"dtype":3,"shape":[4],"data_offsets":[0,4]}})", 4), "dtype"},
      {"ShapeNegative", with("U8", "[-4]", "[0,4]"), "-4"},
      {"ShapeFraction", with("U8", "[4.0]", "[0,4]"), "integer"},
      {"ShapeText", with("U8", "[\"4\"]", "[0,4]"), "integer"},
      {"ShapeOverflows", with("U8", "[4294967296,4294967296]", "[0,4]"), "overflows"},
      {"ShapeOverflowsByType", with("F64", "[2305843009213693952]", "[0,8]"), "overflows"},
      {"ShapeDimAbove2To63", with("U8", "[18446744073709551615]", "[0,4]"), "overflows"},
      {"ShapeOverflowHiddenByZero", with("U8", "[0,18446744073709551615]", "[0,0]"), "overflows"},
      {"ShapeManyDims", with("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), "dimensions"},
      {"OffsetsEmpty", with("U8", "[4]", "[]"), "pair"},
      {"OffsetsOne", with("U8", "[4]", "[4]"), "pair"},
      {"OffsetsThree", with("U8", "[4]", "[0,4,8]"), "pair"},
      {"OffsetsNumber", with("U8", "[4]", "4"), "pair"},
      {"OffsetsReversed", with("U8", "[4]", "[8,4]"), "reversed"},
      {"OffsetsNegative", with("U8", "[4]", "[-1,3]"), "integers"},
      {"OffsetsHuge", with("U8", "[4]", "[0,18446744073709551615]"), "end after"},
      {"OffsetsBothHuge", with("U8", "[4]", "[18446744073709551611,18446744073709551615]"), "end after"},
      {"OffsetsFraction", with("U8", "[4]", "[0,4.5]"), "integers"},
      {"OffsetsPastEnd", with("U8", "[16]", "[0,16]"), "truncated"},
      {"OffsetsTooLong", with("U8", "[4]", "[0,5]"), "needs 4"},
      {"OffsetsTooShort", with("BF16", "[4]", "[0,4]"), "needs 8"},
      {"OddBytesForF32", with("F32", "[1]", "[0,3]"), "needs 4"},
      {"ZeroElementsWithBytes", with("F32", "[0]", "[0,4]"), "needs 0"},
      {"Overlap",
       file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
               8),
       "overlap"},
      {"SameRange",
       file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
               R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
               4),
       "overlap"},
      {"MetadataArray", file_of(R"({"__metadata__":[]})", 0), "__metadata__"},
      {"MetadataNumber", file_of(R"({"__metadata__":{"a":1}})", 0), "__metadata__"},
  };
  return bad;
}

INSTANTIATE_TEST_SUITE_P(Corpus, BadFile, ::testing::ValuesIn(bad_files()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(Safetensors, HeaderOf80000TensorsParsesInHalfASecond) {
  std::string header = "{";
  for (int i = 0; i < 80'000; ++i) {
    header += (i == 0 ? "\"" : ",\"") + std::string("model.layers.12.mlp.experts.") + std::to_string(i) +
              R"(.gate_proj.weight_scale":{"dtype":"U8","shape":[2,2],"data_offsets":[)" +
              std::to_string(4 * i) + "," + std::to_string(4 * i + 4) + "]}";
  }
  header += "}";
  const auto file = file_of(header, 320'000);
  const auto start = std::chrono::steady_clock::now();
  const auto parsed = parse_safetensors(file, "big");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->tensors.size(), 80'000u);
  RecordProperty("seconds", std::to_string(seconds));
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(seconds, 0.5);
#endif
}

}  // namespace
}  // namespace mimo
