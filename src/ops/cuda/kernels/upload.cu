#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/upload.h"

namespace mimo::cuda {
namespace {

constexpr int kThreads = 256;
// Enough requests in flight for the bus.
constexpr std::uint32_t kMostBlocks = 32;

__global__ void upload_kernel(const UploadPieces uploads) {
  const UploadPiece& piece = uploads.pieces[blockIdx.y];
  const std::uint32_t step = gridDim.x * kThreads;
  const std::uint32_t thread = blockIdx.x * kThreads + threadIdx.x;
  std::uint32_t done = 0;
  if (reinterpret_cast<std::uintptr_t>(piece.to) % 16 == 0) {
    const std::uint32_t quads = piece.words / 4;
    for (std::uint32_t i = thread; i < quads; i += step) {
      static_cast<uint4*>(piece.to)[i] = static_cast<const uint4*>(piece.from)[i];
    }
    done = quads * 4;
  }
  for (std::uint32_t i = done + thread; i < piece.words; i += step) {
    static_cast<std::uint32_t*>(piece.to)[i] = static_cast<const std::uint32_t*>(piece.from)[i];
  }
}

}  // namespace

void UploadPieces::add(void* to, const void* from, std::size_t bytes) {
  pieces[static_cast<std::size_t>(count)] = {to, from, static_cast<std::uint32_t>(bytes / 4)};
  ++count;
}

bool UploadPieces::touches(const void* to, std::size_t bytes) const {
  const auto* first = static_cast<const std::byte*>(to);
  return std::any_of(pieces.begin(), pieces.begin() + count, [&](const UploadPiece& piece) {
    const auto* at = static_cast<const std::byte*>(piece.to);
    return at < first + bytes && first < at + std::size_t{piece.words} * 4;
  });
}

void UploadPieces::drop(const void* to, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(to);
  const auto* end = std::remove_if(pieces.begin(), pieces.begin() + count, [&](const UploadPiece& piece) {
    const auto* at = static_cast<const std::byte*>(piece.to);
    return at >= first && at < first + bytes;
  });
  count = static_cast<int>(end - pieces.begin());
}

void launch_uploads(const UploadPieces& uploads, cudaStream_t stream) {
  std::uint32_t most = 0;
  for (int i = 0; i < uploads.count; ++i) {
    most = std::max(most, uploads.pieces[static_cast<std::size_t>(i)].words);
  }
  const std::uint32_t blocks = std::clamp((most + 4 * kThreads - 1) / (4 * kThreads), 1U, kMostBlocks);
  upload_kernel<<<dim3(blocks, static_cast<unsigned>(uploads.count)), kThreads, 0, stream>>>(uploads);
  MIMO_CUDA_LAUNCHED();
}

}  // namespace mimo::cuda
