#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/attention_decode.h"
#include "ops/cuda/kernels/attention_decode_kernel.cuh"

namespace mimo::cuda {
namespace {

int sm_count() {
  int device = 0;
  int count = 0;
  MIMO_CUDA(cudaGetDevice(&device));
  MIMO_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

bool aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

// Partial results that a launch may keep: of every row, head and split.
std::int64_t partial_slots(const AttentionArgs& args, int sms) {
  if (args.window > 0 && args.window <= decode::kWholeWindow) return 0;
  const SequenceView& view = args.sequences;
  std::int64_t most = 0;
  for (int n = 1; n <= std::min(view.sequences, decode::kSequences); ++n) {
    const std::int64_t rows =
        std::min<std::int64_t>(view.total_rows, static_cast<std::int64_t>(n) * view.max_rows);
    const decode::Plan plan = decode::make_plan(sms, args.kv.kv_heads, n);
    most = std::max(most, rows * args.q_heads * (plan.target + 1));
  }
  return most;
}

}  // namespace

bool attention_decode_supports(const AttentionArgs& args) {
  const KvView& kv = args.kv;
  return args.type == ActType::kBF16 && (kv.qk_dim == 192 || kv.qk_dim == 128) && kv.v_dim == 128 &&
         kv.kv_heads > 0 && args.q_heads % kv.kv_heads == 0 && args.q_heads / kv.kv_heads <= 16 &&
         kv.page_size >= 1 && kv.page_size <= 256 && args.sequences.max_rows <= kDecodeMaxRows &&
         args.scale > 0 && args.q_stride % 8 == 0 && aligned(args.q) && aligned(args.out) && aligned(kv.k) &&
         aligned(kv.v);
}

std::size_t attention_decode_workspace(const AttentionArgs& args) {
  const auto slots = static_cast<std::size_t>(partial_slots(args, sm_count()));
  return kDecodeBarrierBytes + slots * (decode::kVDim * sizeof(float) + sizeof(float2));
}

void attention_decode(const AttentionArgs& args, void* workspace, cudaStream_t stream, Overlap overlap) {
  if (!attention_decode_supports(args)) throw std::invalid_argument("attention_decode: shape not supported");
  const SequenceView& all = args.sequences;
  if (all.total_rows == 0) return;
  decode::Params p;
  p.args = args;
  p.sms = sm_count();
  p.overlap = overlap;
  p.barrier = static_cast<unsigned*>(workspace);
  p.partial = reinterpret_cast<float*>(static_cast<char*>(workspace) + kDecodeBarrierBytes);
  p.state = reinterpret_cast<float2*>(p.partial + partial_slots(args, p.sms) * decode::kVDim);
  const auto page_size = static_cast<unsigned>(args.kv.page_size);
  p.page_magic = page_size == 1 ? 0 : static_cast<unsigned>(((1ull << 32) + page_size - 1) / page_size);
  const int group = args.q_heads / args.kv.kv_heads;
  for (int begin = 0; begin < all.sequences; begin += decode::kSequences) {
    SequenceView& part = p.args.sequences;
    part.row_begin = all.row_begin + begin;
    part.rows = all.rows + begin;
    part.position = all.position + begin;
    part.first_key = all.first_key + begin;
    part.pages = all.pages + static_cast<std::int64_t>(begin) * all.page_stride;
    part.sequences = std::min(all.sequences - begin, decode::kSequences);
    // Windows are not split: no more CTAs than there are blocks of rows.
    int grid = p.sms;
    if (args.window > 0 && args.window <= decode::kWholeWindow) {
      const int most = all.max_rows * group <= 64 ? 64 / group : 128 / group;
      grid = std::min(grid, part.sequences * args.kv.kv_heads * ((all.max_rows + most - 1) / most));
    }
    args.kv.fp8 ? decode::launch_fp8(p, grid, stream) : decode::launch_bf16(p, grid, stream);
  }
}

}  // namespace mimo::cuda
