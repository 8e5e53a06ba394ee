#include "ops/cuda/cuda_kv.h"

#include "ops/cuda/cuda_check.h"

namespace mimo::cuda {

Result<std::unique_ptr<KvStore>> CudaKv::make(const KvSpec& spec, Device& device) {
  if (spec.dtype == KvDType::kF32) {
    return fail(ErrorCode::kUnsupported,
                "--kv-cache-dtype float32: the CUDA backend stores bfloat16 or fp8_e4m3");
  }
  if (spec.qk_dim % 8 != 0 || spec.v_dim % 8 != 0) {
    return fail(ErrorCode::kUnsupported, "heads of {} and {} dims: the CUDA backend needs multiples of 8",
                spec.qk_dim, spec.v_dim);
  }
  std::unique_ptr<CudaKv> store(new CudaKv(spec, device));
  const auto slots = static_cast<std::size_t>(spec.kv_heads) * static_cast<std::size_t>(spec.page_size);
  const bool fp8 = spec.dtype == KvDType::kFp8;
  const std::size_t element = fp8 ? 1 : 2;
  std::vector<std::size_t> sizes = {slots * static_cast<std::size_t>(spec.qk_dim) * element,
                                    slots * static_cast<std::size_t>(spec.v_dim) * element};
  if (fp8) sizes.insert(sizes.end(), 2, slots * sizeof(float));
  for (const std::size_t size : sizes) {
    Result<std::unique_ptr<Buffer>> memory = device.allocate(static_cast<std::size_t>(spec.pages) * size);
    if (!memory) return forward_error(memory);
    store->parts_.push_back({(*memory)->data(), size});
    store->memory_.push_back(std::move(*memory));
  }
  KvView& view = store->view_;
  view.k = store->parts_[0].data;
  view.v = store->parts_[1].data;
  if (fp8) {
    view.k_scale = static_cast<float*>(store->parts_[2].data);
    view.v_scale = static_cast<float*>(store->parts_[3].data);
  }
  view.pages = static_cast<int>(spec.pages);
  view.page_size = spec.page_size;
  view.kv_heads = spec.kv_heads;
  view.qk_dim = spec.qk_dim;
  view.v_dim = spec.v_dim;
  view.fp8 = fp8;
  return store;
}

std::size_t CudaKv::bytes() const { return static_cast<std::size_t>(spec().pages) * page_bytes(); }

std::size_t CudaKv::page_bytes() const {
  std::size_t total = 0;
  for (const Part& part : parts_) total += part.page_bytes;
  return total;
}

// All ones are NaN in every one of the types.
void CudaKv::poison_page(std::int32_t page) {
  device_.use();
  for (const Part& part : parts_) {
    MIMO_CUDA(cudaMemsetAsync(part.at(page), 0xff, part.page_bytes, device_.bare_stream()));
  }
}

void CudaKv::read_page(std::int32_t page, std::span<std::byte> out) const {
  check_page(page, out.size());
  device_.use();
  for (const Part& part : parts_) {
    MIMO_CUDA(cudaMemcpyAsync(out.data(), part.at(page), part.page_bytes, cudaMemcpyDeviceToHost,
                              device_.bare_stream()));
    out = out.subspan(part.page_bytes);
  }
  device_.wait();
}

void CudaKv::write_page(std::int32_t page, std::span<const std::byte> in) {
  check_page(page, in.size());
  device_.use();
  for (const Part& part : parts_) {
    MIMO_CUDA(cudaMemcpyAsync(part.at(page), in.data(), part.page_bytes, cudaMemcpyHostToDevice,
                              device_.bare_stream()));
    in = in.subspan(part.page_bytes);
  }
  device_.wait();
}

}  // namespace mimo::cuda
