#include "ops/cuda/cuda_attention.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <stdexcept>

#include "core/check.h"
#include "ops/cuda/kernels/attention_decode.h"
#include "ops/cuda/kernels/attention_plain.h"
#include "ops/cuda/kernels/attention_prefill.h"

namespace mimo::cuda {
namespace {

static_assert(kAttentionDecodeRows == kDecodeMaxRows);

bool aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

// A known call on this device.
AttentionQuery on_device(AttentionQuery call, const AttentionDevice& device, bool exact) {
  call.device = device;
  call.fp32_activations = exact;
  return call;
}

}  // namespace

Status CudaAttention::check(const DeviceInfo& device, const CudaOptions& options) {
  const AttentionDevice family = attention_device(device.major, device.minor);
  for (const AttentionPhase phase :
       {AttentionPhase::kPrefill, AttentionPhase::kDecode, AttentionPhase::kDraft}) {
    const Status ok = check_attention_choice(family, phase, options.attention.of(phase), options.exact);
    if (!ok) return ok;
  }
  for (const AttentionQuery& call : options.attention_calls) {
    const Result<AttentionSelection> selection =
        select_attention(on_device(call, family, options.exact), options.attention.of(call.phase));
    if (!selection) return forward_error(selection);
  }
  return {};
}

CudaAttention::CudaAttention(Device& device, const CudaOptions& options)
    : device_(device),
      family_(attention_device(device.info().major, device.info().minor)),
      choices_(options.attention) {
  for (const AttentionQuery& call : options.attention_calls) {
    const std::size_t known = decisions_.size();
    const Decision& decision = decide(on_device(call, family_, options.exact));
    if (decisions_.size() > known) lines_.push_back(decision.text);
  }
  if (lines_.empty()) {
    lines_.push_back(fmt::format("attention: chosen at the first call, for sm_{} ({})", family_.sm,
                                 device_family_name(family_.family)));
  }
}

CudaAttention::Kernel CudaAttention::kernel_of(const AttentionEntry& entry) {
  if (entry.name == "portable") return Kernel::kPlain;
  MIMO_CHECK(entry.name == "hopper", "attention kernel {} is not wired", entry.name);
  return entry.has(AttentionPhase::kPrefill) ? Kernel::kHopperPrefill : Kernel::kHopperDecode;
}

AttentionQuery CudaAttention::query_of(const AttentionArgs& args) const {
  AttentionQuery query;
  query.device = family_;
  query.mask = args.mask == Mask::kCausal ? MaskKind::kCausal : MaskKind::kBidirectional;
  query.phase = attention_phase(query.mask, args.sequences.max_rows);
  query.qk_dim = args.kv.qk_dim;
  query.v_dim = args.kv.v_dim;
  query.group = args.q_heads / args.kv.kv_heads;
  query.page_size = args.kv.page_size;
  query.rows = attention_rows(query.phase, args.sequences.max_rows);
  query.sequences = std::max(args.sequences.sequences, kAttentionSequences);
  query.kv = args.kv.fp8 ? KvDType::kFp8 : KvDType::kBF16;
  query.fp32_activations = args.type == ActType::kF32;
  query.aligned = args.q_stride % 8 == 0 && aligned(args.q) && aligned(args.out);
  return query;
}

const CudaAttention::Decision& CudaAttention::decide(const AttentionQuery& query) {
  const auto same = [&](const Decision& decision) { return decision.query == query; };
  const auto known = std::find_if(decisions_.begin(), decisions_.end(), same);
  if (known != decisions_.end()) return *known;
  const Result<AttentionSelection> selection = select_attention(query, choices_.of(query.phase));
  if (!selection) throw std::runtime_error(selection.error().message);
  Decision decision{query, kernel_of(*selection->entry), describe_attention(query, *selection)};
  if (selection->slow) fmt::print(stderr, "slow {}\n", decision.text);
  return decisions_.emplace_back(std::move(decision));
}

void CudaAttention::run(const AttentionArgs& args) {
  if (args.sequences.total_rows == 0) return;
  switch (decide(query_of(args)).kernel) {
    case Kernel::kHopperDecode:
      attention_decode(args, device_.grow(workspace_, attention_decode_workspace(args), kDecodeBarrierBytes),
                       device_.stream(), Overlap::kLaunch);
      break;
    case Kernel::kHopperPrefill:
      run_prefill(args);
      break;
    case Kernel::kPlain:
      attention_plain(args, device_.stream());
      break;
  }
}

void CudaAttention::run_prefill(const AttentionArgs& args) {
  const Plan plan{.version = args.sequences.version,
                  .q_heads = args.q_heads,
                  .kv_heads = args.kv.kv_heads,
                  .fp8 = args.kv.fp8,
                  .page_size = args.kv.page_size,
                  .window = args.window,
                  .anchor_window = args.anchor_window,
                  .mask = args.mask};
  const auto known = std::find(plans_.begin(), plans_.end(), plan);
  const auto place = static_cast<std::size_t>(known - plans_.begin()) % kPlans;
  const bool is_new = known == plans_.end();
  if (is_new && plans_.size() < kPlans) {
    plans_.push_back(plan);
  } else if (is_new) {
    plans_[place] = plan;
  }
  const std::size_t bytes = attention_prefill_workspace(args);
  void* memory = device_.grow(plan_memory_[place], bytes, 0);
  if (is_new) attention_prefill_plan(args, memory, device_.stream());
  attention_prefill(args, memory, device_.stream());
}

}  // namespace mimo::cuda
