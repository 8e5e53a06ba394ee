// Times sample_tokens in a graph.
//   sample [rows=1,8,32,256] [cold] [cluster=16]
// Logits stay in the L2 cache where they fit (they were just written in a step); `cold` cycles through 400 MB of them.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "graph_time.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/elementwise.h"
#include "ops/cuda/kernels/sample.h"

namespace {

constexpr int kVocab = 152064;

// Like a trained model's: most near normal, a few far above them.
__global__ void fill(float* x, std::size_t count, float scale, float peak) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    unsigned h = static_cast<unsigned>(i) * 2654435761u + static_cast<unsigned>(i >> 32);
    float sum = 0;
    for (int j = 0; j < 12; ++j) {
      h ^= h >> 16, h *= 0x7feb352du, h ^= h >> 15, h *= 0x846ca68bu, h ^= h >> 16;
      sum += static_cast<float>(h >> 8) / 16777216.0f;
    }
    const float normal = sum - 6.0f;
    x[i] = scale * normal + (normal > 3.2f ? peak * (normal - 3.2f) : 0.0f);
  }
}

struct Case {
  const char* name;
  float scale, peak;
  mimo::cuda::SampleRow row;
};

mimo::cuda::SampleRow row(float inverse, int top_k, double top_p, double min_p) {
  mimo::cuda::SampleRow r;
  r.inverse_temperature = inverse;
  r.top_k = top_k;
  r.top_p = top_p;
  if (min_p > 0) r.min_p_distance = std::log(min_p) / static_cast<double>(inverse);
  return r;
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

template <class Call>
double time_us(int calls, const Call& call) {
  cudaStream_t stream;
  MIMO_CUDA(cudaStreamCreate(&stream));
  const double us = mimo::cuda::graph_time_us(stream, calls, 7, call);
  MIMO_CUDA(cudaStreamDestroy(stream));
  return us;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> rows = {1, 8, 32, 256};
  bool cold = false;
  int cluster = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "rows=", 5) == 0) rows = numbers(argv[i] + 5);
    if (std::strncmp(argv[i], "cluster=", 8) == 0) cluster = std::atoi(argv[i] + 8);
    if (std::strcmp(argv[i], "cold") == 0) cold = true;
  }
  const Case cases[] = {{"greedy", 2.5f, 6, {}},
                        {"temperature", 2.5f, 6, row(1, 0, 1, 0)},
                        {"min_p 0.05", 2.5f, 6, row(1, 0, 1, 0.05)},
                        {"top_k 20", 2.5f, 6, row(1, 20, 1, 0)},
                        {"top_p 0.95", 2.5f, 6, row(1, 0, 0.95, 0)},
                        {"top_k 20, top_p 0.95", 2.5f, 6, row(1 / 0.6f, 20, 0.95, 0)},
                        {"top_p 0.95, normal", 1, 0, row(1, 0, 0.95, 0)},
                        {"top_k 5000 top_p .9, n.", 1, 0, row(1, 5000, 0.9, 0)},
                        {"top_p 0.95, flat", 0.001f, 0, row(1, 0, 0.95, 0)}};
  constexpr std::size_t kSpace = std::size_t{656} * kVocab;
  float* logits = nullptr;
  mimo::cuda::SampleRow* params = nullptr;
  std::int32_t* ids = nullptr;
  float* shares = nullptr;
  MIMO_CUDA(cudaMalloc(&shares, 1024 * sizeof(float)));
  MIMO_CUDA(cudaMalloc(&logits, kSpace * sizeof(float)));
  MIMO_CUDA(cudaMalloc(&params, 1024 * sizeof(mimo::cuda::SampleRow)));
  MIMO_CUDA(cudaMalloc(&ids, 1024 * sizeof(std::int32_t)));
  std::printf("%-24s", cold ? "us, logits in memory" : "us, logits in L2");
  for (const int n : rows) std::printf(" %5d rows", n);
  std::printf("\n");
  for (const Case& c : cases) {
    fill<<<1024, 256>>>(logits, kSpace, c.scale, c.peak);
    std::vector<mimo::cuda::SampleRow> host(1024, c.row);
    for (std::size_t i = 0; i < host.size(); ++i) {
      host[i].uniform = std::fmod(0.37 + 0.6180339887 * static_cast<double>(i), 1.0);
    }
    MIMO_CUDA(cudaMemcpy(params, host.data(), host.size() * sizeof(host[0]), cudaMemcpyHostToDevice));
    std::printf("%-24s", c.name);
    for (const int n : rows) {
      const int sets = cold ? std::max(2, 656 / n) : 8;
      const double us = time_us(std::min(sets, 64), [&](int i, cudaStream_t stream) {
        mimo::cuda::SampleArgs args;
        const int at = cold ? i * n % (656 - n + 1) : 0;
        args.logits = logits + static_cast<std::size_t>(at) * kVocab;
        args.row_stride = kVocab;
        args.rows = n;
        args.count = kVocab;
        args.params = params;
        args.ids = ids;
        args.cluster = cluster;
        mimo::cuda::sample_tokens(args, stream);
      });
      std::printf(" %10.1f", us);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
  if (!cold) {
    // The best token and its probability: a block for a row, and a cluster for a row.
    for (const bool clusters : {false, true}) {
      std::printf("%-24s", clusters ? "best_tokens_in_clusters" : "best_tokens");
      for (const int n : rows) {
        std::printf(" %10.1f", time_us(8, [&](int, cudaStream_t stream) {
                      if (clusters) {
                        mimo::cuda::best_tokens_in_clusters(logits, kVocab, n, kVocab, ids, shares, false,
                                                            stream);
                      } else {
                        mimo::cuda::best_tokens(logits, kVocab, n, kVocab, ids, shares, stream);
                      }
                    }));
      }
      std::printf("\n");
    }
  }
  MIMO_CUDA(cudaDeviceSynchronize());
  return 0;
}
