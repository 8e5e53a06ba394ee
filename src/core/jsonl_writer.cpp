#include "core/jsonl_writer.h"

#include <cerrno>
#include <cstring>

namespace mimo {

Result<JsonlWriter> JsonlWriter::create(const std::string& path) {
  errno = 0;
  JsonlWriter file(path);
  if (!file.stream_)
    return fail(ErrorCode::kInvalidArgument, "{}: cannot be written: {}", path, std::strerror(errno));
  return file;
}

void JsonlWriter::write(const json::object& line) { stream_ << json::serialize(line) << '\n' << std::flush; }

Status JsonlWriter::close() {
  stream_.close();
  if (!stream_) return fail(ErrorCode::kInternal, "{}: writing failed (disk full?)", path_);
  return {};
}

}  // namespace mimo
