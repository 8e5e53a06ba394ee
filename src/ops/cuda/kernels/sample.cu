// A cluster of blocks shares a row; each block holds its part of the row in shared memory, so that logits are read once.
//
// Weights are exp((x - largest) / temperature) as 64-bit integers (2^44 for the largest logit), whose sums do not depend
// on the order of addition: neither the timing of atomics nor how many blocks share a row shows in the result.
//
// top_k and top_p are one search: the best tokens whose value (1 each, or their weights) reaches a target. A histogram
// over the distance from the largest logit finds the bucket in which that happens. Its tokens are sorted if they are few;
// if they are many (nearly equal logits), a histogram over their ranks splits the bucket, and so on. Where all tokens
// down to that bucket are few, one block finishes the row alone.
#include <algorithm>
#include <array>
#include <cfloat>
#include <stdexcept>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/overlap.cuh"
#include "ops/cuda/kernels/sample.h"

namespace mimo::cuda {

namespace {

using u32 = unsigned;
using u64 = unsigned long long;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMinCluster = 8;
constexpr int kMaxCluster = 16;
constexpr int kBuckets = 4 * kThreads;  // a thread adds up four of them
constexpr int kList = kBuckets / 2;     // tokens that are sorted at most, two a thread
constexpr int kFew = 128;               // tokens that are compared with each other, not sorted
constexpr u32 kAll = 0xffffffffu;

constexpr int kIdBits = 18;
constexpr u32 kIdMask = (1u << kIdBits) - 1;
static_assert(kSampleMaxCount <= static_cast<int>(kIdMask));
constexpr u64 kBadRow = ~u64{0};

constexpr float kOne = 17592186044416.0f;  // 2^44, the weight of the largest logit
// Weights of tokens further away than this are 0: 2^44 exp(-30.5) < 1. All such tokens are in the last bucket.
constexpr float kFarthest = 30.5f;
constexpr float kBucketsPerNat = (kBuckets - 1) / kFarthest;

// What the blocks of a cluster send each other. A message of a kind is awaited before the next of its kind is sent.
enum Message { kBest, kReady, kHistogram, kTotals, kFound, kCounts, kTokens, kRange, kWeights, kMessages };

struct alignas(16) Exchange {
  // Filled by the blocks of the cluster, an element each.
  u64 best[kMaxCluster], ready[kMaxCluster], totals[kMaxCluster], counts[kMaxCluster], weights[kMaxCluster];
  u64 lowest[kMaxCluster], highest[kMaxCluster];
  u64 found[3];
  u64 arrived[kMessages];  // barriers that count the bytes of messages
  u64 warp[kWarps], warp_b[kWarps];
  u64 sum;
  u32 count;
  int place;
};

struct alignas(16) Shared : Exchange {
  u32 low[kBuckets], high[kBuckets];  // the histogram of this block: words of 64-bit sums
  u64 inbox[kBuckets];                // [blocks][buckets that this block adds up]
  // Where the inbox was, when it has been added up: ranks of this block, and of all blocks.
  __device__ u64* list() { return inbox; }
  __device__ u64* merged() { return inbox + kList; }
  u64 section[kBuckets / kMinCluster];  // the sums
};

// ---- Clusters

__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ int cluster_size() {
  int size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
__device__ __forceinline__ u32 address_of(const void* place) {
  return static_cast<u32>(__cvta_generic_to_shared(place));
}
// The same place in the shared memory of another block of the cluster.
__device__ __forceinline__ u32 in_block(const void* place, int rank) {
  u32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(address_of(place)), "r"(rank));
  return address;
}
// Writes to another block and tells its barrier. What is written is seen by those who have waited for the barrier.
__device__ __forceinline__ void send(u32 to, u64 value, u32 barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to),
               "l"(value), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send(u32 to, u64 first, u64 second, u32 barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%1, %2}, [%3];" ::"r"(to),
      "l"(first), "l"(second), "r"(barrier)
      : "memory");
}

// ---- Logits, ranks, weights

// Greater: a larger logit, or the same logit and a lower id. Never 0 for a token.
__device__ __forceinline__ u64 rank_of(float x, int id) {
  const u32 bits = __float_as_uint(x + 0.0f);  // the sum turns -0 into +0
  const u32 key = bits ^ (static_cast<u32>(static_cast<int>(bits) >> 31) | 0x80000000u);
  return static_cast<u64>(key) << kIdBits | (kIdMask - static_cast<u32>(id));
}
__device__ __forceinline__ int rank_id(u64 rank) {
  return static_cast<int>(kIdMask - (static_cast<u32>(rank) & kIdMask));
}
__device__ __forceinline__ float rank_logit(u64 rank) {
  const u32 key = static_cast<u32>(rank >> kIdBits);
  return __uint_as_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

// 2^44 exp((x - maximum) * inverse), rounded down; 2^44 for the maximum. t = r - n ln 2 with |r| <= 0.35, exp(r) by a
// polynomial (relative error 2e-8, then rounding to 2^-22) and 2^-n by a shift. (Conversions of 64-bit integers are slow.)
__device__ __forceinline__ u64 weight_of(float x, float maximum, float inverse) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: added, it leaves the integer in the low mantissa bits
  constexpr float kUnit = 4194304.0f;    // 2^22
  const float t = fmaxf((x - maximum) * inverse, -32.0f);
  const float shifted = fmaf(t, -1.44269504f, kRound);
  const float n = shifted - kRound;
  const float r = fmaf(n, -2.12194440e-4f, fmaf(n, 0.693359375f, t));
  float q = 0.0013843402f * kUnit;
  q = fmaf(q, r, 0.0083743706f * kUnit);
  q = fmaf(q, r, 0.0416680165f * kUnit);
  q = fmaf(q, r, 0.1666642874f * kUnit);
  q = fmaf(q, r, 0.4999999404f * kUnit);
  q = fmaf(q, r, kUnit);
  const u32 power = __float_as_uint(fmaf(q, r, kUnit + 8388608.0f)) & 0x7fffffu;  // 2^22 exp(r)
  return u64{power} << 22 >> (__float_as_uint(shifted) & 63);
}

// 0 for the maximum; at most kBuckets - 1.
__device__ __forceinline__ int bucket_of(float x, float maximum, float inverse) {
  const float bucket = fminf((maximum - x) * inverse * kBucketsPerNat, static_cast<float>(kBuckets - 1));
  return static_cast<int>(__float_as_uint(__fadd_rz(bucket, 8388608.0f)) & (2 * kBuckets - 1));
}

// ---- Sums over a warp and a block

__device__ __forceinline__ u64 warp_total(u64 x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAll, x, step);
  return x;
}
// Sum of x over this and the lower lanes.
__device__ __forceinline__ u64 warp_scan(u64 x) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int step = 1; step < 32; step *= 2) {
    const u64 below = __shfl_up_sync(kAll, x, step);
    if (lane >= step) x += below;
  }
  return x;
}
// The same over the block.
__device__ u64 block_scan(u64 x, u64* sums) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const u64 inside = warp_scan(x);
  __syncthreads();  // what others still read in `sums`
  if (threadIdx.x % 32 == 31) sums[warp] = inside;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return warp_total(lane < warp ? sums[lane] : 0) + inside;
}

// Sum of x over the block; the sums of its warps stay in `sums`.
__device__ __forceinline__ u64 block_total(u64 x, u64* sums) {
  x = warp_total(x);
  __syncthreads();  // what others still read there
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_total(threadIdx.x % 32 < kWarps ? sums[threadIdx.x % 32] : 0);
}

// Functions that are called from several places are not inlined: code that is run once costs the time to fetch it.
extern __shared__ __align__(16) unsigned char g_memory[];
__device__ __forceinline__ Shared& shared_memory() { return *reinterpret_cast<Shared*>(g_memory); }

// Sorts n <= kList numbers in merged(), the largest first. The place behind them up to a power of two is overwritten.
// All threads of the block; ends with a barrier.
__device__ __noinline__ void sort_merged(int n) {
  u64* const a = shared_memory().merged();
  int padded = 2;
  while (padded < n) padded *= 2;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = n + thread; i < padded; i += kThreads) a[i] = 0;
  __syncthreads();
#pragma unroll 1
  for (int size = 2; size <= padded; size *= 2) {
#pragma unroll 1
    for (int stride = size / 2; stride > 0; stride /= 2) {
      if (thread < padded / 2) {
        const int at = 2 * thread - (thread & (stride - 1));
        const u64 x = a[at];
        const u64 y = a[at + stride];
        if ((x < y) == ((at & size) == 0)) {
          a[at] = y;
          a[at + stride] = x;
        }
      }
      // A warp's pairs are within 64 elements of its own while the stride is at most 32.
      const int next = stride > 1 ? stride / 2 : size;
      if (stride > 32 || next > 32) {
        __syncthreads();
      } else {
        __syncwarp();
      }
    }
  }
  __syncthreads();
}

// The place of the first of the n sorted tokens in merged() down to which the value, `above` included, is at least
// `wanted`; n - 1 if there is none. shared_memory().sum becomes the value down to there. Values are weights, or 1 each.
__device__ __noinline__ int place_in_merged(int n, bool mass, float maximum, float inverse, u64 above,
                                            u64 wanted) {
  Shared& shared = shared_memory();
  const int i = static_cast<int>(threadIdx.x) * 2;
  u64 value[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    value[j] = i + j >= n ? 0 : mass ? weight_of(rank_logit(shared.merged()[i + j]), maximum, inverse) : 1;
  }
  const u64 second = above + block_scan(value[0] + value[1], shared.warp_b);
  const u64 first = second - value[1];
  const u64 before = first - value[0];
  if (i < n && before < wanted && (second >= wanted || i + 2 >= n)) {
    const bool at_first = first >= wanted || i + 1 == n;
    shared.place = at_first ? i : i + 1;
    shared.sum = at_first ? first : second;
  }
  __syncthreads();
  return shared.place;
}

// ---- One row

class Row {
 public:
  __device__ Row(const SampleArgs& args, Shared& shared, float* x, int seg4)
      : args_(args), shared_(shared), x_(reinterpret_cast<float4*>(x)), seg4_(seg4) {
    thread_ = static_cast<int>(threadIdx.x);
    lane_ = thread_ % 32;
    warp_ = thread_ / 32;
    rank_ = cluster_rank();
    blocks_ = cluster_size();
    row_ = static_cast<int>(blockIdx.x) / blocks_;
    begin_ = rank_ * kWarps * seg4 * 4;
    if (thread_ == 0) {
      for (u64& barrier : shared.arrived) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address_of(&barrier)) : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    // All blocks run and have barriers when the first message is sent.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }

  __device__ void sample() {
    const SampleRow params = args_.params[row_];
    const u64 best = load<false>();
    if (best == kBadRow || !(rank_logit(best) > -INFINITY)) return write(-1);
    if (!(params.inverse_temperature > 0)) return write(rank_id(best));
    maximum_ = rank_logit(best);
    inverse_ = params.inverse_temperature;
    const double lowest = static_cast<double>(maximum_) + params.min_p_distance;
    if (lowest > -static_cast<double>(FLT_MAX)) floor_ = fminf(static_cast<float>(lowest), maximum_);
#pragma unroll 1
    for (const bool mass : {false, true}) {
      const bool on = mass ? params.top_p < 1 : params.top_k > 0 && params.top_k < args_.count;
      if (on && search(mass, params)) return;
    }
    draw(params.uniform);
  }

  __device__ void best(float* probabilities) {
    const u64 best = load<true>();
    write(best == kBadRow ? -1 : rank_id(best));
    if (probabilities == nullptr) return;
    maximum_ = rank_logit(best);
    u64 own, below, total;
    sum_weights(
        best != kBadRow, [](float, int) { return true; }, &own, &below, &total);
    if (rank_ == 0 && thread_ == 0) {
      probabilities[row_] = best == kBadRow ? NAN : kOne / static_cast<float>(total);
    }
  }

 private:
  __device__ void write(int id) const {
    if (rank_ == 0 && thread_ == 0) args_.ids[row_] = id;
  }

  __device__ __forceinline__ void send_to(int block, u64* place, u64 value, Message message) {
    send(in_block(place, block), value, in_block(&shared_.arrived[message], block));
  }

  // Waits until `bytes` of a message have come.
  __device__ __forceinline__ void receive(Message message, u32 bytes) {
    const u32 barrier = address_of(&shared_.arrived[message]);
    if (thread_ == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                   : "memory");
    }
    const u32 parity = parities_ >> message & 1;
    parities_ ^= 1u << message;
    u32 done = 0;
    while (done == 0) {
      asm volatile(
          "{\n"
          ".reg .pred p;\n"
          "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n"
          "}\n"
          : "=r"(done)
          : "r"(barrier), "r"(parity)
          : "memory");
    }
  }

  // Gives all blocks a number of each; the first warp has it.
  __device__ __forceinline__ void exchange(u64* numbers, u64 own, Message message) {
    if (thread_ < blocks_) send_to(thread_, &numbers[rank_], own, message);
    receive(message, 8 * static_cast<u32>(blocks_));
  }

  // The number of the block with the number of this lane; 0 if there is none.
  __device__ __forceinline__ u64 of_block(const u64* numbers) const {
    return lane_ < blocks_ ? numbers[lane_] : 0;
  }

  // Calls f(logit, id) for the logits of this thread. Each warp has a run of ids, each lane every 32nd four of it.
  template <class F>
  __device__ __forceinline__ void for_own(const F& f) const {
#pragma unroll 1
    for (int g = lane_; g < seg4_; g += 32) {
      const int at = warp_ * seg4_ + g;
      const float4 x = x_[at];
      const int id = begin_ + at * 4;
      f(x.x, id), f(x.y, id + 1), f(x.z, id + 2), f(x.w, id + 3);
    }
  }

  __device__ __forceinline__ bool kept(float x, int id) const {
    return x > floor_ || (x == floor_ && id <= floor_id_);
  }

  // Loads the logits and returns the best rank of the row, or kBadRow if it has a NaN, +inf or, if all must be finite,
  // -inf.
  template <bool kFinite>
  __device__ u64 load() {
    constexpr int kAhead = 5;
    const float* row = args_.logits + static_cast<std::size_t>(row_) * args_.row_stride;
    const bool aligned = (reinterpret_cast<std::uintptr_t>(row) & 15) == 0;
    float top = -INFINITY;
    int top_id = 0;
    int bad = 0;
    const auto take = [&](float4 x, int id) {
      const auto one = [&](float v, int i) {
        bad |= (kFinite ? fabsf(v) : v) < INFINITY ? 0 : 1;
        top_id = v > top ? i : top_id;
        top = v > top ? v : top;
      };
      one(x.x, id), one(x.y, id + 1), one(x.z, id + 2), one(x.w, id + 3);
    };
    // Whole fours first, several at a time; what is behind the last of them is filled up.
    const int whole = aligned ? args_.count / 4 * 4 : 0;
    const float4 nothing = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
#pragma unroll 1
    for (int first = lane_; first < seg4_; first += 32 * kAhead) {
      float4 x[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int g = first + 32 * i;
        const int id = begin_ + (warp_ * seg4_ + g) * 4;
        x[i] = g < seg4_ && id < whole ? *reinterpret_cast<const float4*>(row + id) : nothing;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int g = first + 32 * i;
        const int id = begin_ + (warp_ * seg4_ + g) * 4;
        if (g < seg4_) x_[warp_ * seg4_ + g] = x[i];
        if (!kFinite || (g < seg4_ && id < whole)) take(x[i], id);
      }
    }
    if (whole < args_.count) {
#pragma unroll 1
      for (int g = lane_; g < seg4_; g += 32) {
        auto* to = reinterpret_cast<float*>(x_ + warp_ * seg4_ + g);
#pragma unroll 1
        for (int i = 0; i < 4; ++i) {
          const int id = begin_ + (warp_ * seg4_ + g) * 4 + i;
          if (id < whole || id >= args_.count) continue;
          const float v = row[id];
          to[i] = v;
          bad |= (kFinite ? fabsf(v) : v) < INFINITY ? 0 : 1;
          top_id = v > top ? id : top_id;
          top = v > top ? v : top;
        }
      }
    }
    u64 best = bad != 0 ? kBadRow : rank_of(top, top_id);
    best = block_best(best, shared_.warp);
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    exchange(shared_.best, best, kBest);
    return warp_best(of_block(shared_.best));
  }

  __device__ __forceinline__ static u64 warp_best(u64 x) {
    for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(kAll, x, step));
    return x;
  }
  __device__ __forceinline__ u64 block_best(u64 x, u64* bests) const {
    x = warp_best(x);
    if (lane_ == 0) bests[warp_] = x;
    __syncthreads();
    return warp_best(bests[lane_ % kWarps]);
  }

  // ---- top_k and top_p

  struct Bucket {
    int index;
    u64 above;   // value of the buckets before
    u64 inside;  // its own
    u64 total;   // of all buckets
  };

  __device__ void clear_histogram() {
    for (int i = thread_; i < kBuckets; i += kThreads) shared_.low[i] = shared_.high[i] = 0;
    if (thread_ == 0) shared_.count = 0;
    __syncthreads();
  }

  __device__ __forceinline__ void add_to_bucket(int bucket, bool mass, float x) {
    if (!mass) {
      atomicAdd(&shared_.low[bucket], 1u);
      return;
    }
    const u64 weight = weight_of(x, maximum_, inverse_);
    const u32 low = static_cast<u32>(weight);
    const u32 before = atomicAdd(&shared_.low[bucket], low);
    const u32 high = static_cast<u32>(weight >> 32) + (before + low < before ? 1u : 0u);
    if (high != 0) atomicAdd(&shared_.high[bucket], high);
  }

  // Adds up the histograms of the cluster and finds the first bucket down to which the value is at least `wanted`, or
  // what top_p of the total is, if that is 0. Ends with all blocks knowing it; index -1 if the total is less.
  __device__ __forceinline__ Bucket find_bucket(u64 wanted, double top_p) {
    __syncthreads();
    // Each block adds up its share of the buckets.
    const int share = kBuckets / blocks_;
    const int own_bucket = thread_ * 4;
    const uint4 low = *reinterpret_cast<const uint4*>(&shared_.low[own_bucket]);
    const uint4 high = *reinterpret_cast<const uint4*>(&shared_.high[own_bucket]);
    const int to = own_bucket / share;
    const u32 place = in_block(&shared_.inbox[rank_ * share + own_bucket % share], to);
    const u32 barrier = in_block(&shared_.arrived[kHistogram], to);
    send(place, u64{high.x} << 32 | low.x, u64{high.y} << 32 | low.y, barrier);
    send(place + 16, u64{high.z} << 32 | low.z, u64{high.w} << 32 | low.w, barrier);
    receive(kHistogram, kBuckets * 8);
    // A lane takes four buckets of one block.
    const int parts = 32 / blocks_;  // groups of four buckets that a warp adds up
    const int from = lane_ / parts;
    const int first = (warp_ * parts + lane_ % parts) * 4;
    u64 sum[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = shared_.inbox[from * share + first + i];
    for (int step = 16; step >= parts; step /= 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += __shfl_xor_sync(kAll, sum[i], step);
    }
    u64 own = 0;
    if (from == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        shared_.section[first + i] = sum[i];
        own += sum[i];
      }
    }
    own = block_total(own, shared_.warp);
    exchange(shared_.totals, own, kTotals);

    const u64 of_share = of_block(shared_.totals);
    const u64 until = warp_scan(of_share);
    Bucket bucket{-1, 0, 0, __shfl_sync(kAll, until, 31)};
    if (wanted == 0) wanted = mass_target(top_p, bucket.total);
    if (bucket.total < wanted) return bucket;
    const int owner = __ffs(static_cast<int>(__ballot_sync(kAll, until >= wanted))) - 1;
    bucket.above = __shfl_sync(kAll, until - of_share, owner);
    // The same inside the owner's share, by one of its warps.
    if (owner == rank_ && warp_ == 0) {
      constexpr int kMost = kBuckets / kMinCluster / 32;
      const int each = share / 32;
      u64 value[kMost];
      u64 mine = 0;
#pragma unroll
      for (int i = 0; i < kMost; ++i) {
        value[i] = i < each ? shared_.section[lane_ * each + i] : 0;
        mine += value[i];
      }
      const u64 after = bucket.above + warp_scan(mine);
      u64 above = after - mine;
      const int lane = __ffs(static_cast<int>(__ballot_sync(kAll, above < wanted && wanted <= after))) - 1;
      int index = 0;
      u64 inside = value[0];
#pragma unroll
      for (int i = 1; i < kMost; ++i) {
        if (above + inside < wanted) {
          above += inside;
          inside = value[i];
          index = i;
        }
      }
      index = owner * share + lane * each + __shfl_sync(kAll, index, lane);
      above = __shfl_sync(kAll, above, lane);
      inside = __shfl_sync(kAll, inside, lane);
      if (lane_ < blocks_) {
        send_to(lane_, &shared_.found[0], static_cast<u64>(index), kFound);
        send_to(lane_, &shared_.found[1], above, kFound);
        send_to(lane_, &shared_.found[2], inside, kFound);
      }
    }
    receive(kFound, 24);
    bucket.index = static_cast<int>(shared_.found[0]);
    bucket.above = shared_.found[1];
    bucket.inside = shared_.found[2];
    return bucket;
  }

  // Appends the tokens for which pick(logit, id) to the list, and exchanges their numbers. Returns how many there are in
  // the cluster; if that is more than kList, the lists are not complete.
  template <class Pick>
  __device__ u32 gather(const Pick& pick) {
    for_own([&](float x, int id) {
      if (pick(x, id)) {
        const u32 at = atomicAdd(&shared_.count, 1u);
        if (at < kList) shared_.list()[at] = rank_of(x, id);
      }
    });
    __syncthreads();
    exchange(shared_.counts, shared_.count, kCounts);
    return static_cast<u32>(warp_total(of_block(shared_.counts)));
  }

  // Sends the list to `merged` of the first blocks.
  __device__ void send_list(int blocks) {
    const u64 to = warp_total(lane_ < rank_ ? shared_.counts[lane_] : 0);
    const int count = static_cast<int>(shared_.count);
#pragma unroll 1
    for (int i = thread_; i < count * blocks; i += kThreads) {
      send_to(i / count, &shared_.merged()[to + i % count], shared_.list()[i % count], kTokens);
    }
  }

  __device__ static u64 mass_target(double top_p, u64 total) {
    if (!(top_p < 1)) return total;
    const u64 wanted = __double2ull_ru(top_p * static_cast<double>(total));
    return min(max(wanted, u64{1}), total);
  }

  // Raises the floor to the last token that top_p (mass) or top_k keeps; or, if few tokens are left, draws among them
  // and returns true.
  __device__ __forceinline__ bool search(bool mass, const SampleRow& params) {
    // After another search: no block needs its lists any more.
    if (floor_id_ != static_cast<int>(kIdMask)) exchange(shared_.ready, 0, kReady);
    u64 wanted = mass ? 0 : static_cast<u64>(params.top_k);
    u64 total = 0;
    u64 above = 0;
    // Tokens in question: those of buckets from .. last in the first round, those of a range of ranks later.
    int from = 0;
    int last = kBuckets - 2;
    u64 lowest = 0;
    u64 highest = 0;
    int shift = 0;
#pragma unroll 1
    for (bool first = true;; first = false) {
      const auto in_question = [&](float x, int id) {
        if (first) {
          const int bucket = bucket_of(x, maximum_, inverse_);
          return kept(x, id) && bucket >= from && bucket <= last;
        }
        const u64 rank = rank_of(x, id);
        return rank >= lowest && rank <= highest;
      };
      clear_histogram();
      for_own([&](float x, int id) {
        if (!in_question(x, id)) return;
        add_to_bucket(
            first ? bucket_of(x, maximum_, inverse_) : static_cast<int>((highest - rank_of(x, id)) >> shift),
            mass, x);
      });
      const Bucket bucket = find_bucket(first ? wanted : wanted - above, params.top_p);
      if (bucket.index < 0) return false;  // top_k exceeds what is left
      bool alone = false;                  // one block finishes the row
      bool gathers = true;
      if (first) {
        total = bucket.total;
        if (mass) wanted = mass_target(params.top_p, total);
        // How many tokens there are down to the bucket and in it. Weights tell: none there is below that of the edge.
        const float edge =
            kOne * expf(-static_cast<float>(bucket.index + 1) / kBucketsPerNat) * 0.999f - 1.0f;
        const float limit = (mass ? fmaxf(edge, 0.5f) : 1.0f) * static_cast<float>(kList);
        alone = static_cast<float>(bucket.above + bucket.inside) <= limit;
        gathers = static_cast<float>(bucket.inside) <= 1.1f * limit;
        last = bucket.index;
        from = alone ? 0 : last;
      } else {
        highest -= static_cast<u64>(bucket.index) << shift;
        lowest = max(lowest, highest - ((u64{1} << shift) - 1));
      }
      above += bucket.above;
      const int n = gathers ? static_cast<int>(gather(in_question)) : kList + 1;
      if (n <= kList) {
        send_list(alone ? 1 : blocks_);
        if (alone && rank_ != 0) return true;
        receive(kTokens, 8 * static_cast<u32>(n));
        if (!alone) {
          raise_floor(n, mass, above, wanted);
        } else if (n <= kFew) {
          finish_few(n, mass, total, params);
        } else {
          finish(n, mass, total, params);
        }
        return alone;
      }
      from = last;
      if (first) find_range(in_question, &lowest, &highest);
      shift = max(0, 64 - __clzll(static_cast<long long>(highest - lowest)) - 11);
      static_assert(kBuckets == 1 << 11);
    }
  }

  // The floor becomes the first of the n tokens in merged() down to which the value is at least `wanted`.
  __device__ __forceinline__ void raise_floor(int n, bool mass, u64 above, u64 wanted) {
    int place;
    if (n <= kFew) {
      u64* const values = reinterpret_cast<u64*>(shared_.low);
      const u64 rank = thread_ < n ? shared_.merged()[thread_] : 0;
      const u64 value = mass ? weight_of(rank_logit(rank), maximum_, inverse_) : 1;
      if (thread_ < n) values[thread_] = value;
      __syncthreads();
      if (thread_ < n) {
#pragma unroll 4
        for (int j = 0; j < n; ++j) above += shared_.merged()[j] > rank ? values[j] : 0;
        if (above < wanted && wanted <= above + value) shared_.place = thread_;
      }
      __syncthreads();
      place = shared_.place;
    } else {
      sort_merged(n);
      place = place_in_merged(n, mass, maximum_, inverse_, above, wanted);
    }
    const u64 cut = shared_.merged()[place];
    floor_ = rank_logit(cut);
    floor_id_ = rank_id(cut);
  }

  // The lowest and highest rank of the tokens for which pick(logit, id).
  template <class Pick>
  __device__ void find_range(const Pick& pick, u64* lowest, u64* highest) {
    u64 low = ~u64{0};
    u64 high = 0;
    for_own([&](float x, int id) {
      if (!pick(x, id)) return;
      low = min(low, rank_of(x, id));
      high = max(high, rank_of(x, id));
    });
    for (int step = 16; step > 0; step /= 2) {
      low = min(low, __shfl_xor_sync(kAll, low, step));
      high = max(high, __shfl_xor_sync(kAll, high, step));
    }
    __syncthreads();  // what others still read there
    if (lane_ == 0) {
      shared_.warp[warp_] = low;
      shared_.warp_b[warp_] = high;
    }
    __syncthreads();
#pragma unroll 1
    for (int w = 0; w < kWarps; ++w) {
      low = min(low, shared_.warp[w]);
      high = max(high, shared_.warp_b[w]);
    }
    if (thread_ < blocks_) {
      send_to(thread_, &shared_.lowest[rank_], low, kRange);
      send_to(thread_, &shared_.highest[rank_], high, kRange);
    }
    receive(kRange, 16 * static_cast<u32>(blocks_));
#pragma unroll 1
    for (int b = 0; b < blocks_; ++b) {
      low = min(low, shared_.lowest[b]);
      high = max(high, shared_.highest[b]);
    }
    *lowest = low;
    *highest = high;
  }

  // ---- The draw

  // One of weight `total` in all: the token with the first sum over ids above this is drawn.
  __device__ static u64 drawn_weight(double uniform, u64 total) {
    return min(__double2ull_rd(uniform * static_cast<double>(total)), total - 1);
  }

  // From the n tokens in merged(), in any order, by one block alone. `total`: the weight that top_p is a part of, if
  // mass.
  __device__ __forceinline__ void finish_few(int n, bool mass, u64 total, const SampleRow& params) {
    u64* const values = reinterpret_cast<u64*>(shared_.low);
    const u64* const ranks = shared_.merged();
    const bool real = thread_ < n;
    const u64 rank = real ? ranks[thread_] : 0;
    u64 value = real ? weight_of(rank_logit(rank), maximum_, inverse_) : 0;
    if (real) values[thread_] = value;
    __syncthreads();
    int better = 0;
    u64 above = 0;
    if (real) {
#pragma unroll 4
      for (int j = 0; j < n; ++j) {
        const bool is_better = ranks[j] > rank;
        better += is_better ? 1 : 0;
        above += is_better ? values[j] : 0;
      }
    }
    if (!mass) {
      if (better >= params.top_k) value = 0;
      total = block_total(value, shared_.warp);
    }
    if (above >= mass_target(params.top_p, total)) value = 0;
    const u64 drawn = drawn_weight(params.uniform, block_total(value, shared_.warp_b));
    if (real) values[thread_] = value;
    __syncthreads();
    if (!real) return;
    // By ids: they are the low bits of ranks, complemented.
    u64 below = 0;
#pragma unroll 4
    for (int j = 0; j < n; ++j) {
      below += (static_cast<u32>(ranks[j]) & kIdMask) > (static_cast<u32>(rank) & kIdMask) ? values[j] : 0;
    }
    if (below <= drawn && drawn < below + value) args_.ids[row_] = rank_id(rank);
  }

  // The same for more tokens.
  __device__ __forceinline__ void finish(int n, bool mass, u64 total, const SampleRow& params) {
    sort_merged(n);
    if (!mass) {
      n = min(n, params.top_k);
      place_in_merged(n, true, maximum_, inverse_, 0, ~u64{0});
      total = shared_.sum;
    }
    __syncthreads();
    n = place_in_merged(n, true, maximum_, inverse_, 0, mass_target(params.top_p, total)) + 1;
    const u64 drawn = drawn_weight(params.uniform, shared_.sum);
    // By ids: they are the low bits of ranks, complemented.
    for (int i = thread_; i < n; i += kThreads) {
      const u64 rank = shared_.merged()[i];
      shared_.merged()[i] = (rank & kIdMask) << 32 | rank >> kIdBits;
    }
    sort_merged(n);
    const int i = thread_ * 2;
    u64 rank[2] = {0, 0};
    u64 value[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (i + j >= n) continue;
      const u64 x = shared_.merged()[i + j];
      rank[j] = (x & kAll) << kIdBits | x >> 32;
      value[j] = weight_of(rank_logit(rank[j]), maximum_, inverse_);
    }
    const u64 after = block_scan(value[0] + value[1], shared_.warp_b);
    const u64 before = after - value[0] - value[1];
    if (before <= drawn && drawn < after) {
      args_.ids[row_] = rank_id(before + value[0] > drawn ? rank[0] : rank[1]);
    }
  }

  // Sums of the weights of the tokens for which pick(logit, id): of this block, of the blocks before it, of the row. The
  // sums of warps stay in shared_.warp.
  template <class Pick>
  __device__ void sum_weights(bool any, const Pick& pick, u64* own, u64* below, u64* total) {
    u64 sum = 0;
#pragma unroll 1
    for (int g = lane_; any && g < seg4_; g += 32) {
      float4 x = x_[warp_ * seg4_ + g];
      const int id = begin_ + (warp_ * seg4_ + g) * 4;
      // What is not picked weighs nothing as -inf.
      x.x = pick(x.x, id) ? x.x : -INFINITY;
      x.y = pick(x.y, id + 1) ? x.y : -INFINITY;
      x.z = pick(x.z, id + 2) ? x.z : -INFINITY;
      x.w = pick(x.w, id + 3) ? x.w : -INFINITY;
      if (fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)) == -INFINITY) continue;
      sum += (weight_of(x.x, maximum_, inverse_) + weight_of(x.y, maximum_, inverse_)) +
             (weight_of(x.z, maximum_, inverse_) + weight_of(x.w, maximum_, inverse_));
    }
    *own = block_total(sum, shared_.warp);
    exchange(shared_.weights, *own, kWeights);
    const u64 number = of_block(shared_.weights);
    *total = warp_total(number);
    *below = warp_total(lane_ < rank_ ? number : 0);
  }

  // From all kept tokens of the row.
  __device__ void draw(double uniform) {
    u64 own, below, total;
    sum_weights(
        true, [&](float x, int id) { return kept(x, id); }, &own, &below, &total);
    const u64 drawn = drawn_weight(uniform, total);
    if (drawn < below || drawn >= below + own) return;

    // The warp whose run of ids it is in, then all threads over that run.
    const u64 of_run = lane_ < kWarps ? shared_.warp[lane_] : 0;
    const u64 until = below + warp_scan(of_run);
    const int run = __ffs(static_cast<int>(__ballot_sync(kAll, until > drawn))) - 1;
    below = __shfl_sync(kAll, until - of_run, run);
    const int length = seg4_ * 4;
    const int each = (length + kThreads - 1) / kThreads;
    const int first = min(thread_ * each, length);
    const int end = min(first + each, length);
    const float* x = reinterpret_cast<const float*>(x_) + run * length;
    const int id = begin_ + run * length;
    u64 mine = 0;
#pragma unroll 1
    for (int i = first; i < end; ++i) {
      if (kept(x[i], id + i)) mine += weight_of(x[i], maximum_, inverse_);
    }
    const u64 after = below + block_scan(mine, shared_.warp_b);
    u64 at = after - mine;
    if (drawn < at || drawn >= after) return;
#pragma unroll 1
    for (int i = first; i < end; ++i) {
      if (kept(x[i], id + i)) at += weight_of(x[i], maximum_, inverse_);
      if (at > drawn) {
        args_.ids[row_] = id + i;
        return;
      }
    }
  }

  const SampleArgs& args_;
  Shared& shared_;
  float4* x_;  // the logits of this block, a run of seg4 fours for each warp
  int seg4_;
  int thread_, lane_, warp_, rank_, blocks_, row_;
  int begin_;         // id of the first
  u32 parities_ = 0;  // of the next message of each kind
  float maximum_ = 0;
  float inverse_ = 1;
  // The last token that is kept; -inf never is.
  float floor_ = -FLT_MAX;
  int floor_id_ = static_cast<int>(kIdMask);
};

__global__ void __launch_bounds__(kThreads, 2)
    sample_kernel(const __grid_constant__ SampleArgs args, int seg4) {
  Row row(args, shared_memory(), reinterpret_cast<float*>(g_memory + sizeof(Shared)), seg4);
  wait_for_kernel_before();
  row.sample();
}

__global__ void __launch_bounds__(kThreads)
    best_kernel(const __grid_constant__ SampleArgs args, float* probabilities, int seg4) {
  Row row(args, shared_memory(), reinterpret_cast<float*>(g_memory + sizeof(Exchange)), seg4);
  wait_for_kernel_before();
  row.best(probabilities);
}

constexpr int seg4_of(int count, int cluster) {
  const int fours = (count + 3) / 4;
  return (fours + cluster * kWarps - 1) / (cluster * kWarps);
}
constexpr std::size_t bytes_of(std::size_t used, int seg4) {
  return used + static_cast<std::size_t>(seg4) * kWarps * sizeof(float4);
}
static_assert(sizeof(Shared) % 16 == 0 && sizeof(Exchange) % 16 == 0);
static_assert(bytes_of(sizeof(Shared), seg4_of(kSampleMaxCount, 8)) <= 227 * 1024);

template <class Kernel>
void allow_clusters(Kernel* kernel) {
  MIMO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  MIMO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(bytes_of(sizeof(Shared), seg4_of(kSampleMaxCount, 8)))));
}

cudaLaunchAttribute cluster_of(int blocks) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  return attribute;
}

bool takes_clusters_of_16() {
  static const bool takes = [] {
    allow_clusters(sample_kernel);
    cudaLaunchAttribute attribute = cluster_of(16);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(16);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = bytes_of(sizeof(Shared), seg4_of(kSampleMaxCount, 16));
    config.attrs = &attribute;
    config.numAttrs = 1;
    int active = 0;
    const cudaError_t code = cudaOccupancyMaxActiveClusters(&active, sample_kernel, &config);
    if (code != cudaSuccess) (void)cudaGetLastError();
    return code == cudaSuccess && active > 0;
  }();
  return takes;
}

// More blocks for a row are faster if there are few rows.
int cluster_for(int rows) { return rows <= 4 && takes_clusters_of_16() ? 16 : 8; }

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), std::size_t used, const SampleArgs& args, cudaStream_t stream,
            const Arguments&... arguments) {
  if (args.count < 1 || args.count > kSampleMaxCount) throw std::invalid_argument("sample: count");
  const int cluster = args.cluster > 0 ? args.cluster : cluster_for(args.rows);
  const int seg4 = seg4_of(args.count, cluster);
  allow_clusters(kernel);
  std::array<cudaLaunchAttribute, 2> attributes = {};
  attributes[0] = cluster_of(cluster);
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(args.rows * cluster));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = bytes_of(used, seg4);
  config.stream = stream;
  config.attrs = attributes.data();
  config.numAttrs = args.overlap ? 2 : 1;
  MIMO_CUDA(cudaLaunchKernelEx(&config, kernel, args, arguments..., seg4));
}

}  // namespace

void sample_tokens(const SampleArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  launch(sample_kernel, sizeof(Shared), args, stream);
}

void best_tokens_in_clusters(const float* logits, std::size_t row_stride, int rows, int count,
                             std::int32_t* ids, float* probabilities, bool overlap, cudaStream_t stream) {
  if (rows == 0) return;
  SampleArgs args;
  args.logits = logits;
  args.row_stride = row_stride;
  args.rows = rows;
  args.count = count;
  args.ids = ids;
  args.overlap = overlap;
  launch(best_kernel, sizeof(Exchange), args, stream, probabilities);
}

}  // namespace mimo::cuda
