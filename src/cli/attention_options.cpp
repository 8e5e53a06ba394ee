#include "cli/attention_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/drafter_options.h"

namespace mimo {
namespace {

constexpr const char* kBothFlag = "--attention-backend";
constexpr const char* kPrefillFlag = "--prefill-attention-backend";
constexpr const char* kDecodeFlag = "--decode-attention-backend";

AttentionChoice choice_of(const std::optional<std::string>& own, const char* flag,
                          const std::optional<std::string>& both) {
  if (own || !both) return {own.value_or("auto"), flag};
  return {*both, kBothFlag};
}

AttentionQuery call_of(const AttentionShape& heads, int page_size, KvDType kv) {
  AttentionQuery call;
  call.qk_dim = heads.qk_dim;
  call.v_dim = heads.v_dim;
  call.group = heads.q_heads / heads.kv_heads;
  call.page_size = page_size;
  call.kv = kv;
  return call;
}

}  // namespace

void add_attention_options(CLI::App& command, AttentionOptions& options) {
  const std::vector<std::string> names = attention_backend_names();
  command
      .add_option(
          kBothFlag, options.backend,
          "Attention kernels of a GPU; auto (default): the device's own, else portable. What does not run "
          "here is refused")
      ->check(CLI::IsMember(names));
  command
      .add_option(kPrefillFlag, options.prefill, "The same for prompts alone; default: --attention-backend")
      ->check(CLI::IsMember(names));
  command
      .add_option(kDecodeFlag, options.decode,
                  "The same for up to 16 rows a sequence: decoding and verified drafts; default: "
                  "--attention-backend")
      ->check(CLI::IsMember(names));
}

AttentionChoices attention_choices(const AttentionOptions& options, const std::string& draft) {
  AttentionChoices choices;
  choices.prefill = choice_of(options.prefill, kPrefillFlag, options.backend);
  choices.decode = choice_of(options.decode, kDecodeFlag, options.backend);
  choices.draft = {draft, kDraftAttentionFlag};
  return choices;
}

Status check_attention_on_cpu(const AttentionChoices& choices) {
  for (const AttentionPhase phase :
       {AttentionPhase::kPrefill, AttentionPhase::kDecode, AttentionPhase::kDraft}) {
    // Any activations: the exact mode is the kernel's own there.
    if (const Status ok = check_attention_choice({}, phase, choices.of(phase), false); !ok) return ok;
  }
  return {};
}

std::vector<AttentionQuery> attention_calls(const ModelConfig& config, const DFlashConfig* drafter,
                                            int page_size, KvDType kv) {
  std::vector<AttentionQuery> calls;
  const auto add = [&](AttentionQuery call, AttentionPhase phase, int rows) {
    call.phase = phase;
    call.rows = attention_rows(phase, rows);
    if (std::find(calls.begin(), calls.end(), call) == calls.end()) calls.push_back(call);
  };
  for (const AttentionPhase phase : {AttentionPhase::kPrefill, AttentionPhase::kDecode}) {
    for (int layer = 0; layer < config.layers; ++layer) {
      add(call_of(config.attention(layer), page_size, kv), phase, 1);
    }
  }
  if (drafter == nullptr) return calls;
  AttentionQuery block;
  block.qk_dim = drafter->head_dim;
  block.v_dim = drafter->head_dim;
  block.group = drafter->q_heads / drafter->kv_heads;
  block.page_size = page_size;
  block.kv = kv;
  for (const DFlashConfig::Layer& layer : drafter->attention) {
    block.mask = layer.causal ? MaskKind::kCausal : MaskKind::kBidirectional;
    add(block, attention_phase(block.mask, drafter->block), drafter->block);
  }
  return calls;
}

}  // namespace mimo
