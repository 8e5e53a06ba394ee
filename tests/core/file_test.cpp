#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace mimo {
namespace {

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "mimo_file_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string write(const std::string& name, const std::string& text) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string directory_;
};

TEST_F(FileTest, ReadsWholeFiles) {
  const std::string binary("a\0b\nc\xff", 6);
  const std::string path = write("some", binary);
  EXPECT_TRUE(file_exists(path));
  EXPECT_EQ(read_file(path, 100).value(), binary);
  EXPECT_EQ(read_file(path, 6).value(), binary);
  EXPECT_EQ(read_file(write("empty", ""), 0).value(), "");
}

TEST_F(FileTest, ErrorsNameThePath) {
  const std::string missing = directory_ + "/missing";
  EXPECT_FALSE(file_exists(missing));
  for (const Error& error : {read_file(missing, 10).error(), MappedFile::open(missing).error()}) {
    EXPECT_EQ(error.code, ErrorCode::kNotFound);
    EXPECT_NE(error.message.find(missing), std::string::npos);
  }
  for (const Error& error : {read_file(directory_, 10).error(), MappedFile::open(directory_).error()}) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_NE(error.message.find("not a regular file"), std::string::npos) << error.message;
  }
  const std::string path = write("large", std::string(1000, 'x'));
  const Result<std::string> large = read_file(path, 999);
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, ErrorCode::kLimit);
  EXPECT_NE(large.error().message.find("1000 bytes, at most 999"), std::string::npos)
      << large.error().message;
}

// Opening a FIFO that nobody writes to would hang for ever.
TEST_F(FileTest, FifoIsRefusedWithoutWaiting) {
  const std::string path = directory_ + "/fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  // A reader that waits is ended by the alarm instead of hanging the suite.
  ::alarm(20);
  const Result<std::string> text = read_file(path, 10);
  const Result<MappedFile> mapped = MappedFile::open(path);
  ::alarm(0);
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
  ASSERT_FALSE(mapped);
}

TEST_F(FileTest, MapsReleasesAndMoves) {
  std::string text(3 * 4096 + 100, 'a');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31);
  const std::string path = write("mapped", text);
  Result<MappedFile> opened = MappedFile::open(path);
  ASSERT_TRUE(opened);
  MappedFile file = std::move(*opened);
  EXPECT_EQ(file.path(), path);
  ASSERT_EQ(file.bytes().size(), text.size());
  EXPECT_EQ(std::memcmp(file.bytes().data(), text.data(), text.size()), 0);
  // Released and prefetched ranges, also odd and overlong ones, read the same afterwards.
  for (const auto& [offset, length] : {std::pair<std::size_t, std::size_t>{0, text.size()},
                                       {1, 4096},
                                       {5000, 3},
                                       {0, 0},
                                       {12288, 1u << 20}}) {
    file.release(offset, length);
    file.prefetch(offset, length);
    ASSERT_EQ(std::memcmp(file.bytes().data(), text.data(), text.size()), 0) << offset << " " << length;
  }
  MappedFile other = std::move(file);
  EXPECT_EQ(other.bytes().size(), text.size());
  EXPECT_TRUE(file.bytes().empty());  // NOLINT(bugprone-use-after-move)
  Result<MappedFile> empty = MappedFile::open(write("empty", ""));
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->bytes().empty());
  empty->release(0, 10);
  empty->prefetch(0, 10);
}

}  // namespace
}  // namespace mimo
