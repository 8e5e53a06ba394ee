// Times the expert layer: experts [shape 0..3 | -1] [rows,... | all] [tiles warps stages overlap]... With tiles 0 the kernels
// for many rows, -1 those with E4M3 activations; `warps` is their cut, -1 the usual one.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ops/cuda/kernels/experts.h"
#include "ops/cuda/kernels/experts_plain.h"
#include "ops/cuda/kernels/experts_prefill.h"
#include "ops/cuda/kernels/moe_bases.h"
#include "ops/cuda/kernels/moe_pack.h"
#include "ops/cuda/kernels/moe_plan.h"
#include "ops/cuda/kernels/moe_route.h"

using namespace mimo::cuda;

namespace {

void ok(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(code));
  std::exit(1);
}

template <class T>
T* device(std::size_t n) {
  T* p = nullptr;
  ok(cudaMalloc(reinterpret_cast<void**>(&p), n * sizeof(T)));
  ok(cudaMemset(p, 0xff, n * sizeof(T)));
  return p;
}

__device__ std::uint32_t hash(std::uint64_t i) {
  i ^= i >> 31;
  i *= 0x9e3779b97f4a7c15ull;
  i ^= i >> 29;
  i *= 0xbf58476d1ce4e5b9ull;
  return static_cast<std::uint32_t>(i >> 32);
}
// Random words, or scale bytes low + 0..3.
__global__ void fill(std::uint32_t* out, std::size_t n, std::uint64_t seed, int low) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    const std::uint32_t h = hash(i + seed * 0x100000001ull + 12345);
    out[i] = low == 0 ? h : (h & 0x03030303u) + static_cast<std::uint32_t>(low) * 0x01010101u;
  }
}
__global__ void fill_x(std::uint16_t* out, std::size_t n) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    const std::uint32_t h = hash(i * 7 + 3), g = hash(i * 7 + 5);
    const float v = (static_cast<float>(h) + static_cast<float>(g)) * (1.0f / 4294967296.0f) - 1.0f;
    out[i] = static_cast<std::uint16_t>(__float_as_uint(v * 2) >> 16);
  }
}

__global__ void fill_router(float* out, std::size_t n, float size) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    out[i] = (static_cast<float>(hash(i * 5 + 1)) * (1.0f / 2147483648.0f) - 1.0f) * size;
  }
}

struct Shape {
  const char* name;
  int experts, hidden, inter;
};
const Shape kShapes[] = {{"F-TP1 4096x2048", 256, 4096, 2048},
                         {"P-TP1 6144x2048", 256, 6144, 2048},
                         {"F-TP2 4096x1024", 256, 4096, 1024},
                         {"F-TP8 4096x256", 256, 4096, 256}};
struct Peer {
  int rows;
  double us[4];
};
const Peer kPeers[] = {
    {1, {57.3, 79.0, 36.9, 23.9}},     {2, {88.0, 128.3, 53.8, 27.2}},    {4, {162.8, 233.3, 87.6, 38.2}},
    {8, {273.1, 399.9, 156.4, 58.2}},  {16, {482.4, 700.6, 262.4, 94.0}}, {32, {730.8, 1061, 378.6, 139.7}},
    {64, {1048, 1532, 548.3, 187.7}},  {128, {1112, 1677, 584.8, 193.3}}, {256, {1146, 1688, 590.3, 197.8}},
    {512, {1543, 2232, 823.6, 289.6}}, {1024, {2029, 2954, 1316, 447}},   {2048, {3023, 4424, 2060, 658.5}},
    {4096, {4602, 6809, 2719, 898}},   {8192, {8294, 11990, 4582, 1527}}};

double median_us(const std::function<void(cudaStream_t)>& enqueue, int calls) {
  cudaStream_t stream;
  ok(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  enqueue(stream);
  ok(cudaStreamEndCapture(stream, &graph));
  ok(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t a, b;
  ok(cudaEventCreate(&a)), ok(cudaEventCreate(&b));
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    ok(cudaEventRecord(a, stream));
    ok(cudaGraphLaunch(exec, stream));
    ok(cudaEventRecord(b, stream));
    ok(cudaStreamSynchronize(stream));
    float ms = 0;
    ok(cudaEventElapsedTime(&ms, a, b));
    if (i >= 2) times.push_back(ms * 1e3 / calls);
  }
  std::sort(times.begin(), times.end());
  ok(cudaGraphExecDestroy(exec)), ok(cudaGraphDestroy(graph)), ok(cudaStreamDestroy(stream));
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int only = argc > 1 ? std::atoi(argv[1]) : -1;
  std::vector<int> rows_list;
  if (argc > 2 && std::strcmp(argv[2], "all") != 0) {
    for (char* t = std::strtok(argv[2], ","); t != nullptr; t = std::strtok(nullptr, ","))
      rows_list.push_back(std::atoi(t));
  } else {
    rows_list = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  }
  struct Try {
    ExpertsTuning tuning;
    bool overlap;
  };
  std::vector<Try> tries;
  for (int i = 3; i + 3 < argc; i += 4) {
    tries.push_back(
        {{std::atoi(argv[i]), std::atoi(argv[i + 1]), std::atoi(argv[i + 2])}, std::atoi(argv[i + 3]) != 0});
  }
  cudaDeviceProp prop;
  ok(cudaGetDeviceProperties(&prop, 0));
  for (int s = 0; s < 4; ++s) {
    if (only >= 0 && only != s) continue;
    const Shape& shape = kShapes[s];
    const int hidden = shape.hidden, inter = shape.inter, experts = shape.experts, top_k = 8;
    const std::size_t matrix = static_cast<std::size_t>(experts) * hidden * inter;
    std::uint8_t* codes[3];
    std::uint8_t* scales[3];
    for (int m = 0; m < 3; ++m) {
      codes[m] = device<std::uint8_t>(matrix / 2), scales[m] = device<std::uint8_t>(matrix / 32);
      fill<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(codes[m]), matrix / 8, m + 1, 0);
      fill<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(scales[m]), matrix / 128, m + 11, 118);
    }
    const std::size_t gu = moe_gate_up_bytes(hidden, inter), dn = moe_down_bytes(hidden, inter);
    auto* gate_up = device<std::uint8_t>(experts * gu);
    auto* down = device<std::uint8_t>(experts * dn);
    const std::size_t one = static_cast<std::size_t>(hidden) * inter;
    for (int e = 0; e < experts; ++e) {
      const auto rows = [&](int m, int cols) {
        return Mxfp4Rows{codes[m] + e * one / 2, cols / 2, scales[m] + e * one / 32, cols / 32};
      };
      ok(launch_pack_expert(rows(0, hidden), rows(1, hidden), rows(2, inter), hidden, inter, gate_up + e * gu,
                            down + e * dn, nullptr));
    }
    ok(cudaDeviceSynchronize());
    auto* bases = device<std::uint8_t>(moe_bases_bytes(experts, hidden, inter));
    auto* wide = device<std::int32_t>(1);
    ok(cudaMemset(wide, 0, 4));
    ok(launch_moe_bases(gate_up, down, experts, hidden, inter, bases, wide, nullptr));
    ok(cudaDeviceSynchronize());
    const PackedExperts bank{gate_up, down, experts, hidden, inter, bases};
    for (int rows : rows_list) {
      const int pairs = rows * top_k;
      const double call_bytes = std::min(pairs, experts) * static_cast<double>(gu + dn);
      const int sets = rows >= 512        ? 1
                       : call_bytes > 1e9 ? 2
                                          : std::max(2, std::min(16, static_cast<int>(2e9 / call_bytes)));
      auto* x = device<std::uint16_t>(static_cast<std::size_t>(rows) * hidden);
      fill_x<<<256, 256>>>(x, static_cast<std::size_t>(rows) * hidden);
      const std::size_t router_size = static_cast<std::size_t>(experts) * hidden;
      auto* routers = device<float>(sets * router_size);  // of one layer each, cold as in a step
      fill_router<<<1024, 256>>>(routers, sets * router_size, 3.0f / std::sqrt(static_cast<float>(hidden)));
      auto* d_ids = device<std::int32_t>(static_cast<std::size_t>(sets) * pairs);
      auto* d_weights = device<float>(static_cast<std::size_t>(sets) * pairs);
      auto* y = device<float>(static_cast<std::size_t>(rows) * hidden);
      auto* workspace = device<std::uint8_t>(
          std::max(prefill_experts_workspace(ExpertActivations::kFp8, rows, top_k, hidden, inter),
                   experts_workspace(rows, top_k, hidden, inter)));
      auto* route_space = device<std::uint8_t>(route_workspace(rows, hidden, experts));
      ok(cudaMemset(route_space, 0, route_workspace(rows, hidden, experts)));
      auto* plan = device<std::uint8_t>(moe_plan_bytes(rows, top_k, experts, kExpertsGroupRows));
      double peer = 0;
      for (const Peer& q : kPeers) peer = q.rows == rows ? q.us[s] : peer;
      std::vector<Try> list = tries;
      if (list.empty() && prefill_experts_pays(rows, top_k, experts)) {
        list = {{{0, -1, 0}, true}, {{-1, -1, 0}, true}};
      } else if (list.empty()) {
        list = {{experts_tuning(bank, rows), true}};
      }
      for (const Try& t : list) {
        const bool fp8 = t.tuning.tiles < 0, prefill = fp8 || t.tuning.tiles == 0;
        const auto activations = fp8 ? ExpertActivations::kFp8 : ExpertActivations::kBF16;
        const int cut =
            t.tuning.warps >= 0 ? t.tuning.warps : prefill_experts_cut(activations, rows, top_k, experts);
        const int group_rows = prefill ? prefill_group_rows(activations, cut) : kExpertsGroupRows;
        ExpertsArgs args;
        args.x = x, args.rows = rows, args.top_k = top_k, args.bank = bank, args.y = y,
        args.workspace = workspace;
        args.plan = moe_plan_in(plan, rows, top_k, experts, group_rows);
        args.sm_count = prop.multiProcessorCount, args.tuning = t.tuning, args.overlap = t.overlap;
        RouteArgs route;
        route.x = x, route.rows = rows, route.hidden = hidden, route.experts = experts, route.top_k = top_k;
        route.workspace = route_space, route.overlap = t.overlap;
        if (pairs <= kRoutePlanPairs) route.plan = args.plan, route.group_rows = group_rows;
        const auto one_plan = [&](int c, cudaStream_t stream) {
          RouteArgs r = route;
          r.router = routers + c * router_size;
          r.ids = d_ids + static_cast<std::size_t>(c) * pairs,
          r.weights = d_weights + static_cast<std::size_t>(c) * pairs;
          ok(launch_route(r, stream));
          if (pairs > kRoutePlanPairs) {
            ok(launch_moe_plan({r.ids, rows, top_k, experts, group_rows, args.plan}, stream));
          }
        };
        const auto call = [&](int c, cudaStream_t stream) {
          one_plan(c, stream);
          ExpertsArgs a = args;
          a.ids = d_ids + static_cast<std::size_t>(c) * pairs,
          a.weights = d_weights + static_cast<std::size_t>(c) * pairs;
          PrefillExpertsArgs p;
          p.x = a.x, p.rows = rows, p.top_k = top_k, p.ids = a.ids, p.weights = a.weights, p.bank = bank,
          p.plan = a.plan;
          p.y = y, p.workspace = workspace, p.sm_count = a.sm_count;
          p.activations = activations, p.cut = cut;
          const cudaError_t code = prefill ? launch_prefill_experts(p, stream) : launch_experts(a, stream);
          if (code != cudaSuccess) std::printf("launch: %s\n", cudaGetErrorString(code)), std::exit(1);
        };
        double error = -1;
        if (rows <= 8) {  // against the plain kernels
          const std::size_t n = static_cast<std::size_t>(rows) * hidden;
          auto* want = device<float>(n);
          ok(cudaMemset(want, 0, n * 4)), ok(cudaMemset(y, 0, n * 4));
          call(0, nullptr);
          PlainExpertsArgs p;
          p.x = x, p.rows = rows, p.hidden = hidden, p.inter = inter, p.experts = experts, p.top_k = top_k;
          p.ids = d_ids, p.weights = d_weights, p.y = want;
          p.workspace = device<float>(plain_experts_workspace(rows, top_k, inter) / 4);
          const auto view = [&](int m, int cols) {
            return MlpWeights{MlpFormat::kMxfp4,
                              codes[m],
                              static_cast<std::int64_t>(one / 2),
                              scales[m],
                              static_cast<std::int64_t>(one / 32),
                              cols / 32};
          };
          p.gate = view(0, hidden), p.up = view(1, hidden), p.down = view(2, inter);
          ok(launch_plain_experts(p, nullptr));
          ok(cudaDeviceSynchronize());
          std::vector<float> a(n), b(n);
          ok(cudaMemcpy(a.data(), y, n * 4, cudaMemcpyDeviceToHost)),
              ok(cudaMemcpy(b.data(), want, n * 4, cudaMemcpyDeviceToHost));
          double num = 0, den = 0;
          for (std::size_t i = 0; i < n; ++i)
            num += (a[i] - b[i]) * static_cast<double>(a[i] - b[i]), den += b[i] * static_cast<double>(b[i]);
          error = std::sqrt(num / den);
          ok(cudaFree(want)), ok(cudaFree(p.workspace));
        }
        ok(cudaMemset(y, 0, static_cast<std::size_t>(rows) * hidden * 4));
        const double all_us = median_us(
            [&](cudaStream_t st) {
              for (int c = 0; c < sets; ++c) call(c, st);
            },
            sets);
        const double plan_us = median_us(
            [&](cudaStream_t st) {
              for (int c = 0; c < sets; ++c) one_plan(c, st);
            },
            sets);
        std::vector<std::int32_t> ids(static_cast<std::size_t>(sets) * pairs);
        ok(cudaMemcpy(ids.data(), d_ids, ids.size() * 4, cudaMemcpyDeviceToHost));
        double touched = 0, over8 = 0;
        for (int c = 0; c < sets; ++c) {
          std::vector<int> count(experts);
          for (int i = 0; i < pairs; ++i) ++count[ids[static_cast<std::size_t>(c) * pairs + i]];
          for (int n : count) touched += n > 0, over8 += n > 8;
        }
        touched /= sets, over8 /= sets;
        const double floor_us =
            std::max((touched * static_cast<double>(gu + dn) + rows * hidden * 6.0) / 4.60e6,
                     6.0 * pairs * hidden * inter / (fp8 ? 1430e6 : 786e6));
        const double experts_us = all_us - plan_us;
        std::printf(
            "%-15s rows %4d %-6s t%d w%2d s%d o%d | experts %5.1f (>8: %4.1f) floor %7.1f | route %5.1f "
            "experts "
            "%7.1f "
            "(%4.1f%%) layer %7.1f (%4.1f%%) | peer %7.1f (x%.2f) err %.1e\n",
            shape.name, rows, fp8 ? "W4A8" : "W4A16", t.tuning.tiles, t.tuning.warps, t.tuning.stages,
            t.overlap, touched, over8, floor_us, plan_us, experts_us, 100 * floor_us / experts_us, all_us,
            100 * floor_us / all_us, peer, peer / experts_us, error);
        std::fflush(stdout);
      }
      for (void* p : {static_cast<void*>(d_ids), static_cast<void*>(d_weights), static_cast<void*>(x),
                      static_cast<void*>(y), static_cast<void*>(workspace), static_cast<void*>(route_space),
                      static_cast<void*>(routers), static_cast<void*>(plan)}) {
        ok(cudaFree(p));
      }
    }
    for (int m = 0; m < 3; ++m) ok(cudaFree(codes[m])), ok(cudaFree(scales[m]));
    ok(cudaFree(gate_up)), ok(cudaFree(down)), ok(cudaFree(bases)), ok(cudaFree(wide));
  }
}
