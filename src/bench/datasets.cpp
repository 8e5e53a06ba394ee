#include "bench/datasets.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "core/check.h"
#include "core/jsonl.h"

namespace mimo {
namespace {

constexpr std::int64_t kDefaultCount = 100;
constexpr std::int64_t kDefaultOutput = 128;
// As vLLM's and SGLang's tools take them, so that numbers can be compared: shorter ones say nothing, longer ones
// are few.
constexpr std::int64_t kShareGptShortest = 4;
constexpr std::int64_t kShareGptLongestPrompt = 1024;
constexpr std::int64_t kShareGptLongest = 2048;
constexpr std::size_t kMaxShareGpt = std::size_t{2} << 30;

std::mt19937_64 generator(std::uint64_t seed, std::uint64_t run, std::uint64_t part) {
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  const auto high = [](std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); };
  std::seed_seq mixed{low(seed), high(seed), low(run), high(run), low(part), high(part)};
  return std::mt19937_64(mixed);
}

std::int64_t draw_length(std::mt19937_64& random, std::int64_t length, double ratio) {
  const auto low = static_cast<std::int64_t>(std::ceil(static_cast<double>(length) * (1 - ratio)));
  const auto high = static_cast<std::int64_t>(std::floor(static_cast<double>(length) * (1 + ratio)));
  const std::int64_t least = std::max<std::int64_t>(low, 1);
  if (high <= least) return least;
  return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - least + 1));
}

Result<std::int64_t> text_tokens(const DatasetOptions& options, std::int64_t tokens) {
  if (tokens > options.overhead) return tokens - options.overhead;
  return fail(ErrorCode::kInvalidArgument,
              "a prompt of {} tokens cannot be had: the chat template alone has {}", tokens,
              options.overhead);
}

Result<std::vector<LoadPrompt>> random_prompts(const DatasetOptions& options, const PromptMaker& maker,
                                               std::uint64_t part) {
  std::mt19937_64 shape = generator(options.seed, 0, 0);
  std::mt19937_64 content = generator(options.seed, options.run, part);
  std::vector<LoadPrompt> prompts(static_cast<std::size_t>(options.count.value_or(kDefaultCount)));
  for (LoadPrompt& prompt : prompts) {
    prompt.prompt_tokens = draw_length(shape, options.input_tokens, options.range_ratio);
    prompt.output_tokens =
        draw_length(shape, options.output_tokens.value_or(kDefaultOutput), options.range_ratio);
    if (options.dataset == Dataset::kRandomIds) {
      prompt.ids = maker.ids(content, prompt.prompt_tokens);
    } else {
      const Result<std::int64_t> tokens = text_tokens(options, prompt.prompt_tokens);
      if (!tokens) return forward_error(tokens);
      prompt.text = maker.text(content, *tokens);
    }
  }
  return prompts;
}

// Groups whose prompts begin alike, in random order.
std::vector<LoadPrompt> shared_prefix_prompts(const DatasetOptions& options, const PromptMaker& maker,
                                              std::uint64_t part) {
  std::mt19937_64 shape = generator(options.seed, 0, 0);
  std::mt19937_64 content = generator(options.seed, options.run, part);
  const bool ids = options.endpoint == Endpoint::kCompletions;
  std::vector<LoadPrompt> prompts;
  for (std::int64_t group = 0; group < options.groups; ++group) {
    const std::vector<std::int32_t> shared =
        ids ? maker.ids(content, options.system_tokens) : std::vector<std::int32_t>();
    const std::string system = ids ? std::string() : maker.text(content, options.system_tokens);
    for (std::int64_t i = 0; i < options.prompts_per_group; ++i) {
      LoadPrompt prompt;
      prompt.output_tokens = options.output_tokens.value_or(kDefaultOutput);
      if (ids) {
        prompt.ids = shared;
        const std::vector<std::int32_t> question = maker.ids(content, options.question_tokens);
        prompt.ids.insert(prompt.ids.end(), question.begin(), question.end());
        prompt.prompt_tokens = std::ssize(prompt.ids);
      } else {
        prompt.text = system + "\n\n" + maker.text(content, options.question_tokens);
      }
      prompts.push_back(std::move(prompt));
    }
  }
  std::shuffle(prompts.begin(), prompts.end(), shape);
  return prompts;
}

// As many as were asked for, in an order of their own.
Result<std::vector<LoadPrompt>> choose(const DatasetOptions& options, std::vector<LoadPrompt> prompts) {
  if (prompts.empty()) return fail(ErrorCode::kInvalidArgument, "{}: no usable prompt", options.path);
  if (!options.count) return prompts;
  if (std::cmp_less(prompts.size(), *options.count)) {
    return fail(ErrorCode::kInvalidArgument, "{}: has {} usable prompts, {} were asked for", options.path,
                prompts.size(), *options.count);
  }
  std::mt19937_64 shape = generator(options.seed, 0, 0);
  if (options.dataset == Dataset::kShareGpt) std::shuffle(prompts.begin(), prompts.end(), shape);
  prompts.resize(static_cast<std::size_t>(*options.count));
  return prompts;
}

std::string turn_text(const json::value& turn) {
  const json::object* object = turn.if_object();
  const json::value* value = object == nullptr ? nullptr : object->if_contains("value");
  const json::string* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr ? std::string() : std::string(*text);
}

Result<std::vector<LoadPrompt>> sharegpt_prompts(const DatasetOptions& options, const Tokenizer& tokenizer) {
  const Result<json::value> file = parse_json_file(options.path, {.max_bytes = kMaxShareGpt});
  if (!file) return forward_error(file);
  const json::array* conversations = file->if_array();
  if (conversations == nullptr)
    return fail(ErrorCode::kCorrupt, "{}: expected a list of conversations", options.path);
  std::vector<LoadPrompt> prompts;
  for (const json::value& item : *conversations) {
    const json::object* object = item.if_object();
    const json::value* turns = object == nullptr ? nullptr : object->if_contains("conversations");
    if (turns == nullptr || !turns->is_array() || turns->get_array().size() < 2) continue;
    LoadPrompt prompt;
    prompt.text = turn_text(turns->get_array()[0]);
    const std::int64_t input = std::ssize(tokenizer.encode(prompt.text, {}));
    prompt.output_tokens =
        options.output_tokens.value_or(std::ssize(tokenizer.encode(turn_text(turns->get_array()[1]), {})));
    if (input < kShareGptShortest || prompt.output_tokens < kShareGptShortest ||
        input > kShareGptLongestPrompt || input + prompt.output_tokens > kShareGptLongest)
      continue;
    if (options.endpoint == Endpoint::kCompletions) prompt.prompt_tokens = input;
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// One line: "prompt" (text), "token_ids" or "messages"; "output_tokens" if it has any.
Status read_line(const JsonLine& line, const DatasetOptions& options, std::vector<LoadPrompt>& prompts) {
  LoadPrompt prompt;
  const json::object& object = line.object();
  if (object.contains("token_ids")) {
    const Result<json::array> ids = line.list("token_ids");
    if (!ids) return forward_error(ids);
    for (const json::value& id : *ids) {
      const std::int64_t* number = id.if_int64();
      if (number == nullptr || *number < 0 || *number > INT32_MAX)
        return fail(ErrorCode::kCorrupt, "{}: field \"token_ids\": expected token ids", line.where());
      prompt.ids.push_back(static_cast<std::int32_t>(*number));
    }
    prompt.prompt_tokens = std::ssize(prompt.ids);
    if (options.endpoint != Endpoint::kCompletions)
      return fail(ErrorCode::kInvalidArgument, "{}: token_ids can only be sent to completions", line.where());
  } else if (object.contains("messages")) {
    Result<json::array> messages = line.list("messages");
    if (!messages) return forward_error(messages);
    prompt.messages = std::move(*messages);
    if (options.endpoint == Endpoint::kCompletions)
      return fail(ErrorCode::kInvalidArgument, "{}: messages cannot be sent to completions", line.where());
  } else {
    Result<std::string> text = line.text("prompt");
    if (!text) return forward_error(text);
    prompt.text = std::move(*text);
  }
  prompt.output_tokens = options.output_tokens.value_or(kDefaultOutput);
  if (const json::value* output = object.if_contains("output_tokens");
      output != nullptr && !options.output_tokens) {
    const std::int64_t* number = output->if_int64();
    if (number == nullptr || *number < 1)
      return fail(ErrorCode::kCorrupt, "{}: field \"output_tokens\": expected a positive integer",
                  line.where());
    prompt.output_tokens = *number;
  }
  prompts.push_back(std::move(prompt));
  return {};
}

}  // namespace

bool has_own_content(Dataset dataset) { return dataset != Dataset::kShareGpt && dataset != Dataset::kFile; }

Result<std::vector<LoadPrompt>> make_prompts(const DatasetOptions& options, const PromptMaker* maker,
                                             std::uint64_t part) {
  MIMO_CHECK(options.dataset != Dataset::kAgents);
  if (options.dataset == Dataset::kFile) {
    std::vector<LoadPrompt> prompts;
    const Status read =
        read_jsonl(options.path, [&](const JsonLine& line) { return read_line(line, options, prompts); });
    if (!read) return forward_error(read);
    return choose(options, std::move(prompts));
  }
  MIMO_CHECK(maker != nullptr);
  if (options.dataset == Dataset::kShareGpt) {
    Result<std::vector<LoadPrompt>> prompts = sharegpt_prompts(options, maker->tokenizer());
    if (!prompts) return prompts;
    return choose(options, std::move(*prompts));
  }
  if (options.dataset == Dataset::kSharedPrefix) return shared_prefix_prompts(options, *maker, part);
  if (options.dataset == Dataset::kRandomIds && options.endpoint != Endpoint::kCompletions)
    return fail(ErrorCode::kInvalidArgument, "random-ids can only be sent to completions; use random");
  return random_prompts(options, *maker, part);
}

}  // namespace mimo
