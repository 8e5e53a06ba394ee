#include "api/request_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "api/refused_fields.h"

namespace mimo {
namespace {

constexpr std::size_t kMaxIdBytes = 128;
constexpr std::size_t kMaxSaltBytes = 1024;

void set(std::optional<double> value, double& field) {
  if (value) field = *value;
}
void set(std::optional<bool> value, bool& field) {
  if (value) field = *value;
}

void read_seed(ObjectReader& body, SamplingParams& params) {
  const json::value* seed = body.value("seed");
  if (seed == nullptr) return;
  if (const std::uint64_t* large = seed->if_uint64()) {
    params.seed = *large;
  } else if (const std::optional<std::int64_t> number = as_integer(*seed)) {
    if (*number != -1) {
      params.seed = static_cast<std::uint64_t>(*number);
    } else {
      params.seed.reset();
    }
  } else {
    body.refuse("seed", "an integer of 64 bits");
  }
}

void read_logit_bias(ObjectReader& body, int vocab, SamplingParams& params) {
  const json::object* bias = body.object("logit_bias");
  if (bias == nullptr) return;
  params.logit_bias.clear();
  for (const auto& [key, value] : *bias) {
    const std::string_view name(key.data(), key.size());
    std::int64_t id = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error != std::errc() || end != name.data() + name.size() || id < 0 || id >= vocab) {
      body.problem("logit_bias", fmt::format("got the key {}, expected token ids from 0 to {}",
                                             shown_value(json::value(json::string_view(key))), vocab - 1));
      return;
    }
    const double number = value.is_number() ? value.to_number<double>() : 1000;
    if (number < -100 || number > 100) {
      body.problem(fmt::format("logit_bias.{}", id),
                   fmt::format("got {}, expected a number from -100 to 100", shown_value(value)));
      return;
    }
    params.logit_bias[id] = number;
  }
}

std::int64_t choices_of(const ApiRequest& request) {
  return request.n * static_cast<std::int64_t>(std::max<std::size_t>(1, request.prompts.size()));
}

}  // namespace

ApiResult<json::object> parse_body(std::string_view body, const ApiLimits& limits) {
  if (body.size() > limits.max_body_bytes) {
    return tl::unexpected(api_error(413, fmt::format("request body: got {} bytes, at most {} are allowed",
                                                     body.size(), limits.max_body_bytes)));
  }
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return tl::unexpected(api_error(400, "request body: got nothing, expected a JSON object"));
  }
  Result<json::value> value = parse_json(body, "request body", {.max_depth = limits.max_depth});
  if (!value) return tl::unexpected(api_error(value.error()));
  if (json::object* object = value->if_object()) return std::move(*object);
  return tl::unexpected(
      api_error(400, fmt::format("request body: got {}, expected a JSON object", shown_value(*value))));
}

std::string read_model(ObjectReader& body, const ServedModels& models) {
  const std::string name = body.text("model").value_or("");
  if (!name.empty() && !models.serves(name)) body.problems().add(model_not_found(name));
  return models.names.empty() ? name : models.names.front();
}

void read_sampling(ObjectReader& body, const ApiContext& context, SamplingParams& params) {
  set(body.number("temperature"), params.temperature);
  set(body.number("top_p"), params.top_p);
  set(body.number("min_p"), params.min_p);
  set(body.number("repetition_penalty"), params.repetition_penalty);
  set(body.number("presence_penalty"), params.presence_penalty);
  set(body.number("frequency_penalty"), params.frequency_penalty);
  params.top_k = body.integer("top_k").value_or(params.top_k);
  params.min_tokens = body.integer("min_tokens").value_or(params.min_tokens);
  set(body.boolean("ignore_eos"), params.ignore_eos);
  // SGLang's name for the same.
  set(body.boolean("no_stop_trim"), params.include_stop_str_in_output);
  set(body.boolean("include_stop_str_in_output"), params.include_stop_str_in_output);
  read_seed(body, params);
  read_logit_bias(body, context.vocab, params);
  if (const json::array* ids = body.array("stop_token_ids")) {
    params.stop_token_ids.clear();
    if (ids->size() > kMaxStopTokenIds) {
      body.problem("stop_token_ids",
                   fmt::format("got {} ids, expected at most {}", ids->size(), kMaxStopTokenIds));
    } else {
      for (const std::int32_t id : read_ids(*ids, "stop_token_ids", context.vocab, body.problems())) {
        params.stop_token_ids.push_back(id);
      }
    }
  }
}

void read_max_tokens(ObjectReader& body, SamplingParams& params) {
  const std::optional<std::int64_t> old_name = body.integer("max_tokens", 1);
  const std::optional<std::int64_t> new_name = body.integer("max_completion_tokens", 1);
  if (new_name) {
    params.max_tokens = new_name;
  } else if (old_name) {
    params.max_tokens = old_name;
  }
}

void read_stop(ObjectReader& body, std::string_view key, SamplingParams& params) {
  const json::value* stop = body.value(key);
  if (stop == nullptr) return;
  params.stop.clear();
  const auto add = [&](const json::value& item, const std::string& at) {
    if (!item.is_string() || item.get_string().empty() || item.get_string().size() > kMaxStopStringBytes) {
      body.problem(at, fmt::format("got {}, expected a string of 1 to {} bytes", shown_value(item),
                                   kMaxStopStringBytes));
      return;
    }
    params.stop.emplace_back(as_view(item.get_string()));
  };
  if (const json::array* list = stop->if_array()) {
    if (list->size() > kMaxStopStrings) {
      body.problem(key, fmt::format("got {} strings, expected at most {}", list->size(), kMaxStopStrings));
      return;
    }
    for (std::size_t i = 0; i < list->size(); ++i) add((*list)[i], fmt::format("{}[{}]", key, i));
  } else {
    add(*stop, std::string(key));
  }
}

void read_stream(ObjectReader& body, ApiRequest& request) {
  set(body.boolean("stream"), request.stream);
  const json::object* options = body.object("stream_options");
  if (options == nullptr) return;
  ObjectReader reader(*options, body.at("stream_options"), body.problems());
  set(reader.boolean("include_usage"), request.include_usage);
  set(reader.boolean("continuous_usage_stats"), request.continuous_usage);
  if (!request.stream) body.problem("stream_options", "is allowed only when stream is true");
}

void read_n(ObjectReader& body, const ApiLimits& limits, ApiRequest& request) {
  const std::optional<std::int64_t> n = body.integer("n", 1, limits.max_n);
  request.n = n.value_or(1);
  const std::optional<std::int64_t> best_of = body.integer("best_of");
  if (best_of && *best_of != request.n) {
    body.problem("best_of", fmt::format("got {}, expected the same as n, which is {}: answers are not ranked",
                                        *best_of, request.n));
  }
  if (choices_of(request) > static_cast<std::int64_t>(limits.max_choices)) {
    body.problem("n", fmt::format("{} prompts with {} answers each, expected at most {} answers in all",
                                  request.prompts.size(), request.n, limits.max_choices));
  }
}

void read_request_options(ObjectReader& body, ApiRequest& request) {
  for (const char* key : {"rid", "request_id"}) {
    if (std::optional<std::string> id = body.text(key)) {
      const bool printable = std::all_of(id->begin(), id->end(), [](char c) { return c > 0x20 && c < 0x7F; });
      if (id->empty() || id->size() > kMaxIdBytes || !printable) {
        body.refuse(key, fmt::format("1 to {} printable ASCII characters without spaces", kMaxIdBytes));
      }
      request.request_id = std::move(*id);
    }
  }
  request.priority = static_cast<int>(
      body.integer("priority", std::numeric_limits<int>::min(), std::numeric_limits<int>::max()).value_or(0));
  for (const char* key : {"cache_salt", "extra_key"}) {
    if (const std::optional<std::string> salt = body.text(key)) {
      if (salt->size() > kMaxSaltBytes) {
        body.problem(key, fmt::format("got {} bytes, expected at most {}", salt->size(), kMaxSaltBytes));
      }
      // Two salts of one request are kept apart from one salt that spells both.
      if (!salt->empty()) request.cache_salt += fmt::format("{}:{}={};", salt->size(), key, *salt);
    }
  }
  set(body.boolean("skip_special_tokens"), request.skip_special_tokens);
  set(body.boolean("return_token_ids"), request.return_token_ids);
  set(body.boolean("return_tokens_as_token_ids"), request.return_tokens_as_token_ids);
  set(body.boolean("timings"), request.timings);
}

void read_template_kwargs(ObjectReader& body, const ApiContext& context, Conversation& conversation) {
  conversation.enable_thinking = context.enable_thinking;
  if (const std::optional<std::string> effort = body.text("reasoning_effort")) {
    if (*effort == "none") conversation.enable_thinking = false;
  }
  if (const json::object* thinking = body.object("thinking")) {
    ObjectReader reader(*thinking, body.at("thinking"), body.problems());
    const std::string type = reader.text("type").value_or("");
    if (type == "enabled" || type == "adaptive") {
      conversation.enable_thinking = true;
    } else if (type == "disabled") {
      conversation.enable_thinking = false;
    } else {
      reader.refuse("type", "\"enabled\", \"disabled\" or \"adaptive\"");
    }
  }
  if (const std::optional<bool> enable = body.boolean("enable_thinking"))
    conversation.enable_thinking = enable;
  const json::object* kwargs = body.object("chat_template_kwargs");
  if (kwargs == nullptr) return;
  ObjectReader reader(*kwargs, body.at("chat_template_kwargs"), body.problems());
  if (const std::optional<bool> enable = reader.boolean("enable_thinking"))
    conversation.enable_thinking = enable;
  for (const char* key : {"messages", "tools", "add_generation_prompt"}) {
    if (kwargs->contains(key)) reader.problem(key, "this name is set by the request itself");
  }
  conversation.template_kwargs = *kwargs;
  // A null would be a value to the template.
  if (const json::value* enable = kwargs->if_contains("enable_thinking");
      enable != nullptr && enable->is_null()) {
    conversation.template_kwargs.erase("enable_thinking");
  }
}

void read_thinking_budget(ObjectReader& body, const ApiContext& context, ApiRequest& request) {
  if (const std::optional<std::string> effort = body.text("reasoning_effort")) {
    if (*effort == "low" || *effort == "minimal") {
      request.thinking_budget = context.effort_budgets.low;
    } else if (*effort == "medium") {
      request.thinking_budget = context.effort_budgets.medium;
    } else if (*effort == "high") {
      request.thinking_budget = context.effort_budgets.high;
    } else if (*effort != "none" && *effort != "xhigh" && *effort != "max") {
      body.refuse("reasoning_effort",
                  "\"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"");
    }
  }
  if (const json::object* thinking = body.object("thinking")) {
    ObjectReader reader(*thinking, body.at("thinking"), body.problems());
    if (const auto budget = reader.integer("budget_tokens", 1)) request.thinking_budget = budget;
  }
  if (const auto budget = body.integer("thinking_token_budget", 0)) request.thinking_budget = budget;
}

TokenIds read_ids(const json::array& list, std::string_view path, int vocab, RequestProblem& problem) {
  TokenIds ids;
  ids.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::optional<std::int64_t> id = as_integer(list[i]);
    if (!id || *id < 0 || *id >= vocab) {
      problem.add(fmt::format("{}[{}]", path, i),
                  fmt::format("got {}, expected a token id from 0 to {}", shown_value(list[i]), vocab - 1));
      return {};
    }
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return ids;
}

ApiResult<ApiRequest> finish_request(ObjectReader& body, const ApiContext& context, ApiRequest request) {
  refuse_unsupported_fields(body, request.route);
  if (request.priority != 0 && !context.priorities) {
    body.problem("priority",
                 fmt::format("got {}, but this server runs without --enable-priority-scheduling, so that "
                             "only 0 is possible",
                             request.priority));
  }
  ignore_harmless_fields(body);
  if (!body.failed()) {
    if (const Status valid = validate(request.params, context.vocab); !valid) {
      // Its messages begin with the name of the field.
      const std::string& message = valid.error().message;
      ApiError error = api_error(valid.error());
      error.param = message.substr(0, message.find(':'));
      body.problems().add(std::move(error));
    }
  }
  if (body.failed()) return tl::unexpected(body.problems().error());
  request.unknown_fields = body.unread();
  return request;
}

}  // namespace mimo
