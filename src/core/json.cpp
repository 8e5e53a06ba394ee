#include "core/json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/file.h"

namespace mimo {
namespace {

// Builds a json::value from parser events. Boost's own parser keeps the last of two equal keys silently; here
// a repeated key is an error, since in a file from outside it means that two readers would see two different
// files.
class ValueBuilder {
 public:
  static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_key_size = static_cast<std::size_t>(-1);

  bool on_document_begin(json::error_code& /*ec*/) { return true; }
  bool on_document_end(json::error_code& /*ec*/) { return true; }
  bool on_object_begin(json::error_code& /*ec*/) {
    frames_.push_back({json::object(), {}});
    return true;
  }
  bool on_object_end(std::size_t /*n*/, json::error_code& /*ec*/) { return close(); }
  bool on_array_begin(json::error_code& /*ec*/) {
    frames_.push_back({json::array(), {}});
    return true;
  }
  bool on_array_end(std::size_t /*n*/, json::error_code& /*ec*/) { return close(); }
  bool on_key_part(json::string_view part, std::size_t /*n*/, json::error_code& /*ec*/) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, std::size_t /*n*/, json::error_code& ec) {
    text_.append(part.data(), part.size());
    Frame& frame = frames_.back();
    if (frame.value.as_object().contains(text_)) {
      problem_ = fmt::format("duplicate key \"{}\"", text_);
      ec = json::error::syntax;
      return false;
    }
    frame.key = std::exchange(text_, {});
    return true;
  }
  bool on_string_part(json::string_view part, std::size_t /*n*/, json::error_code& /*ec*/) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool on_string(json::string_view part, std::size_t /*n*/, json::error_code& /*ec*/) {
    text_.append(part.data(), part.size());
    add(json::value(json::string(text_)));
    text_.clear();
    return true;
  }
  bool on_number_part(json::string_view /*part*/, json::error_code& /*ec*/) { return true; }
  bool on_int64(std::int64_t number, json::string_view /*part*/, json::error_code& /*ec*/) {
    add(json::value(number));
    return true;
  }
  bool on_uint64(std::uint64_t number, json::string_view /*part*/, json::error_code& /*ec*/) {
    add(json::value(number));
    return true;
  }
  bool on_double(double number, json::string_view part, json::error_code& ec) {
    if (!std::isfinite(number)) {
      problem_ = fmt::format("number out of range: {}", std::string_view(part.data(), part.size()));
      ec = json::error::not_number;
      return false;
    }
    add(json::value(number));
    return true;
  }
  bool on_bool(bool value, json::error_code& /*ec*/) {
    add(json::value(value));
    return true;
  }
  bool on_null(json::error_code& /*ec*/) {
    add(json::value(nullptr));
    return true;
  }
  bool on_comment_part(json::string_view /*part*/, json::error_code& /*ec*/) { return true; }
  bool on_comment(json::string_view /*part*/, json::error_code& /*ec*/) { return true; }

  json::value take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }

 private:
  struct Frame {
    json::value value;
    std::string key;
  };

  void add(json::value&& value) {
    if (frames_.empty()) {
      root_ = std::move(value);
      return;
    }
    Frame& frame = frames_.back();
    if (json::object* object = frame.value.if_object()) {
      object->emplace(frame.key, std::move(value));
    } else {
      frame.value.as_array().emplace_back(std::move(value));
    }
  }
  bool close() {
    json::value done = std::move(frames_.back().value);
    frames_.pop_back();
    add(std::move(done));
    return true;
  }

  std::vector<Frame> frames_;
  std::string text_;
  json::value root_;
  std::string problem_;
};

// "line L, column C" of a byte offset.
std::string position(std::string_view text, std::size_t offset) {
  offset = std::min(offset, text.size());
  std::size_t line = 1;
  std::size_t line_start = 0;
  for (std::size_t i = 0; i < offset; ++i) {
    if (text[i] == '\n') {
      ++line;
      line_start = i + 1;
    }
  }
  return fmt::format("line {}, column {}", line, offset - line_start + 1);
}

}  // namespace

Result<json::value> parse_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return fail(ErrorCode::kLimit, "{}: JSON of {} bytes, at most {} are allowed", what, text.size(),
                limits.max_bytes);
  }
  json::parse_options options;
  options.max_depth = limits.max_depth;
  options.allow_comments = limits.allow_comments_and_commas;
  options.allow_trailing_commas = limits.allow_comments_and_commas;
  json::basic_parser<ValueBuilder> parser(options);
  json::error_code ec;
  const std::size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (!ec && text.find_first_not_of(" \t\r\n", used) != std::string_view::npos) ec = json::error::extra_data;
  if (ec) {
    const std::string& problem = parser.handler().problem();
    return fail(ErrorCode::kCorrupt, "{}: invalid JSON at {}: {}", what, position(text, used),
                problem.empty() ? ec.message() : problem);
  }
  return parser.handler().take();
}

Result<json::value> parse_json_file(const std::string& path, const JsonLimits& limits) {
  const Result<std::string> text = read_file(path, limits.max_bytes);
  if (!text) return forward_error(text);
  return parse_json(*text, path, limits);
}

}  // namespace mimo
