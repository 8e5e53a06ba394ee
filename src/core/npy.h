// Writes NumPy's .npy format (version 1.0, little-endian fp32, C order) row by row.
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>

#include "core/result.h"

namespace mimo {

class NpyWriter {
 public:
  // Creates the file with shape [rows, columns]; all rows must then be written.
  static Result<NpyWriter> create(const std::string& path, std::int64_t rows, std::int64_t columns);

  void write(std::span<const float> values);

  // Flushes; an error if a write failed or the count of values is not rows * columns.
  Status close();

 private:
  NpyWriter() = default;

  std::string path_;
  std::ofstream file_;
  std::int64_t expected_ = 0;
  std::int64_t written_ = 0;
};

}  // namespace mimo
