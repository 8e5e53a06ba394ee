// Asks the model of this process.
#pragma once

#include <memory>

#include "engine/generator.h"
#include "eval/runner.h"
#include "text/chat_format.h"

namespace mimo {

// All must outlive the runner. `options` names the tokenizer (needed) and the drafter; its max_running is
// replaced by the settings' concurrency. `format` may be null when no problem is a conversation.
std::unique_ptr<Runner> make_local_runner(TargetModel& model, Ops& ops, const ChatFormat* format,
                                          const GeneratorOptions& options);

}  // namespace mimo
