// The problem sets that come as files of one problem a line.
#pragma once

#include <string>
#include <vector>

#include "core/result.h"
#include "eval/problem.h"

namespace mimo {

// {"id", "question", "answer": an integer as text}: the question alone is the user's message. Answers must be
// equal exactly.
Result<std::vector<Problem>> load_nano_gsm(const std::string& path);

// {"id", "tools", "messages", "expected": [{"name", "arguments"}], "enable_thinking"}.
Result<std::vector<Problem>> load_toolcall(const std::string& path);

struct Gsm8kOptions {
  // chat: the question and an instruction to box the answer, after `shots` worked examples of shots_file, as
  // one user message. completion: "Question: ...\nAnswer:" after the first `shots` problems of the file
  // itself, which are then not asked.
  enum class Protocol : std::uint8_t { kChat, kCompletion };
  Protocol protocol = Protocol::kChat;
  int shots = 0;
  std::string shots_file;  // kChat with shots: the train split
};

// {"question", "answer": worked steps and "#### N"}; ids are gsm8k-NNNN by line.
Result<std::vector<Problem>> load_gsm8k(const std::string& path, const Gsm8kOptions& options);

}  // namespace mimo
