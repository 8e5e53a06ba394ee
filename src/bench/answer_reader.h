// Reads the answer of one request, streamed or whole, into its record. Knows OpenAI's two dialects, Anthropic's, and
// what vLLM, SGLang and llama.cpp's server add to them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "bench/endpoint.h"
#include "bench/sent_request.h"
#include "bench/sse_reader.h"
#include "core/json.h"
#include "core/result.h"

namespace mimo {

class AnswerReader {
 public:
  // `record` must outlive it.
  AnswerReader(Endpoint endpoint, SentRequest& record) : endpoint_(endpoint), record_(record) {}

  // An event of a stream that arrived at `at`.
  Status event(const SseEvent& event, double at);

  // The whole body of an answer that is not streamed.
  Status body(std::string_view text, double at);

  // The stream has ended: checks that it is complete.
  Status finish();

 private:
  Status openai_event(const json::object& object, double at);
  Status message_event(std::string_view name, const json::object& object, double at);
  Status check_counts();
  void read_usage(const json::object& object);
  bool read_choice(const json::object& choice, std::string_view part);
  void read_calls(const json::array& calls, bool& generated);
  bool add_text(const json::object& object, const char* key);
  void generated(double at);

  Endpoint endpoint_;
  SentRequest& record_;
  bool done_ = false;
  bool has_usage_ = false;
  bool has_timings_ = false;
  std::int64_t running_ = -1;  // tokens generated so far; -1: the server does not say
  std::int64_t counted_ = 0;   // of them, those that belong to events
  double finished_at_ = -1;    // arrival of finish_reason
};

}  // namespace mimo
