// The --*attention-backend options: which attention kernels a model is to run with.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/dflash_config.h"
#include "core/result.h"
#include "ops/attention_select.h"

namespace CLI {
class App;
}

namespace mimo {

struct AttentionOptions {
  std::optional<std::string> backend;  // of what the next two do not say
  std::optional<std::string> prefill;
  std::optional<std::string> decode;
};

void add_attention_options(CLI::App& command, AttentionOptions& options);

// `draft`: of --speculative-draft-attention-backend.
AttentionChoices attention_choices(const AttentionOptions& options, const std::string& draft);

// Whether the CPU backends can do what is asked: they have one kernel each.
Status check_attention_on_cpu(const AttentionChoices& choices);

// The attention calls of a model, and of its DFlash drafter unless that is null: one for each kind of layer and phase.
std::vector<AttentionQuery> attention_calls(const ModelConfig& config, const DFlashConfig* drafter,
                                            int page_size, KvDType kv);

}  // namespace mimo
