// Small uploads of a step in one launch: the device fetches them from pinned memory by itself.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace mimo::cuda {

struct UploadPiece {
  void* to = nullptr;          // device memory, aligned to 4
  const void* from = nullptr;  // pinned memory of the CPU, aligned to 16
  std::uint32_t words = 0;     // of 4 bytes
};

inline constexpr int kUploadPieces = 8;

struct UploadPieces {
  std::array<UploadPiece, kUploadPieces> pieces;
  int count = 0;

  void add(void* to, const void* from, std::size_t bytes);  // there is room
  bool touches(const void* to, std::size_t bytes) const;    // a piece goes into this memory
  void drop(const void* to, std::size_t bytes);  // pieces for this memory, which is no longer there
};

// The pieces' destinations do not overlap; pinned memory must not change before the launch is over.
void launch_uploads(const UploadPieces& uploads, cudaStream_t stream);

}  // namespace mimo::cuda
