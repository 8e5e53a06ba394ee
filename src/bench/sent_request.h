// What is known of one request when it has ended. Times are seconds on the client's monotonic clock; token counts come
// from the server's usage, never from counting events.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mimo {

// An event that carried generated text.
struct TextEvent {
  double at = 0;
  std::int64_t tokens = -1;  // generated since the event before it; -1: the server does not say
};

struct SentRequest {
  std::string id;
  int round = 0;
  std::int64_t wanted_in = 0;  // 0: not known
  std::int64_t wanted_out = 0;

  double due = 0;     // when it should have been sent
  double t0 = 0;      // just before its first byte was written
  double t1 = -1;     // arrival of the first event with generated text; -1: none
  double t_end = -1;  // arrival of the last byte before [DONE], or of the JSON body
  std::vector<TextEvent> events;
  bool first_is_end = false;  // no event had text: t1 is that of the event with finish_reason

  std::int64_t n_in = 0;
  std::int64_t n_out = 0;
  std::optional<std::int64_t> n_cached;  // none: the server does not say
  std::int64_t n_host = 0;               // of n_cached, what came back from host memory
  std::int64_t draft_steps = 0;          // with drafts; 0: none, or the server does not say
  std::int64_t drafts_accepted = 0;
  std::string finish;
  std::string text;               // generated, reasoning and arguments included
  std::vector<std::int32_t> ids;  // with return_token_ids
  std::string error;              // empty: it ended well

  bool failed() const { return !error.empty(); }
  // Tokens that a step with drafts gave, the bonus token included; none: not known.
  std::optional<double> accept_length() const {
    if (draft_steps <= 0) return std::nullopt;
    return 1 + static_cast<double>(drafts_accepted) / static_cast<double>(draft_steps);
  }
  double latency() const { return t_end - t0; }
  // None: not streamed, or nothing was generated.
  std::optional<double> ttft() const { return t1 < 0 ? std::nullopt : std::optional<double>(t1 - t0); }
  // Seconds a token after the first; none for fewer than two tokens.
  std::optional<double> tpot() const {
    if (t1 < 0 || n_out < 2) return std::nullopt;
    return (t_end - t1) / static_cast<double>(n_out - 1);
  }
};

}  // namespace mimo
