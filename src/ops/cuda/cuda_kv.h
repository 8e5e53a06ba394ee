// Paged keys and values of one layer in device memory; views.h has the layout.
#pragma once

#include <memory>

#include "ops/cuda/device.h"
#include "ops/cuda/kernels/views.h"
#include "ops/ops.h"

namespace mimo::cuda {

class CudaKv final : public KvStore {
 public:
  static Result<std::unique_ptr<KvStore>> make(const KvSpec& spec, Device& device);

  const KvView& view() const { return view_; }

  std::size_t bytes() const override;
  void poison_page(std::int32_t page) override;
  // Keys, values, scales of the keys, scales of the values.
  std::size_t page_bytes() const override;
  void read_page(std::int32_t page, std::span<std::byte> out) const override;
  void write_page(std::int32_t page, std::span<const std::byte> in) override;

 private:
  // A part of the store: the same number of bytes for every page.
  struct Part {
    void* data = nullptr;
    std::size_t page_bytes = 0;
    std::byte* at(std::int32_t page) const {
      return static_cast<std::byte*>(data) + static_cast<std::size_t>(page) * page_bytes;
    }
  };

  CudaKv(const KvSpec& spec, Device& device) : KvStore(spec), device_(device) {}

  Device& device_;
  std::vector<std::unique_ptr<Buffer>> memory_;
  std::vector<Part> parts_;
  KvView view_;
};

}  // namespace mimo::cuda
