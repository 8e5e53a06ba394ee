#include "api/refused_fields.h"

#include <cstdint>
#include <initializer_list>

namespace mimo {
namespace {

// The values that ask for nothing.
enum class Neutral : std::uint8_t {
  kNothing,  // only null
  kFalsy,    // false, 0, "", [], {}
  kOne,      // the number 1
  kTrue,     // true
};

struct RefusedField {
  const char* name;
  Neutral neutral;
  const char* advice;
};

constexpr RefusedField kEverywhere[] = {
    {"prompt_logprobs", Neutral::kNothing, "log-probabilities of prompts are not computed"},
    {"allowed_token_ids", Neutral::kNothing, "use logit_bias or structured_outputs"},
    {"bad_words", Neutral::kFalsy, "use logit_bias with token ids"},
    {"logits_processors", Neutral::kFalsy, "no code of clients is run"},
    {"custom_logit_processor", Neutral::kFalsy, "no code of clients is run"},
    {"custom_params", Neutral::kFalsy, "no code of clients is run"},
    {"use_beam_search", Neutral::kFalsy, "answers are sampled"},
    {"length_penalty", Neutral::kOne, "it belongs to beam search"},
    {"early_stopping", Neutral::kFalsy, "it belongs to beam search"},
    {"truncate_prompt_tokens", Neutral::kNothing, "shorten the prompt"},
    {"prompt_embeds", Neutral::kFalsy, "prompts are text or token ids"},
    {"detokenize", Neutral::kTrue, "answers are text; return_token_ids adds the ids"},
    {"lora_path", Neutral::kFalsy, "no adapters are loaded"},
    {"return_hidden_states", Neutral::kFalsy, "hidden states are not returned"},
    {"return_routed_experts", Neutral::kFalsy, "expert choices are not returned"},
    {"kv_transfer_params", Neutral::kFalsy, "prefill and decode run in one server"},
    {"routed_dp_rank", Neutral::kFalsy, "there is one data-parallel group"},
    {"data_parallel_rank", Neutral::kFalsy, "there is one data-parallel group"},
    {"typical_p", Neutral::kOne, "use top_p or min_p"},
    {"tfs_z", Neutral::kOne, "use top_p or min_p"},
    {"top_a", Neutral::kFalsy, "use min_p"},
    {"mirostat", Neutral::kFalsy, "use temperature and top_p"},
    {"mirostat_mode", Neutral::kFalsy, "use temperature and top_p"},
    {"dynatemp_range", Neutral::kFalsy, "use temperature"},
    {"dry_multiplier", Neutral::kFalsy, "use frequency_penalty"},
    {"xtc_probability", Neutral::kFalsy, "use temperature"},
    {"repeat_penalty", Neutral::kOne, "use repetition_penalty"},
    {"n_predict", Neutral::kNothing, "use max_tokens"},
    {"structural_tag", Neutral::kFalsy, "use tools with strict, or structured_outputs"},
    {"guided_whitespace_pattern", Neutral::kNothing, "white space in JSON answers is not configurable"},
};

constexpr RefusedField kChat[] = {
    {"grammar", Neutral::kFalsy, "use ebnf"},
    {"chat_template", Neutral::kFalsy, "the checkpoint's template is used"},
    {"documents", Neutral::kFalsy, "put them into a message"},
    {"echo", Neutral::kFalsy, "it belongs to /v1/completions"},
    {"audio", Neutral::kFalsy, "answers are text"},
    {"web_search_options", Neutral::kNothing, "there is no web search; use a tool"},
    {"mm_processor_kwargs", Neutral::kFalsy, "media are not supported yet"},
    {"media_io_kwargs", Neutral::kFalsy, "media are not supported yet"},
    {"stream_reasoning", Neutral::kTrue, "reasoning is streamed; include_reasoning false leaves it out"},
};

constexpr RefusedField kCompletion[] = {
    {"grammar", Neutral::kFalsy, "use ebnf"},
    {"suffix", Neutral::kFalsy, "the model does not fill in the middle"},
    {"messages", Neutral::kNothing, "it belongs to /v1/chat/completions"},
    {"tools", Neutral::kFalsy, "it belongs to /v1/chat/completions"},
    {"functions", Neutral::kFalsy, "it belongs to /v1/chat/completions"},
    {"tool_choice", Neutral::kNothing, "it belongs to /v1/chat/completions"},
    {"top_logprobs", Neutral::kFalsy, "here logprobs is the number"},
    {"chat_template_kwargs", Neutral::kFalsy, "it belongs to /v1/chat/completions"},
    {"thinking", Neutral::kNothing, "it belongs to /v1/chat/completions"},
    {"thinking_token_budget", Neutral::kNothing, "it belongs to /v1/chat/completions"},
};

constexpr RefusedField kMessages[] = {
    {"logprobs", Neutral::kFalsy, "this API has no place for them; use /v1/chat/completions"},
    {"top_logprobs", Neutral::kFalsy, "this API has no place for them; use /v1/chat/completions"},
    {"n", Neutral::kOne, "this API gives one answer"},
    {"best_of", Neutral::kOne, "this API gives one answer"},
    {"stop", Neutral::kFalsy, "use stop_sequences"},
    {"response_format", Neutral::kNothing, "use output_config.format"},
    {"functions", Neutral::kFalsy, "use tools"},
    {"stream_options", Neutral::kNothing, "usage is part of every stream of this API"},
    {"return_token_ids", Neutral::kFalsy, "this API has no place for them; use /v1/chat/completions"},
    {"mcp_servers", Neutral::kFalsy, "tools are run by the client"},
    {"container", Neutral::kNothing, "tools are run by the client"},
};

bool asks_for_nothing(const json::value& value, Neutral neutral) {
  switch (neutral) {
    case Neutral::kNothing:
      return false;
    case Neutral::kOne:
      return value.is_number() && value.to_number<double>() == 1;
    case Neutral::kTrue:
      return value.is_bool() && value.get_bool();
    case Neutral::kFalsy:
      break;
  }
  switch (value.kind()) {
    case json::kind::bool_:
      return !value.get_bool();
    case json::kind::string:
      return value.get_string().empty();
    case json::kind::array:
      return value.get_array().empty();
    case json::kind::object:
      return value.get_object().empty();
    default:
      return value.is_number() && value.to_number<double>() == 0;
  }
}

template <std::size_t N>
void refuse_all(ObjectReader& body, const RefusedField (&fields)[N]) {
  for (const RefusedField& field : fields) {
    const json::value* value = body.value(field.name);
    if (value == nullptr || asks_for_nothing(*value, field.neutral)) continue;
    body.problem(field.name,
                 fmt::format("got {}, but this is not supported: {}", shown_value(*value), field.advice));
  }
}

}  // namespace

void refuse_unsupported_fields(ObjectReader& body, ApiRoute route) {
  refuse_all(body, kEverywhere);
  switch (route) {
    case ApiRoute::kChat:
      return refuse_all(body, kChat);
    case ApiRoute::kCompletion:
      return refuse_all(body, kCompletion);
    case ApiRoute::kMessages:
      return refuse_all(body, kMessages);
  }
}

void ignore_harmless_fields(ObjectReader& body) {
  for (const char* name : {
           // Labels and hints for whoever runs a service.
           "user",
           "metadata",
           "store",
           "service_tier",
           "safety_identifier",
           "prompt_cache_key",
           "prompt_cache_retention",
           "vllm_xargs",
           "inference_geo",
           "anthropic_version",
           "anthropic_beta",
           // Hints about speed.
           "prediction",
           "cache_prompt",
           // The vocabulary has no begin-of-text token, and its special tokens carry their own spacing.
           "add_special_tokens",
           "spaces_between_special_tokens",
           // There is one compiler of constraints.
           "guided_decoding_backend",
           // Asks for rewriting of the history, which is the client's to do.
           "context_management",
       }) {
    body.ignore(name);
  }
}

}  // namespace mimo
