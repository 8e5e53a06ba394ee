// The problem sets of `mimo eval`: where each gets its problems, and its defaults.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/eval_options.h"
#include "core/result.h"
#include "eval/problem.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"

namespace mimo {

// Text side of a checkpoint. The format is null where the directory has no chat template.
struct TextModel {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatFormat> format;
};

Result<TextModel> load_text_model(const std::string& directory);

struct EvalSet {
  const char* name;  // as the subcommand spells it
  const char* description;
  std::int64_t max_tokens;                   // of an answer, where --max-tokens is absent
  std::int64_t max_tokens_without_thinking;  // the same, with --no-thinking
  int concurrency;
  bool builds_prompts = false;                             // to a length in tokens: needs the text side
  void (*add_options)(CLI::App&, EvalOptions&) = nullptr;  // of this set alone
  // `text` is filled when the model runs here or the set builds prompts.
  Result<std::vector<Problem>> (*load)(const EvalOptions& options, const TextModel& text) = nullptr;
};

std::span<const EvalSet> eval_sets();

}  // namespace mimo
