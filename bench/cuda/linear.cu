// Times linear layers on the shapes that the models have: one graph of calls over enough copies of the weights that
// they come from memory, the median of its replays over the number of calls.
//   linear                      the table: few rows, many rows, lm_head with arg-max
//   linear small|large|tune|quant|best [shape filter] [rows,rows,...]
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/activation_quant.h"
#include "ops/cuda/kernels/linear_large.h"
#include "ops/cuda/kernels/linear_small.h"

namespace {

using namespace mimo::cuda;

constexpr double kReadRoof = 4.60e12;
constexpr double kFp8Roof = 1430e12;
constexpr double kBf16Roof = 786e12;

__device__ std::uint32_t hash(std::uint64_t i) {
  i = (i + 0x9e3779b97f4a7c15ULL) * 0xbf58476d1ce4e5b9ULL;
  i ^= i >> 29;
  i *= 0x94d049bb133111ebULL;
  return static_cast<std::uint32_t>(i >> 32);
}

// Normal enough.
__device__ float normal(std::uint64_t i) {
  const std::uint32_t h = hash(i);
  const float sum = static_cast<float>((h & 0xff) + (h >> 8 & 0xff) + (h >> 16 & 0xff) + (h >> 24));
  return (sum - 510.0F) / 148.0F;
}

// kind 0: E4M3 as quantisation makes them of normal values; 1: normal bf16; 2: positive floats around 1e-2.
__global__ void fill(std::uint32_t* data, std::size_t words, int kind, std::uint64_t seed) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < words;
       i += std::size_t{gridDim.x} * blockDim.x) {
    std::uint32_t word = 0;
    if (kind == 0) {
      for (int b = 0; b < 4; ++b) {
        const __nv_fp8_e4m3 code(normal(seed + i * 4 + b) * 160.0F);
        word |= static_cast<std::uint32_t>(code.__x) << (b * 8);
      }
    } else if (kind == 1) {
      for (int b = 0; b < 2; ++b) word |= __float_as_uint(normal(seed + i * 4 + b)) >> 16 << (b * 16);
    } else {
      word = __float_as_uint(1e-2F * (0.5F + static_cast<float>(hash(i + seed) >> 8) * 0x1p-24F));
    }
    data[i] = word;
  }
}

struct Memory {
  Memory(std::size_t bytes, int kind) {
    static std::uint64_t seed = 0;
    MIMO_CUDA(cudaMalloc(&data, bytes + 1024));
    MIMO_CUDA(cudaMemset(data, 0, bytes + 1024));
    if (kind >= 0)
      fill<<<2048, 256>>>(static_cast<std::uint32_t*>(data), bytes / 4, kind, seed += 1ULL << 40);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { cudaFree(data); }
  void* data = nullptr;
};

// The clock of a multiprocessor now, in MHz: long products of random data make the device lower it.
__global__ void measure_clock(float* mhz) {
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin_ns));
  const long long begin = clock64();
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end_ns));
  } while (end_ns - begin_ns < 20000);
  *mhz = static_cast<float>(clock64() - begin) * 1e3F / static_cast<float>(end_ns - begin_ns);
}

float clock_after = 0;  // of the last time_us

double time_us(int calls, const std::function<void(int, cudaStream_t)>& call) {
  cudaStream_t stream;
  MIMO_CUDA(cudaStreamCreate(&stream));
  for (int i = 0; i < std::min(calls, 2); ++i) call(i, stream);
  cudaGraph_t graph;
  MIMO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) call(i, stream);
  MIMO_CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  MIMO_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin;
  cudaEvent_t end;
  MIMO_CUDA(cudaEventCreate(&begin));
  MIMO_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  float* mhz = nullptr;
  MIMO_CUDA(cudaMallocHost(&mhz, sizeof(float)));
  MIMO_CUDA(cudaDeviceSynchronize());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // each measurement begins with a rested device
  for (int i = 0; i < 8; ++i) {
    MIMO_CUDA(cudaEventRecord(begin, stream));
    MIMO_CUDA(cudaGraphLaunch(exec, stream));
    MIMO_CUDA(cudaEventRecord(end, stream));
    if (i == 7) measure_clock<<<1, 1, 0, stream>>>(mhz);
    MIMO_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    MIMO_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) times.push_back(ms);
  }
  MIMO_CUDA(cudaStreamSynchronize(stream));
  clock_after = *mhz;
  MIMO_CUDA(cudaFreeHost(mhz));
  std::sort(times.begin(), times.end());
  MIMO_CUDA(cudaGraphExecDestroy(exec));
  MIMO_CUDA(cudaGraphDestroy(graph));
  MIMO_CUDA(cudaStreamDestroy(stream));
  return times[times.size() / 2] * 1e3 / calls;
}

struct Shape {
  const char* name;
  LinearFormat format;
  int n;
  int k;
  std::vector<std::pair<int, double>> peers;  // rows, best of the peers in us
  bool head = false;                          // of a model: fp32 outputs, of which the largest may be wanted
};

const std::vector<Shape>& shapes() {
  using enum LinearFormat;
  static const std::vector<Shape> all = {
      {"qkv-full",
       kFp8,
       13568,
       4096,
       {{1, 18.6},
        {8, 19.0},
        {32, 19.2},
        {64, 19.0},
        {128, 19.6},
        {512, 54.2},
        {1024, 96.3},
        {2048, 169.6},
        {4096, 322.6},
        {8192, 641.9}}},
      {"qkv-swa",
       kFp8,
       14848,
       4096,
       {{1, 21.6},
        {8, 20.6},
        {32, 20.8},
        {64, 20.8},
        {128, 20.9},
        {512, 53.3},
        {1024, 100},
        {2048, 192.5},
        {4096, 361.4},
        {8192, 729}}},
      {"gate-up",
       kFp8,
       32768,
       4096,
       {{1, 42.7},
        {8, 41.3},
        {32, 41.2},
        {64, 41.6},
        {128, 43.4},
        {512, 106.9},
        {1024, 201.1},
        {2048, 391.2},
        {4096, 768.8},
        {8192, 1677}}},
      {"down",
       kFp8,
       4096,
       16384,
       {{1, 34.3},
        {8, 29.3},
        {32, 26.5},
        {64, 24.3},
        {128, 27.3},
        {512, 52.5},
        {1024, 95.6},
        {2048, 188.8},
        {4096, 377.6},
        {8192, 764.2}}},
      {"o-proj",
       kBF16,
       4096,
       8192,
       {{1, 22.1},
        {8, 22.0},
        {32, 22.6},
        {64, 23.8},
        {128, 26.6},
        {512, 43.4},
        {1024, 81.5},
        {2048, 166.5},
        {4096, 381.3},
        {8192, 790.1}}},
      {"lm-head", kBF16, 152576, 4096, {{1, 304}, {8, 309}, {32, 314}, {128, 325}}, true},
      {"pro-qkv", kFp8, 27136, 6144, {}},
      {"pro-o", kBF16, 6144, 16384, {}},
      // The peer of shards is cuBLASLt; of FP8 with one scale for a whole matrix.
      {"tp2-qkv",
       kFp8,
       7424,
       4096,
       {{1, 10.6}, {32, 10.7}, {128, 11.6}, {512, 25.7}, {2048, 90.4}, {8192, 335.8}}},
      {"tp2-gate-up",
       kFp8,
       16384,
       4096,
       {{1, 19.7}, {32, 20.7}, {128, 23.2}, {512, 50.2}, {2048, 184.1}, {8192, 740.6}}},
      {"tp2-down",
       kFp8,
       4096,
       8192,
       {{1, 14.5}, {32, 12.8}, {128, 14.9}, {512, 27.1}, {2048, 91.5}, {8192, 358.5}}},
      {"tp2-o",
       kBF16,
       4096,
       4096,
       {{1, 13.1}, {32, 13.6}, {128, 14.2}, {512, 24.8}, {2048, 87.2}, {8192, 343.6}}},
      {"tp2-lm-head", kBF16, 76288, 4096, {{1, 168.0}, {32, 159.3}, {128, 175.7}}, true},
      {"tp8-qkv",
       kFp8,
       1856,
       4096,
       {{1, 6.8}, {32, 6.7}, {128, 7.2}, {512, 9.0}, {2048, 24.7}, {8192, 89.3}}},
      {"tp8-gate-up",
       kFp8,
       4096,
       4096,
       {{1, 7.9}, {32, 8.0}, {128, 8.7}, {512, 15.3}, {2048, 49.0}, {8192, 183.5}}},
      {"tp8-down",
       kFp8,
       4096,
       2048,
       {{1, 5.8}, {32, 5.8}, {128, 5.8}, {512, 9.5}, {2048, 27.0}, {8192, 100.8}}},
      {"tp8-o", kBF16, 4096, 1024, {{1, 5.7}, {32, 5.7}, {128, 5.7}, {512, 9.6}, {2048, 26.5}, {8192, 96.4}}},
      {"tp8-lm-head", kBF16, 19072, 4096, {{1, 44.3}, {32, 45.6}, {128, 46.2}}, true},
  };
  return all;
}

struct Weights {
  Weights(const Shape& shape, int copies) {
    LinearWeight w;
    w.format = shape.format;
    w.rows = shape.n;
    w.cols = shape.k;
    for (int i = 0; i < copies; ++i) {
      data.push_back(std::make_unique<Memory>(linear_data_bytes(w), w.format == LinearFormat::kFp8 ? 0 : 1));
      scales.push_back(std::make_unique<Memory>(linear_scale_bytes(w), 2));
      w.data = data.back()->data;
      w.scales = static_cast<float*>(scales.back()->data);
      all.push_back(w);
    }
  }
  std::vector<std::unique_ptr<Memory>> data;
  std::vector<std::unique_ptr<Memory>> scales;
  std::vector<LinearWeight> all;
};

void report(const Shape& shape, const char* what, int rows, double us) {
  const double element = linear_element_bytes(shape.format);
  const double y_bytes = shape.format == LinearFormat::kFp8 ? 2 : 8;
  const bool best = std::strcmp(what, "best") == 0;
  const double bytes =
      element * shape.n * shape.k + element * rows * shape.k + (best ? 0 : y_bytes * rows * shape.n);
  const double flops = 2.0 * rows * shape.n * shape.k;
  const double floor = std::max(bytes / kReadRoof, flops / (element == 1 ? kFp8Roof : kBf16Roof)) * 1e6;
  double peer = 0;
  for (const auto& [r, t] : shape.peers) {
    if (r == rows) peer = t;
  }
  std::printf("%-11s %-7s rows %5d: %8.1f us  floor %7.1f (%3.0f%%)  peer %7.1f  %5.0f TFLOP/s  %4.0f MHz\n",
              shape.name, what, rows, us, floor, floor / us * 100, peer, flops / us * 1e-6, clock_after);
  std::fflush(stdout);
}

void time_quantisation(const std::vector<int>& rows_list) {
  for (const int cols : {4096, 6144}) {
    for (const int rows : rows_list) {
      Memory x(std::size_t{4} * rows * cols, 2);
      Memory w(cols * 4, 2);
      Memory out(std::size_t{2} * rows * cols, -1);
      Memory codes(std::size_t{1} * rows * cols, -1);
      Memory scales(cols / 128 * quant_scale_stride(rows) * 4, -1);
      const QuantRows q = {static_cast<std::uint8_t*>(codes.data), static_cast<float*>(scales.data), cols,
                           quant_scale_stride(rows)};
      for (const bool overlap : {false, true}) {
        const double us = time_us(40, [&](int, cudaStream_t stream) {
          launch_rms_norm_quant(static_cast<float*>(x.data), cols, rows, cols, static_cast<float*>(w.data),
                                1e-5F, out.data, cols, q, overlap, stream);
        });
        std::printf("rms_norm_quant %d x %d%s: %.2f us (bytes floor %.2f)\n", rows, cols,
                    overlap ? " overlap" : "", us, 7.0 * rows * cols / kReadRoof * 1e6);
      }
    }
  }
}

// What a shape's weights and most rows need in memory.
struct Bench {
  Bench(const Shape& of, int max_rows)
      : shape(of),
        fp8(of.format == LinearFormat::kFp8),
        weights(of, copies_of(of)),
        x(std::size_t{2} * max_rows * of.k, fp8 ? 0 : 1),
        x_scales(std::size_t{4} * (of.k / 128) * quant_scale_stride(max_rows), 2),
        y(std::size_t{4} * max_rows * of.n, -1),
        workspace(linear_small_workspace(weights.all[0], true), -1) {}

  static int copies_of(const Shape& shape) {
    const double bytes = static_cast<double>(shape.n) * shape.k * linear_element_bytes(shape.format);
    return std::clamp(static_cast<int>(250e6 / bytes) + 1, 2, 48);
  }

  void run(const std::string& what, int rows) const {
    const QuantRows q = {static_cast<std::uint8_t*>(x.data), static_cast<float*>(x_scales.data), shape.k,
                         quant_scale_stride(rows)};
    const QuantRows* const quant = fp8 ? &q : nullptr;
    LinearArgs args;
    args.x = x.data;
    args.x_stride = shape.k;
    args.y = y.data;
    args.y_stride = shape.n;
    args.y_type = fp8 ? ActType::kBF16 : ActType::kF32;
    args.add = !fp8 && !shape.head;
    args.rows = rows;
    const auto time = [&](const char* name,
                          const std::function<void(const LinearWeight&, cudaStream_t)>& call) {
      report(shape, name, rows,
             time_us(static_cast<int>(weights.all.size()), [&](int i, cudaStream_t stream) {
               call(weights.all[static_cast<std::size_t>(i)], stream);
             }));
    };
    if (what == "small" || what == "alone") {
      time(what.c_str(), [&](const LinearWeight& weight, cudaStream_t stream) {
        launch_linear_small(args, quant, weight, workspace.data, what == "small", stream);
      });
    } else if (what == "large") {
      time("large", [&](const LinearWeight& weight, cudaStream_t stream) {
        launch_linear_large(args, quant, weight, true, stream);
      });
    } else if (what == "tune") {
      for (const int waves : {1, 2}) {
        for (const int cluster : {1, 2}) {
          const std::string name = "w" + std::to_string(waves) + " c" + std::to_string(cluster);
          time(name.c_str(), [&](const LinearWeight& weight, cudaStream_t stream) {
            launch_linear_large(args, quant, weight, {waves, cluster}, true, stream);
          });
        }
      }
    } else if (what == "best" && shape.head) {
      BestArgs best;
      best.count = shape.n - shape.n / 170;
      best.ids = static_cast<std::int32_t*>(y.data);
      best.probabilities = static_cast<float*>(y.data) + 1024;
      time("best", [&](const LinearWeight& weight, cudaStream_t stream) {
        launch_linear_best(args, weight, best, workspace.data, true, stream);
      });
    }
  }

  const Shape& shape;
  bool fp8;
  Weights weights;
  Memory x;
  Memory x_scales;
  Memory y;
  Memory workspace;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) {
    for (const Shape& shape : shapes()) {
      const Bench bench(shape, shape.head ? 128 : 8192);
      for (const int rows : {1, 32, 128}) bench.run(shape.head ? "best" : "small", rows);
      if (shape.head) continue;
      for (const int rows : {512, 2048, 8192}) bench.run("large", rows);
    }
    return 0;
  }
  const std::string what = argv[1];
  const std::string filter = argc > 2 ? argv[2] : "";
  std::vector<int> rows_list;
  for (const char* p = argc > 3 ? argv[3] : "1,8,32,64,128"; *p != 0;) {
    rows_list.push_back(static_cast<int>(std::strtol(p, const_cast<char**>(&p), 10)));
    if (*p == ',') ++p;
  }
  if (what == "quant") {
    time_quantisation(rows_list);
    return 0;
  }
  for (const Shape& shape : shapes()) {
    if (!filter.empty() && std::string(shape.name).find(filter) == std::string::npos) continue;
    const Bench bench(shape, *std::max_element(rows_list.begin(), rows_list.end()));
    for (const int rows : rows_list) bench.run(what, rows);
  }
  return 0;
}
