// The first requests of a server, made by itself before it says that it is ready: whatever breaks at the first
// token breaks here, and drafts that never fit the model are reported (C28).
#pragma once

#include <cstdint>
#include <string>

#include "core/result.h"
#include "engine/engine_client.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"

namespace mimo {

// Verify steps below which the self-check of the drafts says nothing.
inline constexpr std::int64_t kJudgedWarmUpSteps = 4;

struct WarmUpOptions {
  std::int64_t prompt_tokens = 0;  // of the long prompt: more than one chunk, so that both kinds of steps run
  double seconds = 60;             // what runs then is aborted: a slow machine still gets its server
};

struct WarmUp {
  double seconds = 0;
  std::int64_t tokens = 0;  // generated
  bool cut = false;         // the time was over
  SpeculationStats speculation;
};

// A chat question with drafts, and beside it a long prompt sampled without them. Errors: what the engine said of
// either. Nothing of it stays in the prefix cache. Not from the engine's thread.
Result<WarmUp> warm_up(EngineClient& engine, const Tokenizer& tokenizer, const ChatFormat* format,
                       const WarmUpOptions& options);

// For the log; empty: nothing wrong with the drafts, or too few steps to tell.
std::string draft_warning(const WarmUp& done);

}  // namespace mimo
