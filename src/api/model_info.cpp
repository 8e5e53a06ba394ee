#include "api/model_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "api/answer_plan.h"
#include "api/json_writer.h"

namespace mimo {
namespace {

void append_card(std::string& out, const ModelCard& card, std::string_view id) {
  out += R"({"id":)";
  append_json_string(out, id);
  fmt::format_to(std::back_inserter(out), R"(,"object":"model","created":{},"owned_by":"mimo.cpp","root":)",
                 card.created);
  append_json_string(out, card.root);
  fmt::format_to(std::back_inserter(out), R"(,"parent":null,"max_model_len":{}}})", card.max_model_len);
}

void append_info(std::string& out, const ModelInfo& info) {
  out += R"({"model_path":)";
  append_json_string(out, info.model_path);
  out += R"(,"tokenizer_path":)";
  append_json_string(out, info.tokenizer_path);
  fmt::format_to(std::back_inserter(out), R"(,"is_generation":true,"max_model_len":{},"vocab_size":{}}})",
                 info.max_model_len, info.vocab);
}

void append_strings(std::string& out, const std::vector<std::string>& list) {
  out += '[';
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (i > 0) out += ',';
    append_json_string(out, list[i]);
  }
  out += ']';
}

}  // namespace

std::string models_body(const ServedModels& models, const ModelCard& card) {
  std::string out = R"({"object":"list","data":[)";
  for (std::size_t i = 0; i < models.names.size(); ++i) {
    if (i > 0) out += ',';
    append_card(out, card, models.names[i]);
  }
  return out + "]}";
}

std::optional<std::string> model_body(const ServedModels& models, const ModelCard& card,
                                      std::string_view id) {
  if (std::find(models.names.begin(), models.names.end(), id) == models.names.end()) return {};
  std::string out;
  append_card(out, card, id);
  return out;
}

std::string tokenize_body(const TokenizeAnswer& answer) {
  std::string out =
      fmt::format(R"({{"count":{},"max_model_len":{},"tokens":)", answer.tokens.size(), answer.max_model_len);
  append_ids(out, answer.tokens);
  out += R"(,"token_strs":)";
  if (answer.token_strs) {
    append_strings(out, *answer.token_strs);
  } else {
    out += "null";
  }
  return out + '}';
}

std::string detokenize_body(std::string_view text) {
  std::string out = R"({"prompt":)";
  append_json_string(out, text);
  out += R"(,"content":)";
  append_json_string(out, text);
  return out + '}';
}

std::string count_tokens_body(std::int64_t input_tokens) {
  return fmt::format(R"({{"input_tokens":{}}})", input_tokens);
}

std::string model_info_body(const ModelInfo& info) {
  std::string out;
  append_info(out, info);
  return out;
}

std::string server_info_body(const ServerInfo& info) {
  std::string out = R"({"version":)";
  append_json_string(out, info.version);
  out += R"(,"served_model_names":)";
  append_strings(out, info.models);
  out += R"(,"model":)";
  append_info(out, info.model);
  out += R"(,"arguments":)";
  out += json::serialize(info.arguments);
  out += R"(,"state":)";
  out += json::serialize(info.state);
  return out + '}';
}

}  // namespace mimo
