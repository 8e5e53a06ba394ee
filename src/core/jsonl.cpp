#include "core/jsonl.h"

#include "core/file.h"

namespace mimo {
namespace {

constexpr std::size_t kMaxFile = 512u << 20;
constexpr std::size_t kMaxLine = 64u << 20;

const char* kind_of(const json::value* value) {
  if (value == nullptr) return "nothing";
  if (value->is_null()) return "null";
  if (value->is_string()) return value->get_string().empty() ? "an empty string" : "a string";
  if (value->is_bool()) return "a boolean";
  if (value->is_array()) return "a list";
  return value->is_object() ? "an object" : "a number";
}

tl::unexpected<Error> wrong(const std::string& where, std::string_view key, std::string_view expected,
                            const json::value* value) {
  return fail(ErrorCode::kCorrupt, "{}: field \"{}\": expected {}, got {}", where, key, expected,
              kind_of(value));
}

}  // namespace

Result<std::string> JsonLine::text(std::string_view key) const {
  const json::value* value = object_.if_contains(key);
  if (value == nullptr || !value->is_string() || value->get_string().empty())
    return wrong(where_, key, "text", value);
  return std::string(value->get_string());
}

Result<bool> JsonLine::boolean(std::string_view key, bool otherwise) const {
  const json::value* value = object_.if_contains(key);
  if (value == nullptr) return otherwise;
  if (!value->is_bool()) return wrong(where_, key, "true or false", value);
  return value->get_bool();
}

Result<json::array> JsonLine::list(std::string_view key) const {
  const json::value* value = object_.if_contains(key);
  if (value == nullptr || !value->is_array()) return wrong(where_, key, "a list", value);
  return value->get_array();
}

Status read_jsonl(const std::string& path, const std::function<Status(const JsonLine&)>& line) {
  const Result<std::string> file = read_file(path, kMaxFile);
  if (!file) return forward_error(file);
  std::string_view rest = *file;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    const std::string_view text = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    Result<json::value> value = parse_json(text, where, {.max_bytes = kMaxLine});
    if (!value) return forward_error(value);
    if (!value->is_object()) {
      return fail(ErrorCode::kCorrupt, "{}: expected an object, got {}", where, kind_of(&*value));
    }
    if (Status taken = line(JsonLine(where, std::move(value->get_object()))); !taken) return taken;
  }
  return {};
}

}  // namespace mimo
