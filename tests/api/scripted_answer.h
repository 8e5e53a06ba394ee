// Runs a written-down answer through the parser and a writer, as the server does: tokens come in steps of a
// given size, the choices take turns.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "api/answer_writer.h"
#include "text/answer_parser.h"

namespace mimo {

// Tokens of an answer. "<think>", "</think>", "<tool_call>", "</tool_call>" are tokens of their own,
// everything else is cut into tokens of `bytes` bytes, through characters too. Ends with a token that is
// not shown.
class Script {
 public:
  explicit Script(std::string_view text, std::size_t bytes = 3) {
    while (!text.empty()) {
      const std::string_view marker = marker_at(text);
      if (!marker.empty()) {
        add(marker, answer_marker(marker), true);
        text.remove_prefix(marker.size());
        continue;
      }
      std::size_t length = 1;
      while (length < bytes && length < text.size() && marker_at(text.substr(length)).empty()) ++length;
      add(text.substr(0, length), AnswerMarker::kNone, true);
      text.remove_prefix(length);
    }
    add("<|im_end|>", AnswerMarker::kNone, false);
  }

  struct Token {
    std::string bytes;
    AnswerMarker marker;
    bool shown;
  };

  std::size_t size() const { return tokens_.size(); }
  const Token& token(std::size_t i) const { return tokens_[i]; }
  // The answer ends after `count` tokens by max_tokens.
  void cut(std::size_t count) {
    tokens_.resize(count);
    finish = {.reason = FinishReason::kLength};
  }

  TokenSpeller speller() const {
    std::vector<Token> tokens = tokens_;
    return [tokens](std::int32_t id) -> TokenSpelling {
      if (id < 0 || static_cast<std::size_t>(id) >= tokens.size()) return {};
      return {tokens[static_cast<std::size_t>(id)].bytes, tokens[static_cast<std::size_t>(id)].shown};
    };
  }

  Finish finish{.reason = FinishReason::kEos, .token_id = 2};

 private:
  static std::string_view marker_at(std::string_view text) {
    for (const std::string_view marker : {"<think>", "</think>", "<tool_call>", "</tool_call>"}) {
      if (text.starts_with(marker)) return marker;
    }
    return {};
  }
  void add(std::string_view bytes, AnswerMarker marker, bool shown) {
    tokens_.push_back({std::string(bytes), marker, shown});
  }

  std::vector<Token> tokens_;
};

inline RequestUsage script_usage(const Script& script, std::size_t tokens) {
  RequestUsage usage;
  usage.prompt_tokens = 10;
  usage.cached_tokens = 4;
  usage.completion_tokens = static_cast<std::int64_t>(tokens);
  for (std::size_t i = 0; i < tokens; ++i) {
    if (script.token(i).marker == AnswerMarker::kThinkClose)
      usage.reasoning_tokens = static_cast<std::int64_t>(i + 1);
  }
  usage.prefill_seconds = 0.5;
  usage.decode_seconds = 0.25;
  usage.speculation.verify_steps = 2;
  usage.speculation.proposed = 8;
  usage.speculation.accepted = 5;
  return usage;
}

struct RunOptions {
  std::size_t burst = 1;  // tokens a step
  bool parse = true;      // false: text completions
  ThinkBlock think_block = ThinkBlock::kModelDecides;
};

// All bytes that one HTTP answer would have. `scripts` has one entry for each choice.
inline std::string run_scripts(const ApiRequest& request, const std::vector<Script>& scripts, AnswerHead head,
                               const RunOptions& options = {}) {
  const std::unique_ptr<AnswerWriter> writer = make_answer_writer(request, std::move(head));
  const json::array tools = parser_tools(request);
  std::vector<AnswerParser> parsers;
  for (std::size_t i = 0; i < scripts.size(); ++i) {
    parsers.emplace_back(AnswerParserOptions{.think_block = options.think_block,
                                             .tools = &tools,
                                             .separate_reasoning = request.separate_reasoning,
                                             .parallel_tool_calls = request.parallel_tool_calls});
  }
  std::vector<std::size_t> done(scripts.size());
  std::vector<bool> ended(scripts.size());
  std::string out;
  bool more = true;
  while (more) {
    more = false;
    for (std::size_t i = 0; i < scripts.size(); ++i) {
      if (ended[i]) continue;
      more = true;
      const Script& script = scripts[i];
      std::vector<AnswerDelta> deltas;
      std::vector<SampledToken> tokens;
      AnswerEnd end;
      const std::size_t stop = std::min(script.size(), done[i] + options.burst);
      for (; done[i] < stop && !parsers[i].done(); ++done[i]) {
        const Script::Token& token = script.token(done[i]);
        const int id = static_cast<int>(done[i]);
        tokens.push_back(
            {.id = id, .logprob = -0.5F * static_cast<float>(id), .top = {{id, -0.5F}, {id + 1, -1}}});
        if (request.params.logprobs) {
          tokens.back().top.resize(static_cast<std::size_t>(std::min(*request.params.logprobs, 2)));
        }
        if (!token.shown) continue;
        if (options.parse) {
          parsers[i].push(token.bytes, token.marker, deltas);
        } else {
          deltas.push_back({.kind = DeltaKind::kContent, .text = token.bytes, .name = {}});
        }
      }
      const bool stopped = parsers[i].done();
      ended[i] = done[i] == script.size() || stopped;
      if (ended[i]) {
        if (!stopped) end.finish = script.finish;
        if (options.parse)
          parsers[i].finish(end.finish && end.finish->reason == FinishReason::kLength, deltas);
        end.calls = parsers[i].calls();
      }
      const RequestUsage usage = script_usage(script, done[i]);
      writer->push(static_cast<std::int64_t>(i), {.deltas = deltas, .tokens = tokens, .usage = usage}, out);
      if (ended[i]) writer->finish(static_cast<std::int64_t>(i), end, out);
    }
  }
  EXPECT_TRUE(writer->complete());
  return out;
}

inline AnswerHead test_head() {
  AnswerHead head;
  head.id = "chatcmpl-x";
  head.created = 1700000000;
  head.system_fingerprint = "fp";
  head.prompt_ids = {{7, 8}};
  return head;
}

}  // namespace mimo
