#include "bench/prompt_source.h"

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "core/file.h"

namespace mimo {
namespace {

constexpr std::size_t kMaxText = 1u << 30;

std::mt19937_64 generator(const PromptSourceOptions& options, int which) {
  const auto part = [](std::uint64_t value, int shift) { return static_cast<std::uint32_t>(value >> shift); };
  std::seed_seq mixed{part(options.seed, 0), part(options.seed, 32), part(options.run, 0),
                      part(options.run, 32), static_cast<std::uint32_t>(which)};
  return std::mt19937_64(mixed);
}

// Pieces of one tokenized text.
Result<PromptSource> text_source(const LoadTarget& target, const PromptSourceOptions& options) {
  if (options.endpoint != Endpoint::kCompletions)
    return fail(ErrorCode::kInvalidArgument,
                "a text file is cut into token ids, which only completions take");
  const Result<std::string> text = read_file(options.text_file, kMaxText);
  if (!text) return forward_error(text);
  auto ids = std::make_shared<std::vector<std::int32_t>>(target.tokenizer->encode(*text, {}));
  return [ids, options](std::int64_t tokens, int which) -> Result<LoadPrompt> {
    const std::int64_t room = std::ssize(*ids) - tokens;
    if (room < 0) {
      return fail(ErrorCode::kInvalidArgument, "{}: has {} tokens, a prompt needs {}", options.text_file,
                  ids->size(), tokens);
    }
    std::mt19937_64 random = generator(options, which);
    const auto begin =
        ids->begin() + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(room + 1));
    LoadPrompt prompt;
    prompt.ids.assign(begin, begin + tokens);
    prompt.prompt_tokens = tokens;
    return prompt;
  };
}

}  // namespace

Result<PromptSource> make_prompt_source(LoadTarget& target, const RequestStyle& style,
                                        const PromptSourceOptions& options) {
  if (!options.text_file.empty()) return text_source(target, options);
  const Result<std::int64_t> overhead = template_overhead(target, style);
  if (!overhead) return forward_error(overhead);
  return [&target, options, overhead = *overhead](std::int64_t tokens, int which) -> Result<LoadPrompt> {
    std::mt19937_64 random = generator(options, which);
    LoadPrompt prompt;
    prompt.prompt_tokens = tokens;
    if (options.endpoint == Endpoint::kCompletions) {
      prompt.ids = target.maker->ids(random, tokens);
      return prompt;
    }
    if (tokens <= overhead) {
      return fail(ErrorCode::kInvalidArgument,
                  "a prompt of {} tokens cannot be had: the chat template alone has {}", tokens, overhead);
    }
    prompt.text = target.maker->text(random, tokens - overhead);
    return prompt;
  };
}

}  // namespace mimo
