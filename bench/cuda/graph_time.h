// Timing of launches as they run in a step: from a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "ops/cuda/cuda_check.h"

namespace mimo::cuda {

// Microseconds of one of `calls` launches call(i, stream) that a graph holds: the median of `replays`, behind two that
// are not counted.
template <class Call>
double graph_time_us(cudaStream_t stream, int calls, int replays, const Call& call) {
  constexpr int kWarmUp = 2;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  MIMO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < calls; ++i) call(i, stream);
  MIMO_CUDA(cudaStreamEndCapture(stream, &graph));
  MIMO_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  MIMO_CUDA(cudaEventCreate(&begin));
  MIMO_CUDA(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = 0; i < kWarmUp + replays; ++i) {
    MIMO_CUDA(cudaEventRecord(begin, stream));
    MIMO_CUDA(cudaGraphLaunch(exec, stream));
    MIMO_CUDA(cudaEventRecord(end, stream));
    MIMO_CUDA(cudaStreamSynchronize(stream));
    float ms = 0;
    MIMO_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= kWarmUp) times.push_back(1e3 * ms / calls);
  }
  MIMO_CUDA(cudaEventDestroy(begin));
  MIMO_CUDA(cudaEventDestroy(end));
  MIMO_CUDA(cudaGraphExecDestroy(exec));
  MIMO_CUDA(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace mimo::cuda
