#include "bench/sse_reader.h"

namespace mimo {
namespace {

constexpr std::size_t kMaxEvent = 64u << 20;
constexpr std::size_t kShown = 120;

}  // namespace

Status SseReader::feed(std::string_view bytes, const std::function<Status(const SseEvent&)>& event) {
  for (;;) {
    const std::size_t end = bytes.find('\n');
    if (end == std::string_view::npos) {
      partial_ += bytes;
      if (partial_.size() + data_.size() > kMaxEvent)
        return fail(ErrorCode::kLimit, "an event of more than {} bytes", kMaxEvent);
      return {};
    }
    Status taken;
    if (partial_.empty()) {
      taken = line(bytes.substr(0, end), event);
    } else {
      partial_ += bytes.substr(0, end);
      taken = line(partial_, event);
      partial_.clear();
    }
    if (!taken) return taken;
    bytes.remove_prefix(end + 1);
  }
}

Status SseReader::line(std::string_view text, const std::function<Status(const SseEvent&)>& event) {
  if (text.ends_with('\r')) text.remove_suffix(1);
  if (text.empty()) {
    Status taken;
    if (has_data_) taken = event({name_, data_});
    name_.clear();
    data_.clear();
    has_data_ = false;
    return taken;
  }
  if (text.starts_with(':')) return {};
  const std::size_t colon = text.find(':');
  const std::string_view field = text.substr(0, colon);
  std::string_view value = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "data") {
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
    if (data_.size() > kMaxEvent) return fail(ErrorCode::kLimit, "an event of more than {} bytes", kMaxEvent);
  } else if (field == "event") {
    name_ = value;
  } else if (field != "id" && field != "retry") {
    return fail(ErrorCode::kCorrupt, "not a line of an event stream: {}", text.substr(0, kShown));
  }
  return {};
}

Status SseReader::finish() const {
  if (partial_.empty() && !has_data_ && name_.empty()) return {};
  return fail(ErrorCode::kCorrupt, "the event stream ended inside an event");
}

}  // namespace mimo
