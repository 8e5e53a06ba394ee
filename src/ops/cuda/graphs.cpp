#include "ops/cuda/graphs.h"

#include <algorithm>

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
  const auto [place, is_new] = graphs_.try_emplace({key.begin(), key.end()});
  Entry& entry = place->second;
  entry.used = ++runs_;
  if (is_new) {
    if (graphs_.size() > kMostGraphs) drop_oldest();
    body();
    drop_stale();  // what grew on the way has moved
    return;
  }
  if (entry.exec == nullptr) entry.exec = capture(body);
  if (entry.exec == nullptr) {
    body();
    drop_stale();
    return;
  }
  MIMO_CUDA(cudaGraphLaunch(entry.exec, device_.stream()));
}

// Null: a buffer had to grow, which cannot be recorded.
cudaGraphExec_t Graphs::capture(const std::function<void()>& body) {
  cudaGraph_t graph = nullptr;
  MIMO_CUDA(cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeThreadLocal));
  const auto give_up = [&] {
    (void)cudaStreamEndCapture(device_.stream(), &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
  };
  try {
    body();
  } catch (const CudaError& error) {
    give_up();
    if (error.code() == cudaErrorStreamCaptureUnsupported) return nullptr;
    throw;
  } catch (...) {
    give_up();
    throw;
  }
  MIMO_CUDA(cudaStreamEndCapture(device_.stream(), &graph));
  cudaGraphExec_t exec = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
  (void)cudaGraphDestroy(graph);
  MIMO_CUDA(made);
  return exec;
}

// Many shapes are seen once or for a while only.
void Graphs::drop_oldest() {
  const auto oldest = std::min_element(graphs_.begin(), graphs_.end(), [](const auto& a, const auto& b) {
    return a.second.used < b.second.used;
  });
  MIMO_CUDA(cudaStreamSynchronize(device_.stream()));
  if (oldest->second.exec != nullptr) MIMO_CUDA(cudaGraphExecDestroy(oldest->second.exec));
  graphs_.erase(oldest);
}

void Graphs::clear() {
  if (!graphs_.empty()) (void)cudaStreamSynchronize(device_.bare_stream());
  for (const auto& [key, entry] : graphs_) {
    if (entry.exec != nullptr) (void)cudaGraphExecDestroy(entry.exec);
  }
  graphs_.clear();
}

}  // namespace mimo::cuda
