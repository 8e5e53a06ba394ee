#include "core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace mimo {
namespace {

constexpr std::size_t kPageBytes = 4096;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// Files are opened with O_NONBLOCK, which regular files ignore: without it opening a FIFO waits for a writer.

// Size of the open regular file, or the error.
Result<std::size_t> regular_size(const FileDescriptor& file, const std::string& path) {
  if (file.get() < 0) {
    return fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kInvalidArgument, "{}: cannot open: {}",
                path, std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) {
    return fail(ErrorCode::kInternal, "{}: cannot stat: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return fail(ErrorCode::kInvalidArgument, "{}: not a regular file", path);
  return static_cast<std::size_t>(info.st_size);
}

}  // namespace

bool file_exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

Result<std::string> read_file(const std::string& path, std::size_t max_bytes) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const Result<std::size_t> size = regular_size(file, path);
  if (!size) return forward_error(size);
  if (*size > max_bytes) {
    return fail(ErrorCode::kLimit, "{}: {} bytes, at most {} are allowed", path, *size, max_bytes);
  }
  std::string text(*size, '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::read(file.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(ErrorCode::kInternal, "{}: read failed: {}", path, std::strerror(errno));
    if (n == 0) return fail(ErrorCode::kCorrupt, "{}: ended after {} of {} bytes", path, done, text.size());
    done += static_cast<std::size_t>(n);
  }
  return text;
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const Result<std::size_t> size = regular_size(file, path);
  if (!size) return forward_error(size);
  MappedFile mapped;
  mapped.path_ = path;
  mapped.size_ = *size;
  if (*size > 0) {
    void* data = ::mmap(nullptr, *size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (data == MAP_FAILED) {
      return fail(ErrorCode::kInternal, "{}: cannot map {} bytes: {}", path, *size, std::strerror(errno));
    }
    mapped.data_ = static_cast<const std::uint8_t*>(data);
  }
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  // munmap takes a non-const pointer though the mapping is read-only.
  if (data_ != nullptr) ::munmap(const_cast<std::uint8_t*>(data_), size_);
}

void MappedFile::release(std::size_t offset, std::size_t length) const {
  const std::size_t begin = (offset + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::size_t end = std::min(offset + length, size_) / kPageBytes * kPageBytes;
  if (end > begin) ::madvise(const_cast<std::uint8_t*>(data_) + begin, end - begin, MADV_DONTNEED);
}

void MappedFile::prefetch(std::size_t offset, std::size_t length) const {
  const std::size_t begin = offset / kPageBytes * kPageBytes;
  const std::size_t end = std::min(offset + length, size_);
  if (end > begin) ::madvise(const_cast<std::uint8_t*>(data_) + begin, end - begin, MADV_WILLNEED);
}

}  // namespace mimo
