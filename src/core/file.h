// Whole-file reading and read-only memory maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/result.h"

namespace mimo {

// The file's bytes; an error naming the path when it is missing, not a regular file, unreadable, or larger
// than `max_bytes`.
Result<std::string> read_file(const std::string& path, std::size_t max_bytes);

bool file_exists(const std::string& path);

// Read-only private mapping of a regular file. Move-only; unmapped by the destructor.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Drops the pages of [offset, offset + length) from this process (they stay in the page cache), so that
  // weights that were repacked do not count twice. Partial pages at the ends are kept.
  void release(std::size_t offset, std::size_t length) const;

  // Asks the kernel to read the range ahead.
  void prefetch(std::size_t offset, std::size_t length) const;

 private:
  MappedFile() = default;

  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  std::string path_;
};

}  // namespace mimo
