#include "bench/load_target.h"

#include <array>
#include <random>
#include <utility>

#include "bench/load_run.h"
#include "bench/server_counters.h"

namespace mimo {
namespace {

constexpr std::int64_t kProbeTokens = 16;

std::optional<json::value> get_json(LoadClient& client, const char* path) {
  const Result<RawAnswer> answer = client.ask("GET", path);
  if (!answer || answer->status != 200) return std::nullopt;
  Result<json::value> value = parse_json(answer->body, path);
  if (!value) return std::nullopt;
  return std::move(*value);
}

}  // namespace

Result<LoadTarget> open_target(const TargetOptions& options) {
  Result<HttpUrl> url = parse_http_url(options.url);
  if (!url) return forward_error(url);
  if (url->path.ends_with("/v1")) url->path.resize(url->path.size() - 3);
  LoadTarget target;
  if (!options.tokenizer_file.empty()) {
    Result<Tokenizer> tokenizer = Tokenizer::load(options.tokenizer_file);
    if (!tokenizer) return forward_error(tokenizer);
    target.tokenizer = std::make_unique<Tokenizer>(std::move(*tokenizer));
    Result<PromptMaker> maker = PromptMaker::make(*target.tokenizer);
    if (!maker) return tl::unexpected(maker.error().within(options.tokenizer_file));
    target.maker.emplace(std::move(*maker));
  }
  Result<std::unique_ptr<LoadClient>> client = LoadClient::make(
      {.url = std::move(*url), .api_key = options.api_key, .request_seconds = options.request_seconds});
  if (!client) return forward_error(client);
  target.client = std::move(*client);
  const Result<RawAnswer> models = target.client->ask("GET", "/v1/models");
  if (!models) return forward_error(models);
  if (models->status == 401)
    return fail(ErrorCode::kInvalidArgument, "{}: the server wants another API key", options.url);
  target.model = options.model;
  const Result<json::value> listed = parse_json(models->body, "/v1/models");
  json::error_code none;
  const json::value* first = listed ? listed->find_pointer("/data/0", none) : nullptr;
  if (first != nullptr && first->is_object()) {
    const json::value* id = first->get_object().if_contains("id");
    if (target.model.empty() && id != nullptr && id->is_string())
      target.model = std::string(id->get_string());
    const json::value* length = first->get_object().if_contains("max_model_len");
    if (length != nullptr && length->is_int64()) target.max_model_len = length->get_int64();
  }
  if (target.model.empty())
    return fail(ErrorCode::kInvalidArgument, "{}: the server lists no model; name one with --model",
                options.url);
  for (const char* path : {"/server_info", "/get_server_info", "/version", "/props"}) {
    if (auto said = get_json(*target.client, path)) {
      target.server = std::move(*said);
      break;
    }
  }
  const Result<ServerCounters> counters = ServerCounters::read(*target.client);
  if (counters) {
    target.pool_tokens = static_cast<std::int64_t>(
        counters->value({"mimo:kv_total_tokens", "sglang:max_total_num_tokens"}).value_or(0));
  }
  return target;
}

Result<std::int64_t> template_overhead(LoadTarget& target, const RequestStyle& style) {
  if (style.endpoint == Endpoint::kCompletions) return 0;
  RequestStyle plain = style;
  plain.stream = false;
  LoadPrompt prompt;
  std::mt19937_64 random(0);
  prompt.text = target.maker->text(random, kProbeTokens);
  prompt.output_tokens = 1;
  const LoadResult result = run_load(*target.client, plain, std::span(&prompt, 1), {});
  const SentRequest& record = result.records.front();
  if (record.failed()) return fail(ErrorCode::kUnavailable, "{}", record.error);
  if (record.n_in < kProbeTokens) {
    return fail(ErrorCode::kInvalidArgument,
                "the server counts {} tokens where --tokenizer has {}: it is not the server's", record.n_in,
                kProbeTokens);
  }
  return record.n_in - kProbeTokens;
}

Status flush_cache(LoadClient& client) {
  std::string said;
  // SGLang's name, then vLLM's.
  for (const char* path : {"/flush_cache", "/reset_prefix_cache"}) {
    const Result<RawAnswer> answer = client.ask("POST", path, "{}");
    if (!answer) return forward_error(answer);
    if (answer->status == 200) return {};
    said = fmt::format("{}: status {}", path, answer->status);
    if (answer->status != 404 && answer->status != 405) break;
  }
  return fail(ErrorCode::kUnavailable, "the prefix cache cannot be flushed ({})", said);
}

}  // namespace mimo
