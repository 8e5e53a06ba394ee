// One GPU and the stream on which a backend works.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/result.h"
#include "ops/cuda/kernels/upload.h"
#include "ops/ops.h"

namespace mimo::cuda {

// What kernels are chosen by.
struct DeviceInfo {
  int index = 0;
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  int multiprocessors = 0;
  std::size_t total_bytes = 0;
};

// What a device and its buffers know of each other.
struct DeviceBook {
  std::atomic<std::uint64_t> freed = 0;  // buffers that are gone
  UploadPieces waiting;                  // small uploads that go with the next launch; of the stream's thread
};

// Memory of the device; its address is `data()`.
class DeviceMemory final : public Buffer {
 public:
  // Throws CudaError.
  DeviceMemory(std::size_t bytes, std::shared_ptr<DeviceBook> book);
  ~DeviceMemory() override;
  void* data() const override { return data_; }
  std::size_t bytes() const override { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::shared_ptr<DeviceBook> book_;
};

// Memory of the CPU that the device reads and writes without a copy in between.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::size_t bytes);  // throws CudaError
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class Device {
 public:
  // Fails where there is no such device or no driver.
  static Result<std::unique_ptr<Device>> open(int index);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  const DeviceInfo& info() const { return info_; }
  // For what is launched now: behind all uploads. Of one thread.
  cudaStream_t stream() {
    send_waiting();
    return stream_;
  }
  // The same stream for what has nothing to do with uploads; of any thread.
  cudaStream_t bare_stream() const { return stream_; }

  Result<std::unique_ptr<Buffer>> allocate(std::size_t bytes);
  // The address of a workspace of at least `bytes`, made anew where `memory` is smaller; the first `zeroed` bytes of a
  // new one are 0. Throws where there is no memory: the step fails, and the engine goes on.
  void* grow(std::unique_ptr<Buffer>& memory, std::size_t bytes, std::size_t zeroed);
  // The caller's memory may change at once: it is copied to pinned memory, from where the device takes it; small
  // uploads that follow each other in one launch.
  void upload(void* to, const void* from, std::size_t bytes);
  // Rows of `bytes`, `stride` apart, that follow each other in device memory.
  void upload_rows(void* to, const void* from, std::size_t bytes, std::size_t stride, std::size_t rows);
  // Returns when the copy is done.
  void download(void* to, const void* from, std::size_t bytes);
  void wait();  // until all work is done
  // Buffers that are gone: what has recorded addresses looks whether one may have been among them.
  std::uint64_t freed() const { return book_->freed; }

  // Makes the device current for the calling thread: of a call that may come from any thread.
  void use() const;

 private:
  explicit Device(DeviceInfo info) : info_(std::move(info)) {}

  void send_waiting();

  DeviceInfo info_;
  std::shared_ptr<DeviceBook> book_ = std::make_shared<DeviceBook>();
  cudaStream_t stream_ = nullptr;
  // Pinned memory for uploads, used in turn. A part that was left is free again when its event has come.
  struct Staging {
    std::unique_ptr<PinnedMemory> memory;
    cudaEvent_t left = nullptr;
    bool in_use = false;
  };
  std::byte* stage(std::size_t bytes);

  std::vector<Staging> staging_;
  std::size_t part_ = 0;
  std::size_t used_ = 0;                   // of staging_[part_]
  std::unique_ptr<PinnedMemory> landing_;  // of downloads
};

}  // namespace mimo::cuda
