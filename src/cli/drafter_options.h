// The --speculative-* options, and the drafter that they and the checkpoint come to.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/dflash_config.h"
#include "checkpoint/weight_source.h"
#include "core/result.h"
#include "engine/speculation_options.h"
#include "model/drafter.h"
#include "model/target.h"

namespace CLI {
class App;
}

namespace mimo {

inline constexpr const char* kDraftAttentionFlag = "--speculative-draft-attention-backend";

struct DrafterOptions {
  std::string algorithm = "AUTO";
  std::optional<std::string> directory;       // of a DFlash drafter; none: dflash/ of the checkpoint
  std::optional<std::string> random_config;   // config.json of a DFlash drafter with random weights
  std::optional<std::string> final_tap;       // pre_norm, post_norm
  std::optional<std::string> window;          // row, anchor
  std::string attention = "auto";             // kernel of its blocks
  std::optional<std::string> batch_widths;    // as given, for messages
  std::optional<std::string> adaptive_width;  // on, off; none: on unless a width is given
  std::optional<int> num_draft_tokens;
  std::optional<double> confidence_threshold;
  std::optional<std::int64_t> max_context;
  std::optional<double> min_accept_length;

  // Of the engine; filled by choose_drafter.
  SpeculationOptions speculation;
};

void add_drafter_options(CLI::App& command, DrafterOptions& options);

enum class DrafterKind { kNone, kDFlash, kMtp };

struct DrafterChoice {
  DrafterKind kind = DrafterKind::kNone;
  std::string directory;  // kDFlash, if its weights are not random
  std::string random_config;
  std::string reason;  // for the start-up line
};

// What the options mean for the checkpoint in `directory` (empty: random weights), before anything is loaded.
// Refuses options that would have no effect. Fills options.speculation.
Result<DrafterChoice> choose_drafter(DrafterOptions& options, const std::string& directory);

// The config of a chosen DFlash drafter.
Result<DFlashConfig> read_drafter_config(const DrafterChoice& choice, const ModelConfig& target);

// Whether the drafter of an opened checkpoint can do what is asked, as far as that shows before weights are
// read.
Status check_drafter(const DrafterChoice& choice, const DrafterOptions& options, const WeightSource& source);

// How the drafter is to be run.
struct DrafterSetup {
  int max_requests = 1;  // that run at once
  int vocab = 0;         // ids of the tokenizer; 0: all of the output head
  int page_size = 64;
  KvDType kv = KvDType::kBF16;
  std::uint64_t seed = 0;  // of random weights
};

// Null for kNone. What check_drafter refuses must not come here.
Result<std::unique_ptr<Drafter>> load_drafter(const DrafterChoice& choice, const DrafterOptions& options,
                                              const DrafterSetup& setup, WeightSource& source,
                                              const TargetModel& target, Ops& ops);

// "DFLASH, 7 drafts a step, 1.20 MB + 0.50 MB a request (why)" or "none (why)".
std::string describe_drafter(const DrafterChoice& choice, const Drafter* drafter);

}  // namespace mimo
