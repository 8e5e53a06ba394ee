// Turns what a request asks of its answer into a constraint on tokens.
//
// Compiling never runs on the thread that asks for it here: specs come from clients and may be made to be
// expensive. Everything is bounded (size, depth, states, time) and stops when the time is up.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/result.h"
#include "text/constraint.h"
#include "text/constraint_spec.h"
#include "text/tokenizer.h"

namespace mimo {

struct ConstraintLimits {
  std::chrono::milliseconds time{3000};  // of one compilation, from when it begins
  int workers = 2;
  std::size_t queue = 64;                // compilations that may wait
  std::size_t cache_entries = 128;       // compiled specs that are kept, those used last
  std::size_t cache_bytes = 256U << 20;  // of them together, about
};

class ConstraintCompiler {
 public:
  using CompileResult = Result<std::shared_ptr<const CompiledConstraint>>;
  using Callback = std::function<void(CompileResult)>;

  // Copies what it needs of the tokenizer. `end_tokens` end an answer; they are allowed when it is complete and
  // never before. Added tokens are no text: none but <tool_call> and </tool_call>, in calls, is ever allowed.
  ConstraintCompiler(const Tokenizer& tokenizer, std::span<const std::int32_t> end_tokens,
                     const ConstraintLimits& limits = {});
  // What still waits is answered with kCancelled; what runs, first.
  ~ConstraintCompiler();
  ConstraintCompiler(const ConstraintCompiler&) = delete;
  ConstraintCompiler& operator=(const ConstraintCompiler&) = delete;

  // Calls `done` exactly once: at once on this thread when the spec is known or refused for its size, else later
  // on a worker's. `done` must not block. Errors: kInvalidArgument (malformed, contradictory), kUnsupported (a
  // keyword or construct, by name), kLimit (the limit, by name), kBusy (the queue is full).
  void compile_async(ConstraintSpec spec, Callback done);

  // The same, waiting for the answer.
  CompileResult compile(ConstraintSpec spec);

 private:
  class Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace mimo
