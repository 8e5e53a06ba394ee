#include "eval/needle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "core/file.h"
#include "core/philox.h"

namespace mimo {
namespace {

constexpr std::size_t kMaxHaystack = 64u << 20;
constexpr int kCodeDigits = 7;
// A place in the haystack seldom fails to give an exact length; after this many the cause is another.
constexpr int kPlaces = 32;
// Joining pieces can change their token counts by a few; each correction is exact but for new joins.
constexpr int kCorrections = 8;

std::string replaced(std::string text, std::string_view key, std::string_view value) {
  for (std::size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + value.size()))
    text.replace(at, key.size(), value);
  return text;
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The random choices of one case.
class Draws {
 public:
  Draws(std::uint64_t seed, const NeedleCase& one) : seed_(seed) {
    // Lengths and depths get streams of their own, so that adding one changes no other case.
    stream_ = static_cast<std::uint64_t>(one.prompt_tokens) << 32 |
              static_cast<std::uint64_t>(std::llround(one.depth * 1e6)) << 8;
    position_ = static_cast<std::int64_t>(one.sample) << 8;
  }
  std::size_t below(std::size_t n) {
    const double uniform = philox_uniform(seed_, position_++, stream_);
    return std::min(n - 1, static_cast<std::size_t>(uniform * static_cast<double>(n)));
  }

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::int64_t position_;
};

// An end of `sentence` with exactly `tokens` tokens, from the start of a word where there is one.
std::optional<std::string_view> tail_of(std::string_view sentence, std::size_t tokens,
                                        const TokenCounter& counter) {
  for (const bool words : {true, false}) {
    for (std::size_t begin = 0; begin < sentence.size(); ++begin) {
      const bool word = begin == 0 || sentence[begin - 1] == ' ';
      if (word != words || is_continuation(sentence[begin]) || sentence[begin] == ' ') continue;
      const std::string_view tail = sentence.substr(begin);
      if (counter.text(tail) == tokens) return tail;
    }
  }
  return {};
}

Result<std::string> template_text(const json::object& object, const char* key,
                                  std::initializer_list<std::string_view> holes, const std::string& path) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_string())
    return fail(ErrorCode::kCorrupt, "{}: field \"{}\": expected text", path, key);
  std::string text(value->get_string());
  for (const std::string_view hole : holes) {
    if (text.find(hole) == std::string::npos)
      return fail(ErrorCode::kCorrupt, "{}: field \"{}\": expected {} in it, got \"{}\"", path, key, hole,
                  text);
  }
  return text;
}

}  // namespace

Result<NeedleMaterial> load_needle_material(const std::string& path, const std::string& haystack_path) {
  const Result<json::value> file = parse_json_file(path, {.max_bytes = 16u << 20});
  if (!file) return forward_error(file);
  const json::object* object = file->if_object();
  if (object == nullptr) return fail(ErrorCode::kCorrupt, "{}: expected an object", path);
  NeedleMaterial material;
  Result<std::string> needle = template_text(*object, "needle", {"{name}", "{code}"}, path);
  if (!needle) return forward_error(needle);
  material.needle = std::move(*needle);
  Result<std::string> question = template_text(*object, "question", {"{name}"}, path);
  if (!question) return forward_error(question);
  material.question = std::move(*question);
  const json::value* names = object->if_contains("names");
  if (names != nullptr && names->is_array()) {
    for (const json::value& name : names->get_array()) {
      if (name.is_string() && !name.get_string().empty()) material.names.emplace_back(name.get_string());
    }
    if (material.names.size() != names->get_array().size()) material.names.clear();
  }
  if (material.names.empty())
    return fail(ErrorCode::kCorrupt, "{}: field \"names\": expected a list of names", path);

  const Result<std::string> haystack = read_file(haystack_path, kMaxHaystack);
  if (!haystack) return forward_error(haystack);
  std::string_view rest = *haystack;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin != std::string_view::npos)
      material.sentences.emplace_back(line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  if (material.sentences.size() < 2) {
    return fail(ErrorCode::kCorrupt, "{}: {} sentences, expected many, one a line", haystack_path,
                material.sentences.size());
  }
  return material;
}

NeedleBuilder::NeedleBuilder(NeedleMaterial material, TokenCounter counter)
    : material_(std::move(material)), counter_(std::move(counter)) {
  total_.push_back(0);
  for (const std::string& sentence : material_.sentences) {
    tokens_.push_back(counter_.text(" " + sentence));
    total_.push_back(total_.back() + tokens_.back());
  }
}

std::optional<NeedleBuilder::Haystack> NeedleBuilder::cut_haystack(std::size_t end,
                                                                   std::int64_t tokens) const {
  std::size_t first = end;
  while (first > 0 && static_cast<std::int64_t>(total_[end] - total_[first - 1]) <= tokens) --first;
  const auto missing = static_cast<std::size_t>(tokens) - (total_[end] - total_[first]);
  Haystack haystack;
  if (missing > 0) {
    // The sentence for which there is no room has more tokens than are missing.
    if (first == 0) return {};
    const std::optional<std::string_view> tail = tail_of(material_.sentences[first - 1], missing, counter_);
    if (!tail) return {};
    haystack.parts.push_back(*tail);
    haystack.tokens.push_back(missing);
  }
  for (std::size_t i = first; i < end; ++i) {
    haystack.parts.emplace_back(material_.sentences[i]);
    haystack.tokens.push_back(tokens_[i]);
  }
  return haystack;
}

std::string NeedleBuilder::hide(std::string_view needle, const Haystack& haystack, double depth) {
  const double all =
      static_cast<double>(std::accumulate(haystack.tokens.begin(), haystack.tokens.end(), std::size_t{0}));
  double before = 0;
  double nearest = std::numeric_limits<double>::infinity();
  std::size_t border = 1;
  for (std::size_t i = 1; i < haystack.parts.size(); ++i) {
    before += static_cast<double>(haystack.tokens[i - 1]);
    const double distance = std::abs(before - depth * all);
    if (distance < nearest) {
      nearest = distance;
      border = i;
    }
  }
  std::string text;
  for (std::size_t i = 0; i < haystack.parts.size(); ++i) {
    if (i > 0) text += ' ';
    if (i == border) text.append(needle).append(" ");
    text += haystack.parts[i];
  }
  return text;
}

Result<Problem> NeedleBuilder::build(const NeedleCase& one, std::uint64_t seed) const {
  Draws draws(seed, one);
  const std::string& name = material_.names[draws.below(material_.names.size())];
  std::string code;
  for (int i = 0; i < kCodeDigits; ++i) code += static_cast<char>('0' + draws.below(10));
  const std::string needle = replaced(replaced(material_.needle, "{name}", name), "{code}", code);
  const std::string question = replaced(material_.question, "{name}", name);

  Problem problem;
  problem.id = fmt::format("needle-{}-{:g}-{:03}", one.prompt_tokens, one.depth, one.sample);
  problem.prompt_tokens = one.prompt_tokens;
  problem.group = fmt::format("{} tokens, depth {:g}", one.prompt_tokens, one.depth);
  problem.expected = ExpectedText{code};
  // What the prompt costs without any haystack.
  problem.messages = user_message(needle + "\n\n" + question);
  const Result<std::size_t> overhead = counter_.prompt(problem);
  if (!overhead) return forward_error(overhead);
  const auto wanted = static_cast<std::int64_t>(one.prompt_tokens);
  const std::int64_t room = wanted - static_cast<std::int64_t>(*overhead);
  const std::int64_t available = static_cast<std::int64_t>(total_.back());
  if (room > available) {
    return fail(ErrorCode::kInvalidArgument,
                "a prompt of {} tokens needs {} of the haystack, which has {} in {} sentences", wanted, room,
                available, material_.sentences.size());
  }

  for (int place = 0; place < kPlaces; ++place) {
    std::size_t lowest = 0;
    while (lowest < tokens_.size() && static_cast<std::int64_t>(total_[lowest]) < room) ++lowest;
    const std::size_t end = lowest + draws.below(tokens_.size() - lowest + 1);
    std::int64_t need = room;
    for (int correction = 0; correction < kCorrections; ++correction) {
      const std::optional<Haystack> haystack = need < 0 ? Haystack{} : cut_haystack(end, need);
      if (!haystack) break;  // another place
      if (haystack->parts.size() < 2) {
        return fail(ErrorCode::kInvalidArgument,
                    "a prompt of {} tokens has no room for two sentences beside the needle and the question, "
                    "which take {}",
                    wanted, *overhead);
      }
      const std::string text = hide(needle, *haystack, one.depth);
      // The code must stand once, or finding it proves nothing.
      if (text.find(code) != text.rfind(code)) break;
      problem.messages = user_message(fmt::format("{}\n\n{}", text, question));
      const Result<std::size_t> count = counter_.prompt(problem);
      if (!count) return forward_error(count);
      const std::int64_t excess = static_cast<std::int64_t>(*count) - wanted;
      if (excess == 0) return problem;
      need -= excess;
    }
  }
  return fail(ErrorCode::kInternal, "no text of exactly {} tokens was found in {} places of the haystack",
              wanted, kPlaces);
}

}  // namespace mimo
