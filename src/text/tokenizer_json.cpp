#include "text/tokenizer_json.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

#include "core/json.h"
#include "text/unicode_utf8.h"

namespace mimo {
namespace {

// Far above any released vocabulary (about 256 thousand); bounds the tables that are indexed by id.
constexpr std::int64_t kMaxId = (std::int64_t{1} << 22) - 1;
// Longest bytes of one token. The longest of the Qwen vocabulary has 128.
constexpr std::size_t kMaxTokenBytes = 4096;
// Longest added token: bounds the work of matching at one place of the text.
constexpr std::size_t kMaxAddedBytes = 256;
constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;

// The printable stand-ins for bytes in byte-level vocabularies: a byte that is a visible Latin-1 character
// stands for itself, the other 68 are U+0100, U+0101, ... in order.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    std::uint32_t next = 0x100;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const bool visible =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
      bytes_[visible ? byte : next++] = static_cast<std::int16_t>(byte);
    }
  }

  // Sets `out` to the bytes that `token` spells; the first code point outside the alphabet otherwise. `token`
  // is valid UTF-8.
  std::optional<std::uint32_t> decode(std::string_view token, std::string& out) const {
    out.clear();
    for (std::size_t pos = 0; pos < token.size();) {
      const Utf8Char c = utf8_read_valid(token.data() + pos);
      if (c.code_point >= bytes_.size() || bytes_[c.code_point] < 0) return c.code_point;
      out.push_back(static_cast<char>(bytes_[c.code_point]));
      pos += c.length;
    }
    return std::nullopt;
  }

 private:
  std::array<std::int16_t, 0x100 + 68> bytes_;
};

std::string_view view(const json::string& s) { return {s.data(), s.size()}; }

// A short rendering of a value for messages.
std::string show(const json::value& value) {
  std::string text = json::serialize(value);
  constexpr std::size_t kShown = 120;
  if (text.size() > kShown) {
    text.resize(kShown);
    text = utf8_replace_invalid(text) + "...";
  }
  return text;
}

// One JSON object with its place in the file, for checks that name it.
class Fields {
 public:
  static Result<Fields> of(const json::value& value, std::string where) {
    if (!value.is_object()) {
      return fail(ErrorCode::kCorrupt, "{}: expected an object, found {}", where, show(value));
    }
    return Fields(value.as_object(), std::move(where));
  }

  const std::string& where() const { return where_; }
  std::string at(std::string_view key) const { return fmt::format("{}.{}", where_, key); }
  const json::value* find(std::string_view key) const {
    return object_->if_contains({key.data(), key.size()});
  }

  Result<const json::value*> need(std::string_view key) const {
    const json::value* value = find(key);
    if (value == nullptr) return fail(ErrorCode::kCorrupt, "{}: missing", at(key));
    return value;
  }

  Result<std::string_view> need_string(std::string_view key) const {
    const auto value = need(key);
    if (!value) return forward_error(value);
    if (!(*value)->is_string()) {
      return fail(ErrorCode::kCorrupt, "{}: expected a string, found {}", at(key), show(**value));
    }
    return view((*value)->as_string());
  }

  Result<bool> flag(std::string_view key, bool absent) const {
    const json::value* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_bool()) {
      return fail(ErrorCode::kCorrupt, "{}: expected true or false, found {}", at(key), show(*value));
    }
    return value->as_bool();
  }

  // An error unless every key is one of `known`.
  Status only(std::initializer_list<std::string_view> known) const {
    for (const auto& member : *object_) {
      const std::string_view key(member.key().data(), member.key().size());
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        return fail(ErrorCode::kUnsupported, "{}: unknown option (value {})", at(key), show(member.value()));
      }
    }
    return {};
  }

  // An error unless the flag is absent-as-`wanted` or `wanted`.
  Status want_flag(std::string_view key, bool wanted, bool absent) const {
    const auto value = flag(key, absent);
    if (!value) return forward_error(value);
    if (*value == wanted) return {};
    return fail(ErrorCode::kUnsupported, "{}: {} is not supported, only {}", at(key), *value, wanted);
  }

  // An error unless the value is absent, null or, if `empty_string` is set, "".
  Status want_nothing(std::string_view key, bool empty_string = false) const {
    const json::value* value = find(key);
    if (value == nullptr || value->is_null()) return {};
    if (empty_string && value->is_string() && value->as_string().empty()) return {};
    return fail(ErrorCode::kUnsupported, "{}: {} is not supported, only null", at(key), show(*value));
  }

 private:
  Fields(const json::object& object, std::string where) : object_(&object), where_(std::move(where)) {}

  const json::object* object_;
  std::string where_;
};

// The first error of several checks.
Status all_of(std::initializer_list<Status> checks) {
  for (const Status& check : checks) {
    if (!check) return check;
  }
  return {};
}

Status read_normalizer(const Fields& root, TokenizerFile& out) {
  const auto value = root.need("normalizer");
  if (!value) return forward_error(value);
  if ((*value)->is_null()) return {};
  const auto fields = Fields::of(**value, root.at("normalizer"));
  if (!fields) return forward_error(fields);
  const auto type = fields->need_string("type");
  if (!type) return forward_error(type);
  if (*type != "NFC") {
    return fail(ErrorCode::kUnsupported, "{}: \"{}\" is not supported, only \"NFC\" or a null normalizer",
                fields->at("type"), *type);
  }
  out.nfc = true;
  return fields->only({"type"});
}

// The options of a ByteLevel component that change only character offsets, or nothing in that place.
Status check_byte_level(const Fields& fields) {
  return all_of({fields.only({"type", "add_prefix_space", "trim_offsets", "use_regex"}),
                 fields.want_flag("add_prefix_space", /*wanted=*/false, /*absent=*/true)});
}

Status read_split(const Fields& fields, TokenizerFile& out) {
  const auto type = fields.need_string("type");
  if (!type) return forward_error(type);
  if (*type != "Split") {
    return fail(ErrorCode::kUnsupported, "{}: \"{}\" is not supported, only \"Split\" here",
                fields.at("type"), *type);
  }
  const Status checks = all_of({fields.only({"type", "pattern", "behavior", "invert"}),
                                fields.want_flag("invert", /*wanted=*/false, /*absent=*/false)});
  if (!checks) return checks;
  const auto behavior = fields.need_string("behavior");
  if (!behavior) return forward_error(behavior);
  if (*behavior != "Isolated") {
    return fail(ErrorCode::kUnsupported, "{}: \"{}\" is not supported, only \"Isolated\"",
                fields.at("behavior"), *behavior);
  }
  const auto pattern_value = fields.need("pattern");
  if (!pattern_value) return forward_error(pattern_value);
  const auto pattern = Fields::of(**pattern_value, fields.at("pattern"));
  if (!pattern) return forward_error(pattern);
  if (const Status keys = pattern->only({"Regex"}); !keys) return keys;
  const auto regex = pattern->need_string("Regex");
  if (!regex) return forward_error(regex);
  const auto known = split_pattern_from_regex(*regex);
  if (!known) {
    return fail(ErrorCode::kUnsupported, "{}: the split pattern {} is not one that this engine implements",
                pattern->at("Regex"), *regex);
  }
  out.pattern = *known;
  return {};
}

Status read_pre_tokenizer(const Fields& root, TokenizerFile& out) {
  const auto value = root.need("pre_tokenizer");
  if (!value) return forward_error(value);
  const auto fields = Fields::of(**value, root.at("pre_tokenizer"));
  if (!fields) return forward_error(fields);
  const auto type = fields->need_string("type");
  if (!type) return forward_error(type);
  if (*type == "ByteLevel") {
    out.pattern = SplitPattern::kGpt2;
    return all_of(
        {check_byte_level(*fields), fields->want_flag("use_regex", /*wanted=*/true, /*absent=*/true)});
  }
  if (*type != "Sequence") {
    return fail(ErrorCode::kUnsupported, "{}: \"{}\" is not supported, only \"Sequence\" or \"ByteLevel\"",
                fields->at("type"), *type);
  }
  if (const Status keys = fields->only({"type", "pretokenizers"}); !keys) return keys;
  const auto steps = fields->need("pretokenizers");
  if (!steps) return forward_error(steps);
  const std::string where = fields->at("pretokenizers");
  if (!(*steps)->is_array() || (*steps)->as_array().size() != 2) {
    return fail(ErrorCode::kUnsupported, "{}: expected the two steps Split and ByteLevel, found {}", where,
                show(**steps));
  }
  const auto split = Fields::of((*steps)->as_array()[0], where + "[0]");
  if (!split) return forward_error(split);
  const auto bytes = Fields::of((*steps)->as_array()[1], where + "[1]");
  if (!bytes) return forward_error(bytes);
  if (const Status status = read_split(*split, out); !status) return status;
  const auto bytes_type = bytes->need_string("type");
  if (!bytes_type) return forward_error(bytes_type);
  if (*bytes_type != "ByteLevel") {
    return fail(ErrorCode::kUnsupported, "{}: \"{}\" is not supported, only \"ByteLevel\" here",
                bytes->at("type"), *bytes_type);
  }
  return all_of({check_byte_level(*bytes), bytes->want_flag("use_regex", /*wanted=*/false, /*absent=*/true)});
}

// post_processor and decoder: ByteLevel, whose options change character offsets only; the post-processor may
// be null.
Status check_post_steps(const Fields& root) {
  for (const std::string_view key : {"post_processor", "decoder"}) {
    const bool may_be_null = key == "post_processor";
    const auto value = root.need(key);
    if (!value) return forward_error(value);
    if ((*value)->is_null() && may_be_null) continue;
    const auto fields = Fields::of(**value, root.at(key));
    if (!fields) return forward_error(fields);
    const auto type = fields->need_string("type");
    if (!type) return forward_error(type);
    if (*type != "ByteLevel") {
      return fail(ErrorCode::kUnsupported, "{}: \"{}\" is not supported, only \"ByteLevel\"{}",
                  fields->at("type"), *type, may_be_null ? " or null" : "");
    }
    const Status keys = fields->only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (!keys) return keys;
  }
  return {};
}

Result<TokenId> read_id(const json::value& value, const std::string& where) {
  std::optional<std::int64_t> id;
  if (value.is_int64()) id = value.as_int64();
  if (!id || *id < 0 || *id > kMaxId) {
    return fail(ErrorCode::kCorrupt, "{}: expected an id from 0 to {}, found {}", where, kMaxId, show(value));
  }
  return static_cast<TokenId>(*id);
}

// One name of the vocabulary, as a JSON string for messages.
std::string quoted(std::string_view token) {
  return show(json::value(json::string_view(token.data(), token.size())));
}

Status read_vocab(const Fields& model, const ByteAlphabet& alphabet, TokenizerFile& out) {
  const auto value = model.need("vocab");
  if (!value) return forward_error(value);
  const std::string where = model.at("vocab");
  if (!(*value)->is_object()) {
    return fail(ErrorCode::kCorrupt, "{}: expected an object from token to id, found {}", where,
                show(**value));
  }
  const json::object& vocab = (*value)->as_object();
  constexpr std::size_t kUsualBytes = 8;
  out.vocab.reserve(vocab.size(), vocab.size() * kUsualBytes);
  std::string bytes;
  for (const auto& member : vocab) {
    const std::string_view name(member.key().data(), member.key().size());
    const auto id = read_id(member.value(), where);
    if (!id) return tl::unexpected(id.error().within(quoted(name)));
    if (name.empty()) return fail(ErrorCode::kCorrupt, "{}: empty token with id {}", where, *id);
    if (const auto stranger = alphabet.decode(name, bytes)) {
      return fail(ErrorCode::kUnsupported, "{}: token {} (id {}) has U+{:04X}, which stands for no byte",
                  where, quoted(name), *id, *stranger);
    }
    if (bytes.size() > kMaxTokenBytes) {
      return fail(ErrorCode::kLimit, "{}: token with id {} has {} bytes, the limit is {}", where, *id,
                  bytes.size(), kMaxTokenBytes);
    }
    if (!out.vocab.add(*id, bytes)) {
      return fail(ErrorCode::kCorrupt, "{}: id {} of token {} is used twice", where, *id, quoted(name));
    }
  }
  for (std::size_t byte = 0; byte < out.byte_ids.size(); ++byte) {
    const char c = static_cast<char>(byte);
    const auto id = out.vocab.find({&c, 1});
    if (!id) return fail(ErrorCode::kUnsupported, "{}: no token for the byte 0x{:02X}", where, byte);
    out.byte_ids[byte] = *id;
  }
  return {};
}

// The two sides of one entry of "merges": "a b" or ["a", "b"].
std::optional<std::pair<std::string_view, std::string_view>> merge_sides(const json::value& entry) {
  if (entry.is_string()) {
    const std::string_view text = view(entry.as_string());
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
      return std::nullopt;
    return std::pair{text.substr(0, space), text.substr(space + 1)};
  }
  if (!entry.is_array() || entry.as_array().size() != 2) return std::nullopt;
  const json::value& left = entry.as_array()[0];
  const json::value& right = entry.as_array()[1];
  if (!left.is_string() || !right.is_string()) return std::nullopt;
  return std::pair{view(left.as_string()), view(right.as_string())};
}

Status read_merges(const Fields& model, const ByteAlphabet& alphabet, TokenizerFile& out) {
  const auto value = model.need("merges");
  if (!value) return forward_error(value);
  const std::string where = model.at("merges");
  if (!(*value)->is_array()) {
    return fail(ErrorCode::kCorrupt, "{}: expected an array, found {}", where, show(**value));
  }
  const json::array& merges = (*value)->as_array();
  if (merges.size() > static_cast<std::size_t>(kMaxId)) {
    return fail(ErrorCode::kLimit, "{}: {} entries, the limit is {}", where, merges.size(), kMaxId);
  }
  out.merges.reserve(merges.size());
  std::string left;
  std::string right;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto sides = merge_sides(merges[rank]);
    if (!sides) {
      return fail(ErrorCode::kCorrupt, "{}[{}]: expected \"a b\" or [\"a\", \"b\"], found {}", where, rank,
                  show(merges[rank]));
    }
    const auto find = [&](std::string_view name, std::string& bytes) -> std::optional<TokenId> {
      if (alphabet.decode(name, bytes)) return std::nullopt;
      return out.vocab.find(bytes);
    };
    const auto left_id = find(sides->first, left);
    const auto right_id = find(sides->second, right);
    const auto result = left_id && right_id ? out.vocab.find(left + right) : std::nullopt;
    if (!result) {
      return fail(ErrorCode::kCorrupt, "{}[{}]: {} and its two sides are not all in the vocabulary", where,
                  rank, show(merges[rank]));
    }
    out.merges.push_back({*left_id, *right_id, *result});
  }
  return {};
}

Status read_model(const Fields& root, TokenizerFile& out) {
  const auto value = root.need("model");
  if (!value) return forward_error(value);
  const auto model = Fields::of(**value, root.at("model"));
  if (!model) return forward_error(model);
  const auto type = model->need_string("type");
  if (!type) return forward_error(type);
  if (*type != "BPE") {
    return fail(ErrorCode::kUnsupported, "{}: \"{}\" is not supported, only \"BPE\"", model->at("type"),
                *type);
  }
  const Status options =
      all_of({model->only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                           "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}),
              model->want_nothing("dropout"), model->want_nothing("unk_token"),
              model->want_nothing("continuing_subword_prefix", /*empty_string=*/true),
              model->want_nothing("end_of_word_suffix", /*empty_string=*/true),
              model->want_flag("fuse_unk", /*wanted=*/false, /*absent=*/false),
              model->want_flag("byte_fallback", /*wanted=*/false, /*absent=*/false),
              model->want_flag("ignore_merges", /*wanted=*/false, /*absent=*/false)});
  if (!options) return options;
  const ByteAlphabet alphabet;
  if (const Status status = read_vocab(*model, alphabet, out); !status) return status;
  return read_merges(*model, alphabet, out);
}

Result<AddedToken> read_added_token(const json::value& value, const std::string& where) {
  const auto fields = Fields::of(value, where);
  if (!fields) return forward_error(fields);
  const Status options =
      all_of({fields->only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}),
              fields->want_flag("single_word", /*wanted=*/false, /*absent=*/false),
              fields->want_flag("lstrip", /*wanted=*/false, /*absent=*/false),
              fields->want_flag("rstrip", /*wanted=*/false, /*absent=*/false)});
  if (!options) return forward_error(options);
  const auto id_value = fields->need("id");
  if (!id_value) return forward_error(id_value);
  const auto id = read_id(**id_value, fields->at("id"));
  if (!id) return forward_error(id);
  const auto content = fields->need_string("content");
  if (!content) return forward_error(content);
  if (content->empty() || content->size() > kMaxAddedBytes) {
    return fail(ErrorCode::kUnsupported, "{}: {} bytes long, expected 1 to {}", fields->at("content"),
                content->size(), kMaxAddedBytes);
  }
  const auto special = fields->flag("special", false);
  if (!special) return forward_error(special);
  const auto normalized = fields->flag("normalized", !*special);
  if (!normalized) return forward_error(normalized);
  return AddedToken{*id, std::string(*content), *special, *normalized};
}

Status read_added_tokens(const Fields& root, TokenizerFile& out) {
  const auto value = root.need("added_tokens");
  if (!value) return forward_error(value);
  const std::string where = root.at("added_tokens");
  if (!(*value)->is_array()) {
    return fail(ErrorCode::kCorrupt, "{}: expected an array, found {}", where, show(**value));
  }
  std::unordered_set<std::string> contents;
  std::unordered_set<TokenId> ids;
  for (std::size_t i = 0; i < (*value)->as_array().size(); ++i) {
    const std::string place = fmt::format("{}[{}]", where, i);
    auto token = read_added_token((*value)->as_array()[i], place);
    if (!token) return forward_error(token);
    const std::string_view ordinary = out.vocab.bytes(token->id);
    const bool id_taken = !ordinary.empty() && ordinary != token->content;
    const auto other = out.vocab.find(token->content);
    if (id_taken || (other && *other != token->id)) {
      return fail(ErrorCode::kCorrupt, "{}: {} has the id {}, which contradicts model.vocab", place,
                  quoted(token->content), token->id);
    }
    if (!contents.insert(token->content).second || !ids.insert(token->id).second) {
      return fail(ErrorCode::kCorrupt, "{}: {} or its id {} appears twice", place, quoted(token->content),
                  token->id);
    }
    out.added.push_back(std::move(*token));
  }
  std::sort(out.added.begin(), out.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  // Text that is not trusted must never become a control token, so ordinary merging must not be able to make
  // one.
  for (const TokenId byte_id : out.byte_ids) {
    if (ids.contains(byte_id)) {
      return fail(ErrorCode::kUnsupported, "{}: id {} is a single byte and cannot be an added token", where,
                  byte_id);
    }
  }
  for (std::size_t rank = 0; rank < out.merges.size(); ++rank) {
    if (ids.contains(out.merges[rank].result)) {
      return fail(ErrorCode::kUnsupported,
                  "{}: id {} is the result of merge {}, so ordinary text could become this added token",
                  where, out.merges[rank].result, rank);
    }
  }
  return {};
}

}  // namespace

Result<TokenizerFile> parse_tokenizer_json(std::string_view text, std::string_view what) {
  JsonLimits limits;
  limits.max_bytes = kMaxFileBytes;
  constexpr std::size_t kMaxDepth = 16;  // the format nests 5 deep
  limits.max_depth = kMaxDepth;
  const auto document = parse_json(text, what, limits);
  if (!document) return forward_error(document);
  const auto root = Fields::of(*document, std::string(what));
  if (!root) return forward_error(root);
  const auto version = root->need_string("version");
  if (!version) return forward_error(version);
  if (*version != "1.0") {
    return fail(ErrorCode::kUnsupported, "{}: \"{}\" is not supported, only \"1.0\"", root->at("version"),
                *version);
  }
  const Status options = all_of({root->only({"version", "truncation", "padding", "added_tokens", "normalizer",
                                             "pre_tokenizer", "post_processor", "decoder", "model"}),
                                 root->want_nothing("truncation"), root->want_nothing("padding")});
  if (!options) return forward_error(options);
  TokenizerFile out;
  // The model goes before the added tokens: their ids are checked against it.
  for (const auto step : {read_normalizer, read_pre_tokenizer, read_model, read_added_tokens}) {
    if (const Status status = step(*root, out); !status) return forward_error(status);
  }
  if (const Status status = check_post_steps(*root); !status) return forward_error(status);
  return out;
}

}  // namespace mimo
