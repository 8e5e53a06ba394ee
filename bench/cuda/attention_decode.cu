// Times attention_decode beside the roof of the chip and published kernels measured on it.
//   attention_decode [SET] [page=64] [fp8] [rows=1,8] [batch=1,4,32] [keys=2048,47104,184320] [check] [launch|read]
// SET: tp1 (64/4 heads), tp2, tp8 (full attention); window1, window2, window8 (64/8, 32/4, 8/1 heads, window 128 with
// sinks), drafter (64/8 heads of 128, bidirectional, 1024 keys before the block). Without one: all of them, tp1 with
// both types of cache.
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "graph_time.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/attention_decode.h"
#include "ops/cuda/kernels/attention_plain.h"

namespace {

using mimo::cuda::AttentionArgs;

struct Peer {
  const char* set;
  int rows, batch, keys;
  double p128, p16, fp8_p16;  // FlashAttention-3, us
};

// FlashAttention-3 on the same kind of chip (H200), us a call inside a graph.
constexpr Peer kPeers[] = {
    {"tp1", 1, 1, 2048, 11.6, 11.8, 12.6},       {"tp1", 1, 4, 2048, 15.4, 16.0, 15.7},
    {"tp1", 1, 32, 2048, 50.3, 54.0, 46.4},      {"tp1", 1, 1, 47104, 42.6, 44.3, 41.1},
    {"tp1", 1, 4, 47104, 126.9, 131.6, 116.1},   {"tp1", 1, 32, 47104, 911.7, 927.3, 813.4},
    {"tp1", 1, 1, 184320, 132.3, 135.9, 125.2},  {"tp1", 1, 4, 184320, 450.8, 464.2, 405.8},
    {"tp1", 1, 32, 184320, 3611, 3763, 3128},    {"tp1", 4, 1, 2048, 16.5, 18.0, 15.2},
    {"tp1", 4, 4, 2048, 21.3, 23.8, 20.4},       {"tp1", 4, 32, 2048, 58.7, 58.5, 48.2},
    {"tp1", 4, 1, 47104, 48.3, 48.7, 44.2},      {"tp1", 4, 4, 47104, 137.2, 138.7, 119.2},
    {"tp1", 4, 32, 47104, 934.0, 944.4, 792.5},  {"tp1", 4, 1, 184320, 142.7, 143.5, 126.7},
    {"tp1", 4, 4, 184320, 464.4, 470.6, 396.9},  {"tp1", 8, 1, 2048, 18.0, 19.4, 17.4},
    {"tp1", 8, 4, 2048, 24.6, 23.5, 22.2},       {"tp1", 8, 32, 2048, 57.9, 60.3, 51.5},
    {"tp1", 8, 1, 47104, 50.6, 53.3, 48.9},      {"tp1", 8, 4, 47104, 140.5, 145.5, 121.3},
    {"tp1", 8, 32, 47104, 939.9, 945.7, 811.6},  {"tp1", 8, 1, 184320, 142.1, 150.9, 132.9},
    {"tp1", 8, 4, 184320, 466.6, 481.1, 401.6},  {"tp1", 8, 32, 184320, 4102, 4119, 3263},
    {"tp2", 1, 1, 2048, 11.5, 11.6, 0},          {"tp2", 1, 4, 2048, 13.7, 13.7, 0},
    {"tp2", 1, 32, 2048, 31.9, 33.5, 0},         {"tp2", 1, 1, 47104, 29.2, 29.7, 0},
    {"tp2", 1, 4, 47104, 71.6, 73.4, 0},         {"tp2", 1, 32, 47104, 459.4, 466.0, 0},
    {"tp2", 1, 1, 184320, 74.8, 75.8, 0},        {"tp2", 1, 4, 184320, 239.1, 244.3, 0},
    {"tp2", 1, 32, 184320, 1781, 1792, 0},       {"tp2", 8, 1, 2048, 17.1, 16.1, 0},
    {"tp2", 8, 4, 2048, 19.3, 19.1, 0},          {"tp2", 8, 32, 2048, 41.1, 42.2, 0},
    {"tp2", 8, 1, 47104, 34.4, 35.3, 0},         {"tp2", 8, 4, 47104, 79.4, 79.4, 0},
    {"tp2", 8, 32, 47104, 479.7, 481.9, 0},      {"tp2", 8, 1, 184320, 81.9, 82.0, 0},
    {"tp2", 8, 4, 184320, 249.9, 251.2, 0},      {"tp2", 8, 32, 184320, 1830, 1822, 0},
    {"tp8", 1, 1, 2048, 11.2, 11.2, 0},          {"tp8", 1, 4, 2048, 12.6, 12.7, 0},
    {"tp8", 1, 32, 2048, 21.5, 21.9, 0},         {"tp8", 1, 1, 47104, 24.7, 24.8, 0},
    {"tp8", 1, 4, 47104, 43.2, 43.4, 0},         {"tp8", 1, 32, 47104, 237.5, 240.6, 0},
    {"tp8", 1, 1, 184320, 49.9, 49.4, 0},        {"tp8", 1, 4, 184320, 130.2, 131.8, 0},
    {"tp8", 1, 32, 184320, 892.6, 898.5, 0},     {"tp8", 4, 1, 47104, 27.7, 26.5, 0},
    {"tp8", 8, 1, 2048, 14.2, 13.9, 0},          {"tp8", 8, 4, 2048, 14.6, 14.5, 0},
    {"tp8", 8, 32, 2048, 24.4, 24.5, 0},         {"tp8", 8, 1, 47104, 27.3, 26.9, 0},
    {"tp8", 8, 4, 47104, 45.8, 46.3, 0},         {"tp8", 8, 32, 47104, 240.9, 244.7, 0},
    {"tp8", 8, 1, 184320, 52.3, 52.5, 0},        {"tp8", 8, 4, 184320, 136.3, 134.8, 0},
    {"tp8", 8, 32, 184320, 893.9, 910.9, 0},     {"window1", 1, 1, 47104, 14.3, 12.9, 11.9},
    {"window1", 1, 4, 47104, 12.6, 12.8, 12.4},  {"window1", 1, 32, 47104, 21.5, 21.9, 21.9},
    {"window1", 4, 1, 47104, 12.3, 12.2, 12.0},  {"window1", 4, 4, 47104, 12.6, 12.7, 12.9},
    {"window1", 4, 32, 47104, 21.9, 21.9, 22.2}, {"window1", 8, 1, 47104, 12.5, 12.5, 12.2},
    {"window1", 8, 4, 47104, 12.8, 13.0, 13.0},  {"window1", 8, 32, 47104, 21.6, 22.0, 22.2},
    {"window2", 1, 1, 47104, 12.6, 12.1, 0},     {"window2", 1, 32, 47104, 16.5, 16.4, 0},
    {"window8", 1, 1, 47104, 12.5, 12.7, 0},     {"window8", 1, 4, 47104, 12.6, 12.1, 0},
    {"window8", 1, 32, 47104, 15.5, 14.8, 0},    {"window8", 8, 1, 47104, 12.1, 12.1, 0},
    {"window8", 8, 4, 47104, 12.3, 12.3, 0},     {"window8", 8, 32, 47104, 15.3, 15.2, 0},
};

struct Heads {
  const char* set;
  int q_heads, kv_heads, qk_dim, window;
};
constexpr Heads kHeads[] = {{"tp1", 64, 4, 192, 0},       {"tp2", 32, 2, 192, 0},
                            {"tp8", 8, 1, 192, 0},        {"window1", 64, 8, 192, 128},
                            {"window2", 32, 4, 192, 128}, {"window8", 8, 1, 192, 128},
                            {"drafter", 64, 8, 128, 1024}};

__device__ unsigned hash(unsigned x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// Random finite numbers of either type: near normal bf16, or E4M3 of magnitude 1 to 30.
__global__ void fill(unsigned* to, std::size_t words, bool fp8, unsigned seed) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < words;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const unsigned h = hash(static_cast<unsigned>(i) * 2654435761u + static_cast<unsigned>(i >> 32) + seed);
    if (fp8) {
      to[i] = (h & 0xbfbfbfbfu) | 0x10101010u;
    } else {
      float x[2];
      for (int j = 0; j < 2; ++j) {
        const unsigned g = hash(h + static_cast<unsigned>(j));
        x[j] = (static_cast<float>((g & 255) + ((g >> 8) & 255) + ((g >> 16) & 255) + (g >> 24)) - 510.0f) /
               148.0f;
      }
      const __nv_bfloat162 two = __floats2bfloat162_rn(x[0], x[1]);
      to[i] = *reinterpret_cast<const unsigned*>(&two);
    }
  }
}
__global__ void fill_scales(float* to, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    to[i] = 0.05f + 0.0001f * static_cast<float>(hash(static_cast<unsigned>(i)) % 512);
  }
}
// Largest difference, largest value, count of those that are not finite.
__global__ void compare(const __nv_bfloat16* a, const __nv_bfloat16* b, std::size_t count, float* worst) {
  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) {
    const float x = __bfloat162float(a[i]);
    const float y = __bfloat162float(b[i]);
    const float off = fabsf(x - y);
    if (!(off < 1e30f)) atomicAdd(worst + 2, 1.0f);
    atomicMax(reinterpret_cast<int*>(worst), __float_as_int(off));
    atomicMax(reinterpret_cast<int*>(worst + 1), __float_as_int(fabsf(y)));
  }
}

template <class T>
T* allocate(std::size_t count) {
  void* p = nullptr;
  MIMO_CUDA(cudaMalloc(&p, std::max<std::size_t>(count, 1) * sizeof(T)));
  return static_cast<T*>(p);
}
template <class T>
T* upload(const std::vector<T>& from) {
  T* to = allocate<T>(from.size());
  MIMO_CUDA(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  return to;
}

std::vector<int> numbers(const char* text) {
  std::vector<int> all;
  for (const char* at = text; *at != 0;) {
    char* end = nullptr;
    all.push_back(static_cast<int>(std::strtol(at, &end, 10)));
    at = *end == ',' ? end + 1 : end;
  }
  return all;
}

void bench(const Heads& heads, int rows, int batch, int keys, int page_size, bool fp8, bool check,
           mimo::cuda::Overlap overlap) {
  const bool drafter = std::strcmp(heads.set, "drafter") == 0;
  const int seen = heads.window == 0 ? keys : std::min(keys, heads.window + rows - (drafter ? 0 : 1));
  const double key_bytes = heads.kv_heads * (fp8 ? heads.qk_dim + 128 + 8 : 2.0 * (heads.qk_dim + 128));
  const double bytes = key_bytes * seen * batch;
  const int sets = static_cast<int>(std::clamp(std::ceil(220e6 / bytes), 1.0, 48.0));
  const int first_page = (keys - seen) / page_size;
  const int stride = (keys + page_size - 1) / page_size;
  const int own_pages = stride - first_page;
  const int pages = own_pages * batch * sets;
  std::mt19937 random(1);
  std::vector<int> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  if (page_size > 1) std::shuffle(order.begin(), order.end(), random);

  const std::size_t slots =
      static_cast<std::size_t>(pages) * static_cast<std::size_t>(heads.kv_heads * page_size);
  const std::size_t size = fp8 ? 1 : 2;
  AttentionArgs args;
  args.kv = {allocate<char>(slots * static_cast<std::size_t>(heads.qk_dim) * size),
             allocate<char>(slots * 128 * size),
             fp8 ? allocate<float>(slots) : nullptr,
             fp8 ? allocate<float>(slots) : nullptr,
             pages,
             page_size,
             heads.kv_heads,
             heads.qk_dim,
             128,
             fp8};
  fill<<<1024, 256>>>(static_cast<unsigned*>(args.kv.k),
                      slots * static_cast<std::size_t>(heads.qk_dim) * size / 4, fp8, 1);
  fill<<<1024, 256>>>(static_cast<unsigned*>(args.kv.v), slots * 128 * size / 4, fp8, 2);
  if (fp8) {
    fill_scales<<<256, 256>>>(args.kv.k_scale, slots);
    fill_scales<<<256, 256>>>(args.kv.v_scale, slots);
  }
  const int total = rows * batch;
  const std::size_t q_count = static_cast<std::size_t>(total * heads.q_heads * heads.qk_dim);
  const std::size_t out_count = static_cast<std::size_t>(total * heads.q_heads * 128);
  auto* q = allocate<__nv_bfloat16>(q_count);
  fill<<<256, 256>>>(reinterpret_cast<unsigned*>(q), q_count / 2, false, 3);
  args.q = q;
  args.q_stride = heads.q_heads * heads.qk_dim;
  auto* out = allocate<__nv_bfloat16>(out_count);
  args.out = out;
  std::vector<int> row_begin, row_sequence;
  for (int s = 0; s < batch; ++s) {
    row_begin.push_back(s * rows);
    row_sequence.insert(row_sequence.end(), static_cast<std::size_t>(rows), s);
  }
  args.sequences.row_begin = upload(row_begin);
  args.sequences.rows = upload(std::vector<int>(static_cast<std::size_t>(batch), rows));
  args.sequences.position = upload(std::vector<int>(static_cast<std::size_t>(batch), keys - rows));
  args.sequences.first_key = upload(std::vector<int>(static_cast<std::size_t>(batch), 0));
  args.sequences.row_sequence = upload(row_sequence);
  args.sequences.page_stride = stride;
  args.sequences.sequences = batch;
  args.sequences.total_rows = total;
  args.sequences.max_rows = rows;
  args.sequences.max_keys = keys;
  std::vector<float> sinks(static_cast<std::size_t>(heads.q_heads), 1.5f);
  if (heads.window > 0) args.sinks = upload(sinks);
  args.q_heads = heads.q_heads;
  args.window = heads.window;
  args.anchor_window = drafter;
  args.mask = drafter ? mimo::cuda::Mask::kBidirectional : mimo::cuda::Mask::kCausal;
  args.scale = 1.0f / std::sqrt(static_cast<float>(heads.qk_dim)) * (fp8 ? 0.5f : 1.0f);
  std::vector<AttentionArgs> all(static_cast<std::size_t>(sets), args);
  for (int i = 0; i < sets; ++i) {
    std::vector<int> table(static_cast<std::size_t>(batch) * static_cast<std::size_t>(stride), -1);
    for (int s = 0; s < batch; ++s) {
      for (int j = 0; j < own_pages; ++j) {
        table[static_cast<std::size_t>(s) * static_cast<std::size_t>(stride) +
              static_cast<std::size_t>(first_page + j)] =
            order[static_cast<std::size_t>((i * batch + s) * own_pages + j)];
      }
    }
    all[static_cast<std::size_t>(i)].sequences.pages = upload(table);
  }
  void* workspace = allocate<char>(mimo::cuda::attention_decode_workspace(args));
  MIMO_CUDA(cudaMemset(workspace, 0, mimo::cuda::kDecodeBarrierBytes));

  cudaStream_t stream;
  MIMO_CUDA(cudaStreamCreate(&stream));
  MIMO_CUDA(cudaDeviceSynchronize());
  const double us = mimo::cuda::graph_time_us(stream, sets, 10, [&](int i, cudaStream_t on) {
    mimo::cuda::attention_decode(all[static_cast<std::size_t>(i)], workspace, on, overlap);
  });
  const double flops = 2.0 * (heads.qk_dim + 128) * heads.q_heads * static_cast<double>(seen) * rows * batch;
  const double floor = std::max(bytes / 4.60e6, flops / 786e6);
  const Peer* peer = nullptr;
  for (const Peer& p : kPeers) {
    if (std::strcmp(p.set, heads.set) == 0 && p.rows == rows && p.batch == batch && p.keys == keys) peer = &p;
  }
  const double theirs = peer == nullptr ? 0 : fp8 ? peer->fp8_p16 : page_size >= 64 ? peer->p128 : peer->p16;
  std::printf("%-8s %2d x %2d @ %6d p%-3d %s %8.1f us  floor %7.1f (%3.0f%%)", heads.set, rows, batch, keys,
              page_size, fp8 ? "fp8 " : "bf16", us, floor, 100 * floor / us);
  if (theirs > 0) std::printf("  FA3 %7.1f (x%.2f)", theirs, theirs / us);
  if (check) {
    auto* plain = allocate<__nv_bfloat16>(out_count);
    auto* worst = upload(std::vector<float>{0, 0, 0});
    AttentionArgs twin = all.back();
    twin.out = plain;
    mimo::cuda::attention_plain(twin, stream);
    compare<<<1, 1024, 0, stream>>>(out, plain, out_count, worst);
    float host[3];
    MIMO_CUDA(cudaMemcpy(host, worst, sizeof(host), cudaMemcpyDeviceToHost));
    std::printf("  off by %.1e of %.1e%s", host[0], host[1], host[2] > 0 ? " NOT FINITE" : "");
    cudaFree(plain);
    cudaFree(worst);
  }
  std::printf("\n");
  std::fflush(stdout);
  for (const AttentionArgs& a : all) cudaFree(const_cast<int*>(a.sequences.pages));
  for (const void* p :
       {args.kv.k, args.kv.v, static_cast<void*>(args.kv.k_scale), static_cast<void*>(args.kv.v_scale),
        static_cast<void*>(q), static_cast<void*>(out), workspace}) {
    cudaFree(const_cast<void*>(p));
  }
  cudaStreamDestroy(stream);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> rows = {1, 8};
  std::vector<int> batch = {1, 4, 32};
  std::vector<int> keys = {2048, 47104, 184320};
  std::vector<int> pages = {64};
  std::string set;
  bool fp8 = false;
  bool check = false;
  auto overlap = mimo::cuda::Overlap::kNone;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    for (const Heads& heads : kHeads) {
      if (arg == heads.set) set = arg;
    }
    if (arg.rfind("page=", 0) == 0) pages = numbers(argv[i] + 5);
    if (arg.rfind("rows=", 0) == 0) rows = numbers(argv[i] + 5);
    if (arg.rfind("batch=", 0) == 0) batch = numbers(argv[i] + 6);
    if (arg.rfind("keys=", 0) == 0) keys = numbers(argv[i] + 5);
    if (arg == "fp8") fp8 = true;
    if (arg == "check") check = true;
    if (arg == "launch") overlap = mimo::cuda::Overlap::kLaunch;
    if (arg == "read") overlap = mimo::cuda::Overlap::kRead;
  }
  for (const Heads& heads : kHeads) {
    if (!set.empty() && set != heads.set) continue;
    // What a window sees does not depend on what lies before it.
    const std::vector<int> lengths = heads.window > 0 && set.empty() ? std::vector<int>{47104} : keys;
    const bool both = set.empty() && std::strcmp(heads.set, "tp1") == 0;
    for (const bool type : both ? std::vector<bool>{false, true} : std::vector<bool>{fp8})
      for (const int page : pages)
        for (const int r : rows)
          for (const int k : lengths)
            for (const int b : batch) bench(heads, r, b, k, page, type, check, overlap);
  }
  return 0;
}
