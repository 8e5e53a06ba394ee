// The counting sort of moe_plan.h as a block of threads runs it.
#pragma once

#include "ops/cuda/kernels/moe_plan.h"

namespace mimo::cuda {

struct MoePlanScratch {
  int count[kMoeMaxExperts];
  int offset[kMoeMaxExperts];
  int warp_slots[32];
  int warp_groups[32];
};

// All threads of a block of `Threads` (a multiple of 32) call it. The order of an expert's slots is not fixed (nothing
// depends on it: a row's result is the same in every column of a tile).
template <int Threads>
__device__ void build_moe_plan(const MoePlanArgs& args, MoePlanScratch& s) {
  static_assert(Threads % 32 == 0 && Threads <= 1024);
  const int pairs = args.rows * args.top_k;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  for (int e = tid; e < args.experts; e += Threads) s.count[e] = 0;
  __syncthreads();
#pragma unroll 4
  for (int pair = tid; pair < pairs; pair += Threads) {
    const int e = args.ids[pair];
    if (e >= 0 && e < args.experts) atomicAdd(&s.count[e], 1);
  }
  __syncthreads();
  // Exclusive sums of slots and groups over the experts; a thread has kPer neighbours.
  constexpr int kPer = (kMoeMaxExperts + Threads - 1) / Threads;
  int slots = 0, groups = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int e = tid * kPer + i;
    const int n = e < args.experts ? s.count[e] : 0;
    slots += n;
    groups += (n + args.group_rows - 1) / args.group_rows;
  }
  int slots_to = slots, groups_to = groups;  // inclusive
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int a = __shfl_up_sync(0xffffffffu, slots_to, d), b = __shfl_up_sync(0xffffffffu, groups_to, d);
    if (lane >= d) slots_to += a, groups_to += b;
  }
  if (lane == 31) s.warp_slots[warp] = slots_to, s.warp_groups[warp] = groups_to;
  __syncthreads();
  int slot = slots_to - slots, group = groups_to - groups, total = 0;
  for (int w = 0; w < Threads / 32; ++w) {
    if (w < warp) slot += s.warp_slots[w], group += s.warp_groups[w];
    total += s.warp_groups[w];
  }
  if (tid == 0) {
    *args.plan.group_count = total;
    *args.plan.arrived = 0;
  }
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int e = tid * kPer + i;
    if (e >= args.experts) break;
    const int n = s.count[e];
    s.offset[e] = slot;
    const int parts = (n + args.group_rows - 1) / args.group_rows;
    const int size = parts < 2 ? n : min(args.group_rows, ((n + parts - 1) / parts + 15) / 16 * 16);
    for (int at = 0; at < n; at += size) {
      args.plan.groups[group] = {e, slot + at, min(size, n - at), 0};
      args.plan.done[group] = 0;
      ++group;
    }
    slot += n;
  }
  __syncthreads();
#pragma unroll 4
  for (int pair = tid; pair < pairs; pair += Threads) {
    const int e = args.ids[pair];
    if (e >= 0 && e < args.experts) args.plan.slot_pair[atomicAdd(&s.offset[e], 1)] = pair;
  }
}

}  // namespace mimo::cuda
