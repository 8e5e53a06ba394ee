#include "eval/result_file.h"

#include <cerrno>
#include <cstring>

namespace mimo {

Result<ResultFile> ResultFile::create(const std::string& path) {
  errno = 0;
  ResultFile file(path);
  if (!file.stream_)
    return fail(ErrorCode::kInvalidArgument, "{}: cannot be written: {}", path, std::strerror(errno));
  return file;
}

void ResultFile::write(const json::object& line) { stream_ << json::serialize(line) << '\n' << std::flush; }

Status ResultFile::close() {
  stream_.close();
  if (!stream_) return fail(ErrorCode::kInternal, "{}: writing failed (disk full?)", path_);
  return {};
}

}  // namespace mimo
