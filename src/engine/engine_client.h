// What a server knows of an engine: requests go in, tokens and text come out. The real engine and the scripted
// one of the tests stand behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "engine/sampler.h"
#include "engine/sampling_params.h"
#include "engine/speculation_stats.h"
#include "engine/stop_rules.h"
#include "text/constraint.h"

namespace mimo {

using RequestId = std::uint64_t;

// Where a constraint begins: at the first token, or behind the think block. It never covers reasoning.
enum class ConstraintStart : std::uint8_t {
  kAtOnce,             // thinking is off, or there is no think block
  kAfterThinkClose,    // the prompt left the block open
  kAfterOptionalThink  // the model may open one: its first token decides
};

struct EngineRequest {
  std::vector<std::int32_t> prompt;  // ids in [0, vocab), not empty
  SamplingParams params;             // has passed validate(); max_tokens none: up to the end of the context
  std::uint32_t choice = 0;          // of n: each one draws from its own random stream of the seed
  bool speculation = true;
  int priority = 0;        // larger is more urgent
  std::string cache_salt;  // prefixes are shared only between requests of the same salt
  // Positions in the prompt, above 0, where other prompts are likely to part from it (begins of turns): the prefix
  // cache keeps windows there.
  std::vector<std::int64_t> marks;

  // Stop strings are not looked for between these two control tokens; -1: everywhere.
  std::int32_t literal_open_id = -1;
  std::int32_t literal_close_id = -1;

  // Control tokens whose spelling is part of the text, each as a piece of its own (AnswerPiece::marker). Other
  // special tokens are left out of the text.
  std::vector<std::int32_t> markers;

  std::shared_ptr<const CompiledConstraint> constraint;  // null: free text
  ConstraintStart constraint_start = ConstraintStart::kAtOnce;
  // At this many tokens of reasoning </think> is forced; none: no limit.
  std::optional<std::int64_t> thinking_budget;
  // Ids of the think tags for the two fields above; -1 where the checkpoint has none.
  std::int32_t think_open_id = -1;
  std::int32_t think_close_id = -1;
  bool begins_in_think = false;  // the prompt ends inside an open think block
};

// Text that may be shown, in order. Bytes of a character or of a possible stop string are held back until it is
// decided.
struct AnswerPiece {
  std::string text;          // valid UTF-8, not empty
  std::int32_t marker = -1;  // the control token that `text` spells; -1: ordinary text
};

struct RequestUsage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;       // of the prompt: not computed again
  std::int64_t cached_host_tokens = 0;  // part of cached_tokens that came back from host memory
  std::int64_t completion_tokens = 0;   // delivered, with the one that ended the answer
  std::int64_t reasoning_tokens = 0;    // part of completion_tokens up to and with </think>
  double queue_seconds = 0;             // from submit to admission
  double prefill_seconds = 0;           // from admission to the first token
  double decode_seconds = 0;            // from the first token to the end
  SpeculationStats speculation;
};

// What one step of the engine did for one request.
struct AnswerStep {
  std::vector<SampledToken> tokens;
  std::vector<AnswerPiece> text;  // may lag behind the tokens; complete in the last step
  std::optional<Finish> finish;   // the last step of an answer that ended by itself
  std::optional<Error> error;  // the last step of a request that failed; kCancelled of one that was aborted
  RequestUsage usage;          // complete in the last step; prompt and cached tokens from the first one on

  bool last() const { return finish.has_value() || error.has_value(); }
};

class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  // Called from the engine's thread, in order, until a step is the last one. Must not block and must not call
  // the engine.
  virtual void on_step(AnswerStep&& step) = 0;
};

// One pool of KV pages, in tokens.
struct PoolStatus {
  std::int64_t total = 0;
  std::int64_t free = 0;
  std::int64_t cached = 0;  // only the prefix cache holds them: they count as available
};

struct EngineStatus {
  bool alive = true;             // false: the engine's loop has ended or is stuck
  double heartbeat_seconds = 0;  // since the loop last went round or slept on purpose
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  PoolStatus full;
  PoolStatus window;
  std::int64_t host_total = 0;  // tokens of the host tier
  std::int64_t host_used = 0;
  std::int64_t retractions = 0;  // requests sent back to the queue since start
  std::int64_t steps = 0;
};

class EngineClient {
 public:
  virtual ~EngineClient() = default;

  // Takes a request that can be run; answers go to `sink`, which stays alive until its last step. Errors are
  // decided at once: kInvalidArgument (a field), kLimit (too long for the context or the pools: never
  // possible), kBusy (the queue is full: later), kUnavailable (the engine is down or draining). From any thread.
  virtual Result<RequestId> submit(EngineRequest request, std::shared_ptr<AnswerSink> sink) = 0;

  // Asks for the end of a request. Its sink gets a last step with kCancelled, unless the answer was complete.
  // Unknown ids are ignored. From any thread.
  virtual void abort(RequestId id) = 0;

  virtual EngineStatus status() const = 0;

  // Drops the prefix cache (with the host tier). kBusy while requests run.
  virtual Status flush_cache() = 0;

  // Longest prompt + answer that can be served: the model's context, or what the pools hold if that is less.
  virtual std::int64_t max_model_len() const = 0;
};

}  // namespace mimo
