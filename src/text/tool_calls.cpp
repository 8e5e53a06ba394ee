#include "text/tool_calls.h"

#include <optional>
#include <utility>

#include "text/typed_value.h"

namespace mimo {
namespace {

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";
constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";
constexpr std::string_view kSpace = " \t\r\n";
// Longest name of a function or parameter; bounds the search for the end of its tag.
constexpr std::size_t kMaxName = 256;

// One call being read. `pos` moves on; after a failure it is where reading can go on.
class CallReader {
 public:
  CallReader(std::string_view text, std::size_t pos, const json::array& tools)
      : text_(text), pos_(pos), tools_(tools) {}

  std::size_t pos() const { return pos_; }

  // The call whose <tool_call> ends at `pos`.
  Result<ToolCall> read() {
    ToolCall call;
    skip_space();
    if (!take(kFunction)) return malformed("expected <function=NAME>");
    const std::optional<std::string_view> name = take_name();
    if (!name) return malformed("the function has no name");
    call.name = *name;
    schema_ = find_tool(tools_, call.name);
    std::optional<std::string> fault;
    if (!schema_.declared) fault = fmt::format("no tool is called \"{}\"", call.name);

    while (true) {
      skip_space();
      if (take(kFunctionEnd)) {
        skip_space();
        if (!take(kClose)) return malformed("expected </tool_call>");
        break;
      }
      if (take(kClose)) break;  // </function> is implied
      if (!take(kParameter)) return malformed("expected <parameter=KEY> or </function>");
      const std::optional<std::string_view> key = take_name();
      if (!key) return malformed("a parameter has no name");
      const std::optional<std::string_view> value = take_value(call.arguments);
      if (!value) return malformed("cut off");
      if (!fault && call.arguments.contains(*key)) {
        fault = fmt::format("parameter \"{}\" is given twice", *key);
      }
      if (!fault) {
        static const json::value kNoRoot;
        call.arguments[*key] = typed_value(*value, schema_.property(*key),
                                           schema_.parameters == nullptr ? kNoRoot : *schema_.parameters);
      }
    }
    if (fault) return fail(ErrorCode::kInvalidArgument, "tool call: {}", *fault);
    return call;
  }

 private:
  tl::unexpected<Error> malformed(std::string_view what) const {
    return fail(ErrorCode::kInvalidArgument, "tool call: {} at byte {}", what, pos_);
  }

  bool at(std::size_t pos, std::string_view tag) const { return text_.substr(pos).starts_with(tag); }

  bool take(std::string_view tag) {
    if (!at(pos_, tag)) return false;
    pos_ += tag.size();
    return true;
  }

  std::size_t after_space(std::size_t pos) const {
    const std::size_t next = text_.find_first_not_of(kSpace, pos);
    return next == std::string_view::npos ? text_.size() : next;
  }

  void skip_space() { pos_ = after_space(pos_); }

  // The name that ends at the next '>', trimmed; none if it is empty, too long or holds markup.
  std::optional<std::string_view> name_at(std::size_t pos) const {
    const std::size_t length = text_.substr(pos, kMaxName + 1).find_first_of("<>\n");
    if (length == std::string_view::npos || text_[pos + length] != '>') return {};
    std::string_view name = text_.substr(pos, length);
    const std::size_t begin = name.find_first_not_of(kSpace);
    if (begin == std::string_view::npos) return {};
    return name.substr(begin, name.find_last_not_of(kSpace) - begin + 1);
  }

  std::optional<std::string_view> take_name() {
    const std::optional<std::string_view> name = name_at(pos_);
    if (name) pos_ = text_.find('>', pos_) + 1;
    return name;
  }

  bool ends_call(std::size_t pos) const {
    return at(pos, kClose) || (at(pos, kFunctionEnd) && at(after_space(pos + kFunctionEnd.size()), kClose));
  }

  // Whether a line begins at `pos` with a declared parameter that `given` lacks.
  bool begins_parameter(std::size_t pos, const json::object& given) const {
    if (pos == 0 || text_[pos - 1] != '\n' || !at(pos, kParameter)) return false;
    const std::optional<std::string_view> key = name_at(pos + kParameter.size());
    return key && schema_.property(*key) != nullptr && !given.contains(*key);
  }

  // None: the text ends before the value does; `pos` is then at the end.
  std::optional<std::string_view> take_value(const json::object& given) {
    const std::size_t begin = pos_;
    for (pos_ = text_.find('<', pos_); pos_ != std::string_view::npos; pos_ = text_.find('<', pos_ + 1)) {
      std::size_t end = pos_;
      if (at(pos_, kParameterEnd)) {
        const std::size_t next = after_space(pos_ + kParameterEnd.size());
        if (!at(next, kParameter) && !at(next, kFunctionEnd) && !at(next, kClose)) continue;
        pos_ += kParameterEnd.size();
      } else if (pos_ > begin && begins_parameter(pos_, given)) {
        --end;  // the line break belongs to the tag
      } else if (!ends_call(pos_)) {
        continue;
      }
      return text_.substr(begin, end - begin);
    }
    pos_ = text_.size();
    return {};
  }

  std::string_view text_;
  std::size_t pos_;
  const json::array& tools_;
  ToolSchema schema_;
};

}  // namespace

const json::value* ToolSchema::property(std::string_view key) const {
  const json::object* object = parameters == nullptr ? nullptr : parameters->if_object();
  const json::value* properties = object == nullptr ? nullptr : object->if_contains("properties");
  if (properties == nullptr || !properties->is_object()) return nullptr;
  return properties->get_object().if_contains(key);
}

ToolSchema find_tool(const json::array& tools, std::string_view name) {
  for (const json::value& tool : tools) {
    const json::object* object = tool.if_object();
    const json::value* function = object == nullptr ? nullptr : object->if_contains("function");
    if (function == nullptr || !function->is_object()) continue;
    const json::value* own = function->get_object().if_contains("name");
    if (own == nullptr || !own->is_string() || std::string_view(own->get_string()) != name) continue;
    return {.declared = true, .parameters = function->get_object().if_contains("parameters")};
  }
  return {};
}

ToolCallText parse_tool_calls(std::string_view text, const json::array& tools) {
  ToolCallText out;
  // Text since the last call; white space alone is dropped when a call follows or went before.
  std::string held;
  const auto flush = [&](bool call_follows) {
    const bool blank = held.find_first_not_of(kSpace) == std::string::npos;
    if (!blank || (!call_follows && out.calls.empty())) out.content += held;
    held.clear();
  };
  std::size_t pos = 0;
  while (pos < text.size()) {
    const std::size_t open = text.find(kOpen, pos);
    held += text.substr(pos, open == std::string_view::npos ? open : open - pos);
    if (open == std::string_view::npos) break;
    CallReader reader(text, open + kOpen.size(), tools);
    Result<ToolCall> call = reader.read();
    pos = reader.pos();
    if (call) {
      flush(true);
      out.calls.push_back(std::move(*call));
    } else {
      out.problems.push_back(call.error().message);
      held += text.substr(open, pos - open);
    }
  }
  flush(false);
  return out;
}

}  // namespace mimo
