#include "ops/cuda/device.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "ops/cuda/cuda_check.h"

namespace mimo::cuda {
namespace {

constexpr std::size_t kStagingBytes = 8u << 20;
constexpr std::size_t kStagingParts = 3;
// Larger uploads are left to the copy engine.
constexpr std::size_t kPieceBytes = 256u << 10;
// A block even for nothing, so that every buffer has an address.
constexpr std::size_t kLeastBytes = 256;

}  // namespace

DeviceMemory::DeviceMemory(std::size_t bytes, std::shared_ptr<DeviceBook> book)
    : bytes_(bytes), book_(std::move(book)) {
  MIMO_CUDA(cudaMalloc(&data_, std::max(bytes, kLeastBytes)));
}

DeviceMemory::~DeviceMemory() {
  ++book_->freed;
  book_->waiting.drop(data_, bytes_);
  (void)cudaFree(data_);
}

PinnedMemory::PinnedMemory(std::size_t bytes) : bytes_(bytes) {
  MIMO_CUDA(cudaHostAlloc(&data_, std::max(bytes, kLeastBytes), cudaHostAllocDefault));
}

PinnedMemory::~PinnedMemory() { (void)cudaFreeHost(data_); }

Result<std::unique_ptr<Device>> Device::open(int index) {
  int count = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess || count == 0) {
    return fail(ErrorCode::kUnsupported, "--device cuda: no CUDA device ({})",
                code == cudaSuccess ? "the driver lists none" : cudaGetErrorString(code));
  }
  if (index < 0 || index >= count) {
    return fail(ErrorCode::kInvalidArgument, "--device cuda:{}: expected 0 to {}, there {} {} CUDA device{}",
                index, count - 1, count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
  }
  try {
    cudaDeviceProp properties{};
    MIMO_CUDA(cudaGetDeviceProperties(&properties, index));
    DeviceInfo info;
    info.index = index;
    info.name = properties.name;
    info.major = properties.major;
    info.minor = properties.minor;
    info.multiprocessors = properties.multiProcessorCount;
    info.total_bytes = properties.totalGlobalMem;
    std::unique_ptr<Device> device(new Device(std::move(info)));
    device->use();
    MIMO_CUDA(cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking));
    for (std::size_t i = 0; i < kStagingParts; ++i) {
      Staging& part = device->staging_.emplace_back();
      part.memory = std::make_unique<PinnedMemory>(kStagingBytes);
      MIMO_CUDA(cudaEventCreateWithFlags(&part.left, cudaEventDisableTiming));
    }
    device->landing_ = std::make_unique<PinnedMemory>(kStagingBytes);
    return device;
  } catch (const CudaError& error) {
    return fail(ErrorCode::kUnsupported, "--device cuda:{}: {}", index, error.what());
  }
}

Device::~Device() {
  for (const Staging& part : staging_) {
    if (part.left != nullptr) (void)cudaEventDestroy(part.left);
  }
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

void Device::use() const { MIMO_CUDA(cudaSetDevice(info_.index)); }

Result<std::unique_ptr<Buffer>> Device::allocate(std::size_t bytes) {
  try {
    return std::make_unique<DeviceMemory>(bytes, book_);
  } catch (const CudaError& error) {
    if (error.code() != cudaErrorMemoryAllocation) throw;
    (void)cudaGetLastError();  // not sticky
    std::size_t free = 0;
    std::size_t total = 0;
    MIMO_CUDA(cudaMemGetInfo(&free, &total));
    return fail(ErrorCode::kLimit, "no GPU memory for {:.2f} GB: {:.2f} of {:.2f} GB are free on {}",
                static_cast<double>(bytes) / 1e9, static_cast<double>(free) / 1e9,
                static_cast<double>(total) / 1e9, info_.name);
  }
}

void* Device::grow(std::unique_ptr<Buffer>& memory, std::size_t bytes, std::size_t zeroed) {
  if (memory && memory->bytes() >= bytes) return memory->data();
  memory.reset();
  Result<std::unique_ptr<Buffer>> made = allocate(bytes);
  if (!made) throw std::runtime_error(made.error().message);
  memory = std::move(*made);
  if (zeroed > 0) MIMO_CUDA(cudaMemsetAsync(memory->data(), 0, zeroed, stream_));
  return memory->data();
}

// Room for `bytes` (at most kStagingBytes) that the device has read before it is handed out again.
std::byte* Device::stage(std::size_t bytes) {
  if (used_ + bytes > kStagingBytes) {
    send_waiting();
    MIMO_CUDA(cudaEventRecord(staging_[part_].left, stream_));
    staging_[part_].in_use = true;
    part_ = (part_ + 1) % staging_.size();
    used_ = 0;
    if (staging_[part_].in_use) MIMO_CUDA(cudaEventSynchronize(staging_[part_].left));
  }
  std::byte* room = static_cast<std::byte*>(staging_[part_].memory->data()) + used_;
  used_ += (bytes + 255) / 256 * 256;
  return room;
}

void Device::send_waiting() {
  if (book_->waiting.count == 0) return;
  launch_uploads(book_->waiting, stream_);
  book_->waiting.count = 0;
}

void Device::upload(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const bool words = (bytes | reinterpret_cast<std::uintptr_t>(to)) % sizeof(std::uint32_t) == 0;
  if (bytes > kPieceBytes || !words) {
    upload_rows(to, from, bytes, bytes, 1);
    return;
  }
  if (book_->waiting.count == kUploadPieces || book_->waiting.touches(to, bytes)) send_waiting();
  std::byte* staged = stage(bytes);
  std::memcpy(staged, from, bytes);
  book_->waiting.add(to, staged, bytes);
}

void Device::upload_rows(void* to, const void* from, std::size_t bytes, std::size_t stride,
                         std::size_t rows) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const auto send = [&](const std::byte* staged, std::size_t count) {
    MIMO_CUDA(cudaMemcpyAsync(target, staged, count, cudaMemcpyHostToDevice, stream()));
    target += count;
  };
  if (stride == bytes) {
    bytes *= rows;
    rows = 1;
  }
  if (bytes <= kStagingBytes) {
    const std::size_t most = std::max<std::size_t>(1, kStagingBytes / std::max<std::size_t>(bytes, 1));
    for (std::size_t row = 0; row < rows;) {
      const std::size_t count = std::min(rows - row, most);
      std::byte* staged = stage(count * bytes);
      for (std::size_t i = 0; i < count; ++i)
        std::memcpy(staged + i * bytes, source + (row + i) * stride, bytes);
      send(staged, count * bytes);
      row += count;
    }
    return;
  }
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t count = std::min(bytes - done, kStagingBytes);
      std::byte* staged = stage(count);
      std::memcpy(staged, source + row * stride + done, count);
      send(staged, count);
      done += count;
    }
  }
}

void Device::download(void* to, const void* from, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t count = std::min(bytes - done, kStagingBytes);
    MIMO_CUDA(cudaMemcpyAsync(landing_->data(), static_cast<const std::byte*>(from) + done, count,
                              cudaMemcpyDeviceToHost, stream()));
    MIMO_CUDA(cudaStreamSynchronize(stream_));
    std::memcpy(static_cast<std::byte*>(to) + done, landing_->data(), count);
    done += count;
  }
}

void Device::wait() { MIMO_CUDA(cudaStreamSynchronize(stream_)); }

}  // namespace mimo::cuda
