#include "api/logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "api/json_writer.h"
#include "text/unicode_utf8.h"

namespace mimo {
namespace {

TokenSpelling spelling(const LogprobOptions& options, int id) {
  return options.spell ? options.spell(id) : TokenSpelling{};
}

void append_bytes(std::string& out, const TokenSpelling& token) {
  if (!token.shown) {
    out += "null";
    return;
  }
  out += '[';
  for (std::size_t i = 0; i < token.bytes.size(); ++i) {
    if (i > 0) out += ',';
    fmt::format_to(std::back_inserter(out), "{}", static_cast<unsigned char>(token.bytes[i]));
  }
  out += ']';
}

// The members that the token and each alternative have, without braces.
void append_members(std::string& out, const LogprobOptions& options, int id, float logprob) {
  const TokenSpelling token = spelling(options, id);
  out += R"("token":)";
  if (options.tokens_as_ids) {
    fmt::format_to(std::back_inserter(out), R"("token_id:{}")", id);
  } else {
    append_json_string(out, token.bytes);
  }
  out += R"(,"logprob":)";
  append_json_float(out, logprob);
  out += R"(,"bytes":)";
  append_bytes(out, token);
}

// Keys of an object must differ, so bytes that are no text are spelled out.
std::string completion_text(const LogprobOptions& options, int id) {
  if (options.tokens_as_ids) return fmt::format("token_id:{}", id);
  const std::string_view bytes = spelling(options, id).bytes;
  if (utf8_valid(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char byte : bytes) {
    fmt::format_to(std::back_inserter(text), "\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

std::int64_t first_bytes(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

}  // namespace

void append_chat_logprob(std::string& out, const LogprobOptions& options, const SampledToken& token) {
  out += '{';
  append_members(out, options, token.id, token.logprob);
  out += R"(,"top_logprobs":[)";
  for (std::size_t i = 0; i < token.top.size(); ++i) {
    out += i == 0 ? "{" : ",{";
    append_members(out, options, token.top[i].id, token.top[i].logprob);
    out += '}';
  }
  out += "]}";
}

void CompletionLogprobs::add(const LogprobOptions& options, const SampledToken& token) {
  const char* comma = tokens_.empty() ? "" : ",";
  const std::string text = completion_text(options, token.id);
  tokens_ += comma;
  append_json_string(tokens_, text);
  logprobs_ += comma;
  append_json_float(logprobs_, token.logprob);

  std::vector<std::string> keys{text};
  top_ += comma;
  top_ += '{';
  append_json_string(top_, text);
  top_ += ':';
  append_json_float(top_, token.logprob);
  for (const TopLogprob& other : token.top) {
    std::string key = completion_text(options, other.id);
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    top_ += ',';
    append_json_string(top_, key);
    top_ += ':';
    append_json_float(top_, other.logprob);
    keys.push_back(std::move(key));
  }
  top_ += '}';

  offsets_ += comma;
  fmt::format_to(std::back_inserter(offsets_), "{}", offset_);
  const TokenSpelling token_spelling = spelling(options, token.id);
  // A character belongs to the token that begins it.
  if (token_spelling.shown) offset_ += first_bytes(token_spelling.bytes);
}

void CompletionLogprobs::take(std::string& out) {
  out += R"({"tokens":[)";
  out += tokens_;
  out += R"(],"token_logprobs":[)";
  out += logprobs_;
  out += R"(],"top_logprobs":[)";
  out += top_;
  out += R"(],"text_offset":[)";
  out += offsets_;
  out += "]}";
  tokens_.clear();
  logprobs_.clear();
  top_.clear();
  offsets_.clear();
}

}  // namespace mimo
