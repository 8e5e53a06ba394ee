// Times the small operations between matrices and attention at decode shapes, in a graph of 64 calls one after the other.
//   elementwise [rows=1,8,32] [sums]
// With `sums` a line also has a checksum of what the call wrote.
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "graph_time.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/elementwise.h"

namespace {

using mimo::cuda::ActType;

constexpr int kHidden = 4096;
constexpr int kCalls = 64;

template <class T>
T* allocate(std::size_t count) {
  void* p = nullptr;
  MIMO_CUDA(cudaMalloc(&p, count * sizeof(T)));
  MIMO_CUDA(cudaMemset(p, 0, count * sizeof(T)));
  return static_cast<T*>(p);
}
template <class T>
T* upload(const std::vector<T>& from) {
  T* to = allocate<T>(from.size());
  MIMO_CUDA(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  return to;
}
std::vector<float> normal(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> draw;
  std::vector<float> x(count);
  for (float& v : x) v = draw(random);
  return x;
}
__nv_bfloat16* upload_bf16(const std::vector<float>& from) {
  std::vector<__nv_bfloat16> x(from.size());
  std::transform(from.begin(), from.end(), x.begin(), [](float v) { return __float2bfloat16_rn(v); });
  return upload(x);
}

struct Output {
  const void* data;
  std::size_t bytes;
};

unsigned checksum(const std::vector<Output>& outputs) {
  unsigned sum = 2166136261u;
  for (const Output& output : outputs) {
    std::vector<unsigned char> host(output.bytes);
    MIMO_CUDA(cudaMemcpy(host.data(), output.data, output.bytes, cudaMemcpyDeviceToHost));
    for (const unsigned char byte : host) sum = (sum ^ byte) * 16777619u;
  }
  return sum;
}

bool g_sums = false;

void time_call(const char* name, int rows, double bytes, const std::vector<Output>& outputs,
               const std::function<void(cudaStream_t)>& call) {
  cudaStream_t stream;
  MIMO_CUDA(cudaStreamCreate(&stream));
  call(stream);
  MIMO_CUDA(cudaStreamSynchronize(stream));
  const unsigned sum = g_sums ? checksum(outputs) : 0;
  const double us = mimo::cuda::graph_time_us(stream, kCalls, 10, [&](int, cudaStream_t on) { call(on); });
  std::printf("%-34s %4d rows %7.2f us  %6.1f KB", name, rows, us, bytes / 1e3);
  if (g_sums) std::printf("  %08x", sum);
  std::printf("\n");
  std::fflush(stdout);
  MIMO_CUDA(cudaStreamDestroy(stream));
}

void norms(int rows) {
  const std::size_t count = static_cast<std::size_t>(rows) * kHidden;
  const float* x = upload(normal(count));
  const float* gain = upload(normal(kHidden));
  float* out = allocate<float>(count);
  for (const bool bf16 : {true, false}) {
    const std::size_t bytes = count * (bf16 ? 2 : 4);
    time_call(bf16 ? "rms_norm 4096 to bf16" : "rms_norm 4096 to fp32", rows,
              static_cast<double>(count * 4 + bytes), {{out, bytes}}, [&](cudaStream_t stream) {
                mimo::cuda::rms_norm(x, rows, kHidden, gain, 1e-5f, out,
                                     bf16 ? ActType::kBF16 : ActType::kF32, kHidden, stream);
              });
  }
}

void rope(int rows, int q_heads, int kv_heads, int qk_dim, int rotary, bool fp8) {
  constexpr int kPage = 16;
  const std::size_t width = static_cast<std::size_t>((q_heads + kv_heads) * qk_dim + kv_heads * 128);
  const std::size_t row_count = static_cast<std::size_t>(rows);
  mimo::cuda::RopeStoreArgs args;
  args.qkv = upload_bf16(normal(row_count * width));
  args.row_stride = width;
  args.q_heads = q_heads;
  const std::size_t slots = row_count * kPage * static_cast<std::size_t>(kv_heads);
  args.kv = {allocate<std::uint16_t>(slots * static_cast<std::size_t>(qk_dim)),
             allocate<std::uint16_t>(slots * 128),
             allocate<float>(slots),
             allocate<float>(slots),
             rows,
             kPage,
             kv_heads,
             qk_dim,
             128,
             fp8};
  // A row a sequence, at positions about 47000.
  std::vector<std::int32_t> sequence, position, pages;
  constexpr int kStride = 3000;
  pages.assign(row_count * kStride, -1);
  for (int r = 0; r < rows; ++r) {
    sequence.push_back(r);
    position.push_back(47000 + 13 * r);
    pages[static_cast<std::size_t>(r * kStride + position.back() / kPage)] = rows - 1 - r;
  }
  args.sequences.row_begin = upload(sequence);
  args.sequences.position = upload(position);
  args.sequences.pages = upload(pages);
  args.sequences.row_sequence = upload(sequence);
  args.sequences.page_stride = kStride;
  args.sequences.sequences = args.sequences.total_rows = rows;
  std::vector<float> frequencies;
  for (int i = 0; i < rotary / 2; ++i) {
    frequencies.push_back(std::pow(1e4f, -2.0f * static_cast<float>(i) / static_cast<float>(rotary)));
  }
  args.inverse_frequencies = upload(frequencies);
  args.rotary_dims = rotary;
  args.value_scale = 0.707f;
  char name[64];
  std::snprintf(name, sizeof name, "rope_and_store %d/%d x %d %s", q_heads, kv_heads, qk_dim,
                fp8 ? "fp8" : "bf16");
  const std::size_t element = fp8 ? 1 : 2;
  time_call(name, rows, static_cast<double>(row_count * width * 4),
            {{args.qkv, row_count * width * 2},
             {args.kv.k, slots * static_cast<std::size_t>(qk_dim) * element},
             {args.kv.v, slots * 128 * element},
             {args.kv.k_scale, slots * 4},
             {args.kv.v_scale, slots * 4}},
            [&](cudaStream_t stream) { mimo::cuda::rope_and_store(args, stream); });
}

void tables(int rows) {
  constexpr int kVocab = 8192;
  mimo::cuda::LinearWeight table;
  table.format = mimo::cuda::LinearFormat::kBF16;
  table.rows = kVocab;
  table.cols = kHidden;
  table.data = upload_bf16(normal(mimo::cuda::linear_data_bytes(table) / 2));
  std::vector<std::int32_t> index;
  for (int i = 0; i < rows; ++i) index.push_back((i * 7919 + 13) % kVocab);
  const std::int32_t* ids = upload(index);
  const std::size_t count = static_cast<std::size_t>(rows) * kHidden;
  float* out = allocate<float>(count);
  time_call("embed 4096 bf16", rows, static_cast<double>(count * 6), {{out, count * 4}},
            [&](cudaStream_t stream) { mimo::cuda::embed_rows(table, ids, rows, out, stream); });
  time_call(
      "gather_rows of 8 KB", rows, static_cast<double>(count * 4), {{out, count * 4}},
      [&](cudaStream_t stream) { mimo::cuda::gather_rows(out, table.data, kHidden * 2, ids, rows, stream); });
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> rows = {1, 8, 32};
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "sums") == 0) g_sums = true;
    if (std::strncmp(argv[i], "rows=", 5) == 0) {
      rows.clear();
      for (const char* at = argv[i] + 5; *at != 0;) {
        char* end = nullptr;
        rows.push_back(static_cast<int>(std::strtol(at, &end, 10)));
        at = *end == ',' ? end + 1 : end;
      }
    }
  }
  for (const int n : rows) {
    norms(n);
    rope(n, 64, 4, 192, 64, false);
    rope(n, 64, 8, 192, 64, true);
    rope(n, 64, 8, 128, 128, false);
    tables(n);
  }
  return 0;
}
