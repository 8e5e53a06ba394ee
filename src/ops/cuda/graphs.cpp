#include "ops/cuda/graphs.h"

#include "ops/cuda/cuda_check.h"

namespace mimo::cuda {
namespace {

// Each holds some hundred kilobytes of device memory.
constexpr std::size_t kMostGraphs = 256;

}  // namespace

void Graphs::run(std::span<const std::int64_t> key, const std::function<void()>& body) {
  const auto drop_stale = [&] {
    if (device_.freed() == freed_) return;
    clear();
    freed_ = device_.freed();
  };
  drop_stale();
  if (graphs_.size() >= kMostGraphs) clear();
  const auto [place, is_new] = graphs_.try_emplace({key.begin(), key.end()}, nullptr);
  if (is_new) {
    body();
    drop_stale();  // what grew on the way has moved
    return;
  }
  if (place->second == nullptr) place->second = capture(body);
  MIMO_CUDA(cudaGraphLaunch(place->second, device_.stream()));
}

cudaGraphExec_t Graphs::capture(const std::function<void()>& body) {
  cudaGraph_t graph = nullptr;
  MIMO_CUDA(cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeThreadLocal));
  try {
    body();
  } catch (...) {
    (void)cudaStreamEndCapture(device_.stream(), &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    throw;
  }
  MIMO_CUDA(cudaStreamEndCapture(device_.stream(), &graph));
  cudaGraphExec_t exec = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
  (void)cudaGraphDestroy(graph);
  MIMO_CUDA(made);
  return exec;
}

void Graphs::clear() {
  if (!graphs_.empty()) (void)cudaStreamSynchronize(device_.stream());
  for (const auto& [key, exec] : graphs_) {
    if (exec != nullptr) (void)cudaGraphExecDestroy(exec);
  }
  graphs_.clear();
}

}  // namespace mimo::cuda
