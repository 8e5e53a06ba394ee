#include "eval/problem_prompt.h"

namespace mimo {

Result<ChatPrompt> make_problem_prompt(const Tokenizer& tokenizer, const ChatFormat* format,
                                       const Problem& problem, std::optional<bool> enable_thinking) {
  if (!problem.completion.empty()) {
    // A text to continue has no think block; what looks like one is text.
    return ChatPrompt{tokenizer.encode(problem.completion, EncodeOptions{}), ThinkBlock::kClosed};
  }
  if (format == nullptr)
    return fail(ErrorCode::kNotFound, "{}: a conversation needs the checkpoint's chat template", problem.id);
  ChatInput input;
  input.messages = &problem.messages;
  input.tools = problem.tools.empty() ? nullptr : &problem.tools;
  input.enable_thinking = enable_thinking ? enable_thinking : problem.enable_thinking;
  Result<ChatPrompt> prompt = make_chat_prompt(*format, tokenizer, input);
  if (!prompt) return tl::unexpected(prompt.error().within(problem.id));
  return prompt;
}

}  // namespace mimo
