#include "ops/cuda/kernels/attention_prefill.h"
#include "ops/cuda/kernels/attention_prefill_launch.cuh"

namespace mimo::cuda {
namespace {

using prefill::Config;
using prefill::Load;

bool good_group(int group) { return group == 8 || group == 16 || group == 32 || group == 64; }

int group_of(const AttentionArgs& args) { return args.q_heads / args.kv.kv_heads; }

// Calls action.operator()<Config>() for the variant that these arguments run. The tile of keys shows in how a result is
// rounded, so the choice must not depend on the rows of the step, only on the model and its caches.
//   Three warpgroups read tiles for 192 rows at once: less traffic and heat than two with 128, on chips that lower their
//   clock under such load. With one KV head there are so few blocks of rows that the last round of thread blocks
//   decides, and small blocks fill it better (848 us instead of 1200 for a chunk of 4K rows over 26K keys).
template <class Action>
void dispatch(const AttentionArgs& args, const Action& action) {
  const bool boxes = args.kv.page_size % 8 == 0;
  if (args.kv.fp8) {
    if (args.kv.kv_heads == 1 && args.window == 0) {
      return action.template operator()<Config<2, 96, 2, true, false, Load::kFp8>>();
    }
    return action.template operator()<Config<3, 96, 2, false, true, Load::kFp8>>();
  }
  if (args.window > 0) {
    if (boxes) return action.template operator()<Config<3, 80, 3, false, false>>();
    return action.template operator()<Config<3, 80, 3, false, false, Load::kGather>>();
  }
  if (!boxes) {
    if (args.kv.kv_heads == 1) {
      return action.template operator()<Config<2, 128, 2, false, false, Load::kGather>>();
    }
    return action.template operator()<Config<3, 112, 2, false, false, Load::kGather>>();
  }
  if (args.kv.kv_heads == 1) return action.template operator()<Config<2, 128, 2, true, false>>();
  return action.template operator()<Config<3, 96, 2, false, true>>();
}

}  // namespace

bool attention_prefill_supports(const AttentionArgs& args) {
  const KvView& kv = args.kv;
  return args.type == ActType::kBF16 && kv.qk_dim == prefill::kQkDim && kv.v_dim == prefill::kVDim &&
         kv.kv_heads > 0 && args.q_heads % kv.kv_heads == 0 && good_group(group_of(args)) &&
         kv.page_size > 0 && args.q_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(args.q) % 16 == 0 &&
         args.sequences.sequences <= prefill::kMaxSequences;
}

std::size_t attention_prefill_workspace(const AttentionArgs& args) {
  // A block holds 128 rows of products or more, which are at least two positions.
  return prefill::kPlanBlocksAt + sizeof(prefill::Block) * prefill::max_blocks(args.sequences, 2);
}

void attention_prefill_plan(const AttentionArgs& args, void* workspace, cudaStream_t stream) {
  dispatch(args, [&]<class C>() { prefill::launch_plan<C>(args, workspace, stream); });
}

void attention_prefill(const AttentionArgs& args, void* workspace, cudaStream_t stream) {
  dispatch(args, [&]<class C>() { prefill::launch<C>(args, workspace, stream); });
}

}  // namespace mimo::cuda
