// Prefill attention, chunk by chunk size and context: time, floor and the best peer's time (FlashAttention-3 on an H200,
// the same page size where it was measured). Usage: attention_prefill [TEXT...]: only rows whose name holds a TEXT.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "cuda/attention_case.cuh"
#include "ops/cuda/kernels/attention_prefill.h"

using namespace mimo::cuda;
using mimo::cuda::testing::Case;
using mimo::cuda::testing::CaseSpec;
using mimo::cuda::testing::DeviceArray;

namespace {

struct Row {
  const char* name;
  int q_heads, kv_heads, page, window, rows, context;
  bool fp8;
  double peer_us;
};
constexpr int kK = 1024;
const Row kRows[] = {
    {"TP1 4K+0 p128", 64, 4, 128, 0, 4 * kK, 0, false, 649.1},
    {"TP1 4K+0 p16", 64, 4, 16, 0, 4 * kK, 0, false, 792.5},
    {"TP1 4K+0 p1", 64, 4, 1, 0, 4 * kK, 0, false, 729.5},
    {"TP1 8K+0 p128", 64, 4, 128, 0, 8 * kK, 0, false, 2159},
    {"TP1 8K+0 p16", 64, 4, 16, 0, 8 * kK, 0, false, 2496},
    {"TP1 4K+26K p128", 64, 4, 128, 0, 4 * kK, 26 * kK, false, 6931},
    {"TP1 4K+26K p16", 64, 4, 16, 0, 4 * kK, 26 * kK, false, 7873},
    {"TP1 4K+26K p1", 64, 4, 1, 0, 4 * kK, 26 * kK, false, 8134},
    {"TP1 8K+46K p128", 64, 4, 128, 0, 8 * kK, 46 * kK, false, 25169},
    {"TP1 8K+46K p16", 64, 4, 16, 0, 8 * kK, 46 * kK, false, 29117},
    {"TP1 4K+0 p16 fp8", 64, 4, 16, 0, 4 * kK, 0, true, 634.1},
    {"TP1 8K+0 p16 fp8", 64, 4, 16, 0, 8 * kK, 0, true, 2221},
    {"TP1 4K+26K p16 fp8", 64, 4, 16, 0, 4 * kK, 26 * kK, true, 7078},
    {"TP1 8K+46K p16 fp8", 64, 4, 16, 0, 8 * kK, 46 * kK, true, 25152},
    {"TP2 4K+0 p128", 32, 2, 128, 0, 4 * kK, 0, false, 327.5},
    {"TP2 4K+0 p16", 32, 2, 16, 0, 4 * kK, 0, false, 313.7},
    {"TP2 8K+0 p16", 32, 2, 16, 0, 8 * kK, 0, false, 1260},
    {"TP2 4K+26K p128", 32, 2, 128, 0, 4 * kK, 26 * kK, false, 3450},
    {"TP2 4K+26K p16", 32, 2, 16, 0, 4 * kK, 26 * kK, false, 4117},
    {"TP2 8K+46K p128", 32, 2, 128, 0, 8 * kK, 46 * kK, false, 12422},
    {"TP2 8K+46K p16", 32, 2, 16, 0, 8 * kK, 46 * kK, false, 14310},
    {"TP8 4K+0 p128", 8, 1, 128, 0, 4 * kK, 0, false, 74.2},
    {"TP8 4K+0 p16", 8, 1, 16, 0, 4 * kK, 0, false, 84.3},
    {"TP8 4K+0 p1", 8, 1, 1, 0, 4 * kK, 0, false, 84.3},
    {"TP8 8K+0 p128", 8, 1, 128, 0, 8 * kK, 0, false, 243.0},
    {"TP8 8K+0 p16", 8, 1, 16, 0, 8 * kK, 0, false, 289.6},
    {"TP8 4K+26K p128", 8, 1, 128, 0, 4 * kK, 26 * kK, false, 783.9},
    {"TP8 4K+26K p16", 8, 1, 16, 0, 4 * kK, 26 * kK, false, 1047},
    {"TP8 8K+46K p128", 8, 1, 128, 0, 8 * kK, 46 * kK, false, 3092},
    {"TP8 8K+46K p16", 8, 1, 16, 0, 8 * kK, 46 * kK, false, 3651},
    {"TP1 window 4K p16", 64, 8, 16, 128, 4 * kK, 46 * kK, false, 129.3},
    {"TP1 window 8K p128", 64, 8, 128, 128, 8 * kK, 46 * kK, false, 239.5},
    {"TP1 window 4K p1", 64, 8, 1, 128, 4 * kK, 46 * kK, false, 129.3},
    {"TP1 window 4K p16 fp8", 64, 8, 16, 128, 4 * kK, 46 * kK, true, 133.3},
    {"TP2 window 4K p16", 32, 4, 16, 128, 4 * kK, 46 * kK, false, 75.1},
    {"TP2 window 8K p16", 32, 4, 16, 128, 8 * kK, 46 * kK, false, 134.7},
    {"TP8 window 4K p16", 8, 1, 16, 128, 4 * kK, 46 * kK, false, 23.9},
    {"TP8 window 8K p16", 8, 1, 16, 128, 8 * kK, 46 * kK, false, 41.4},
};

// Median over replays of a graph that holds one call on each copy of the caches (200 MB or more in all, so that none
// is in the L2 cache still).
double time_us(const Row& row) {
  const double kv_bytes =
      static_cast<double>(row.window ? row.rows + row.window : row.rows + row.context) * row.kv_heads * 640;
  CaseSpec spec{
      .q_heads = row.q_heads, .kv_heads = row.kv_heads, .page_size = row.page, .window = row.window};
  spec.sinks = row.window > 0;
  spec.fp8 = row.fp8;
  spec.sequences = {{row.rows, row.context, 0, 1}};
  spec.copies = static_cast<int>(std::clamp(200e6 / kv_bytes, 1.0, 20.0));
  const Case problem(spec);
  DeviceArray<std::uint8_t> workspace(attention_prefill_workspace(problem.args));
  cudaStream_t stream;
  MIMO_CUDA(cudaStreamCreate(&stream));
  attention_prefill_plan(problem.args, workspace.get(), stream);
  attention_prefill(problem.args, workspace.get(), stream);
  MIMO_CUDA(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  MIMO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int c = 0; c < spec.copies; ++c) attention_prefill(problem.copy(c), workspace.get(), stream);
  MIMO_CUDA(cudaStreamEndCapture(stream, &graph));
  MIMO_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  MIMO_CUDA(cudaEventCreate(&begin));
  MIMO_CUDA(cudaEventCreate(&end));
  MIMO_CUDA(cudaGraphLaunch(exec, stream));
  std::vector<float> times;
  float spent = 0;
  while (times.size() < 3 || (spent < 100 && times.size() < 15)) {
    float ms = 0;
    MIMO_CUDA(cudaEventRecord(begin, stream));
    MIMO_CUDA(cudaGraphLaunch(exec, stream));
    MIMO_CUDA(cudaEventRecord(end, stream));
    MIMO_CUDA(cudaEventSynchronize(end));
    MIMO_CUDA(cudaEventElapsedTime(&ms, begin, end));
    spent += ms;
    times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return times[times.size() / 2] * 1000.0 / spec.copies;
}

void measure(const Row& row) {
  const double us = time_us(row);
  double pairs = 0;
  for (int r = 0; r < row.rows; ++r) {
    const int keys = row.context + r + 1;
    pairs += row.window ? std::min(row.window, keys) : keys;
  }
  const double flops = pairs * row.q_heads * 2 * (192 + 128);
  // Queries in, output out, keys and values once; the products at the rate of a bf16 GEMM.
  const double bytes = static_cast<double>(row.rows) * row.q_heads * 320 * 2 +
                       static_cast<double>(row.window ? row.rows + row.window : row.rows + row.context) *
                           row.kv_heads * 320 * (row.fp8 ? 1 : 2);
  const double floor = std::max(flops / 786e6, bytes / 4.6e6);
  std::printf("%-22s %9.1f us %5.0f TFLOP/s  floor %8.1f us (%3.0f%%)  FA3 %8.1f us (%.2fx)\n", row.name, us,
              flops / us * 1e-6, floor, floor / us * 100, row.peer_us, row.peer_us / us);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  for (const Row& row : kRows) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strstr(row.name, argv[i]) != nullptr;
    if (wanted) measure(row);
  }
  return 0;
}
