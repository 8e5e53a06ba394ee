// A file that lives as long as a test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

namespace mimo::test {

class TempFile {
 public:
  explicit TempFile(std::string_view text) {
    static int count = 0;
    path_ = ::testing::TempDir() + "mimo_eval_" + std::to_string(getpid()) + "_" + std::to_string(count++);
    std::ofstream(path_, std::ios::binary) << text;
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  ~TempFile() { std::remove(path_.c_str()); }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace mimo::test
