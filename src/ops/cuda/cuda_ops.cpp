#include "ops/cuda/cuda_ops.h"

#include <algorithm>
#include <cstddef>

#include "core/check.h"
#include "ops/backend_array.h"
#include "ops/cuda/cuda_attention.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/cuda_experts.h"
#include "ops/cuda/cuda_kv.h"
#include "ops/cuda/cuda_linear.h"
#include "ops/cuda/cuda_matrix.h"
#include "ops/cuda/cuda_sequences.h"
#include "ops/cuda/device.h"
#include "ops/cuda/graphs.h"
#include "ops/cuda/kernels/elementwise.h"
#include "ops/cuda/kernels/route_plain.h"
#include "ops/cuda/kernels/sample.h"

namespace mimo {
namespace cuda {
namespace {

// A router as the checkpoint stores it, row-major.
class CudaRouter final : public Matrix {
 public:
  CudaRouter(std::unique_ptr<Buffer> data, std::int64_t rows, std::int64_t cols, bool bf16)
      : data_(std::move(data)), rows_(rows), cols_(cols), bf16_(bf16) {}
  std::int64_t rows() const override { return rows_; }
  std::int64_t cols() const override { return cols_; }
  std::size_t bytes() const override { return data_->bytes(); }
  const void* data() const { return data_->data(); }
  bool bf16() const { return bf16_; }

 private:
  std::unique_ptr<Buffer> data_;
  std::int64_t rows_;
  std::int64_t cols_;
  bool bf16_;
};

// Rows up to which a cluster of blocks for each finds its best token faster than a block.
constexpr int kClusterRows = 32;

const LinearWeight& weight_of(const Matrix& matrix) {
  return dynamic_cast<const CudaMatrix&>(matrix).weight();
}

class CudaOps final : public Ops {
 public:
  CudaOps(std::unique_ptr<Device> device, const CudaOptions& options)
      : device_(std::move(device)),
        graphs_(*device_),
        act_(options.exact ? ActType::kF32 : ActType::kBF16),
        fast_(!options.exact && hopper()),
        attention_(*device_, options),
        linear_(*this, *device_, act_, fast_),
        experts_(*this, *device_, act_, fast_,
                 options.fp8_experts ? ExpertActivations::kFp8 : ExpertActivations::kBF16) {}

  const char* name() const override { return "cuda"; }

  std::vector<std::string> describe() const override {
    const DeviceInfo& info = device_->info();
    std::vector<std::string> lines = {
        fmt::format("device: cuda:{} {}, compute capability {}.{}, {} multiprocessors, {:.1f} GB", info.index,
                    info.name, info.major, info.minor, info.multiprocessors,
                    static_cast<double>(info.total_bytes) / 1e9),
        fmt::format("activations: {}", act_ == ActType::kF32 ? "fp32" : "BF16")};
    for (const auto& part : {attention_.describe(), linear_.describe(), experts_.describe()}) {
      lines.insert(lines.end(), part.begin(), part.end());
    }
    return lines;
  }

  Result<std::unique_ptr<Buffer>> allocate(std::size_t bytes) override {
    device_->use();
    return device_->allocate(bytes);
  }
  std::size_t act_bytes() const override { return act_ == ActType::kF32 ? 4 : 2; }
  bool host_memory() const override { return false; }
  std::uint64_t free_memory() const override {
    device_->use();
    std::size_t free = 0;
    std::size_t total = 0;
    MIMO_CUDA(cudaMemGetInfo(&free, &total));
    return free;
  }
  void upload(void* to, const void* from, std::size_t bytes) override {
    device_->use();
    device_->upload(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    device_->use();
    device_->download(to, from, bytes);
  }
  void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                 std::size_t bytes, std::size_t count) override {
    if (bytes == 0 || count == 0) return;
    device_->use();
    MIMO_CUDA(cudaMemcpy2DAsync(to, to_stride, from, from_stride, bytes, count, cudaMemcpyDeviceToDevice,
                                stream()));
  }
  void gather_rows(void* to, const void* from, std::size_t bytes, const std::int32_t* index,
                   int count) override {
    device_->use();
    cuda::gather_rows(to, from, bytes, index, count, stream());
  }
  void to_act(const float* x, std::size_t count, Act* out) override {
    device_->use();
    round_to_act(x, count, out, act_, stream());
    linear_.written(out);
  }
  std::unique_ptr<SequenceBatch> make_sequences(const RopeSpec& rope) override {
    return std::make_unique<CudaSequences>(*this, rope);
  }

  Result<std::unique_ptr<Matrix>> pack_matrix(const WeightView& view, MatrixUse /*use*/) override {
    device_->use();
    return CudaMatrix::pack(view, *device_);
  }
  Result<std::unique_ptr<Matrix>> pack_router(const WeightView& view) override;
  Result<std::unique_ptr<MlpBank>> pack_mlps(std::span<const MlpViews> experts, MatrixUse /*use*/) override {
    device_->use();
    return CudaMlpBank::pack(experts, fast_, *device_);
  }
  Result<std::unique_ptr<KvStore>> make_kv(const KvSpec& spec) override {
    device_->use();
    return CudaKv::make(spec, *device_);
  }

  void run(std::span<const std::int64_t> key, const std::function<void()>& body) override {
    device_->use();
    attention_.forget_plans();
    graphs_.run(key, body);
    attention_.forget_plans();
  }

  void embed(const Matrix& table, const std::int32_t* ids, int count, float* out) override {
    device_->use();
    embed_rows(weight_of(table), ids, count, out, stream());
  }
  void rms_norm(const float* x, int rows, const Vector& weight, float eps, float* out) override {
    device_->use();
    cuda::rms_norm(x, rows, static_cast<int>(weight.size()), weight.data(), eps, out, ActType::kF32,
                   weight.size(), stream());
  }
  void rms_norm(const float* x, int rows, const Vector& weight, float eps, Act* out,
                std::size_t out_width) override {
    device_->use();
    linear_.rms_norm(x, rows, weight, eps, out, out_width);
  }
  void rms_norm_heads(Act* x, std::size_t row_width, int rows, int heads, const Vector& weight,
                      float eps) override {
    device_->use();
    cuda::rms_norm_heads(x, act_, row_width, rows, heads, static_cast<int>(weight.size()), weight.data(), eps,
                         stream());
    linear_.written(x);
  }

  void linear(const Act* x, int rows, const Matrix& weight, float* y, Store store) override {
    device_->use();
    linear_.run(x, rows, weight_of(weight), y, ActType::kF32, store == Store::kAdd);
  }
  void linear(const Act* x, int rows, const Matrix& weight, Act* y) override {
    device_->use();
    linear_.run(x, rows, weight_of(weight), y, act_, false);
  }

  void rope_and_store_kv(Act* qkv, std::size_t row_width, const SequenceBatch& sequences,
                         const AttentionSpec& spec, float value_scale, KvStore& kv) override {
    device_->use();
    const CudaSequences& batch = cuda_sequences(sequences);
    RopeStoreArgs args;
    args.qkv = qkv;
    args.type = act_;
    args.row_stride = row_width;
    args.q_heads = spec.q_heads;
    args.kv = dynamic_cast<CudaKv&>(kv).view();
    args.sequences = batch.view();
    args.inverse_frequencies = batch.inverse_frequencies();
    args.rotary_dims = batch.rotary_dims();
    args.value_scale = value_scale;
    rope_and_store(args, stream());
    linear_.written(qkv);
  }

  void attention(const Act* qkv, std::size_t row_width, const SequenceBatch& sequences,
                 const AttentionSpec& spec, const KvStore& kv, Act* out) override {
    device_->use();
    AttentionArgs args;
    args.q = qkv;
    args.q_stride = static_cast<std::int64_t>(row_width);
    args.out = out;
    args.kv = dynamic_cast<const CudaKv&>(kv).view();
    args.sinks = spec.sinks == nullptr ? nullptr : spec.sinks->data();
    args.q_heads = spec.q_heads;
    args.window = spec.window;
    args.anchor_window = spec.window_start == WindowStart::kAnchor;
    args.scale = spec.scale;
    args.mask = spec.mask == MaskKind::kCausal ? Mask::kCausal : Mask::kBidirectional;
    args.type = act_;
    for (const SequenceView& part : cuda_sequences(sequences).parts()) {
      args.sequences = part;
      attention_.run(args);
    }
    linear_.written(out);
  }

  void route(const Act* x, int rows, const Matrix& router, const RouteSpec& spec, std::int32_t* ids,
             float* weights) override {
    device_->use();
    const auto& stored = dynamic_cast<const CudaRouter&>(router);
    experts_.route(x, rows, static_cast<int>(stored.cols()), stored.data(), stored.bf16(), spec, ids,
                   weights);
  }

  void experts(const Act* x, int rows, const MlpBank& bank, int top_k, const std::int32_t* ids,
               const float* weights, float* y) override {
    device_->use();
    const auto& own = dynamic_cast<const CudaMlpBank&>(bank);
    MIMO_CHECK(own.gate_up() == nullptr, "a dense MLP has no experts to choose");
    experts_.run(x, rows, own, top_k, ids, weights, y);
  }

  void mlp(const Act* x, int rows, const MlpBank& bank, float* y) override {
    device_->use();
    const auto& own = dynamic_cast<const CudaMlpBank&>(bank);
    if (own.gate_up() == nullptr) {
      experts_.run(x, rows, own, 1, nullptr, nullptr, y);
      return;
    }
    const auto inter = static_cast<std::size_t>(own.inter());
    Act* gate_up = gate_up_.reserve(*this, static_cast<std::size_t>(rows) * 2 * inter);
    Act* product = product_.reserve(*this, static_cast<std::size_t>(rows) * inter);
    linear_.run(x, rows, own.gate_up()->weight(), gate_up, act_, false);
    linear_.silu_mul(gate_up, rows, own.inter(), product);
    linear_.run(product, rows, own.down()->weight(), y, ActType::kF32, true);
  }

  void best_tokens(const float* logits, std::size_t row_width, int rows, int count, std::int32_t* ids,
                   float* probabilities) override {
    device_->use();
    if (hopper() && rows <= kClusterRows && count <= kSampleMaxCount) {
      best_tokens_in_clusters(logits, row_width, rows, count, ids, probabilities, false, stream());
    } else {
      cuda::best_tokens(logits, row_width, rows, count, ids, probabilities, stream());
    }
  }
  bool best_linear(const Act* x, int rows, const Matrix& head, int count, std::int32_t* ids,
                   float* probabilities) override {
    device_->use();
    if (!linear_.takes_best(weight_of(head))) return false;
    linear_.best(x, rows, weight_of(head), count, ids, probabilities);
    return true;
  }
  bool draws_tokens(int count) const override { return hopper() && count <= kSampleMaxCount; }
  void draw_tokens(const float* logits, std::size_t row_width, int rows, int count, const TokenDraw* draws,
                   std::int32_t* ids) override;

 private:
  cudaStream_t stream() const { return device_->stream(); }
  // Whether kernels that are built for Hopper alone run.
  bool hopper() const { return device_->info().major == 9; }

  std::unique_ptr<Device> device_;
  Graphs graphs_;
  ActType act_;
  bool fast_;
  CudaAttention attention_;
  CudaLinear linear_;
  CudaExperts experts_;
  BackendArray<Act> gate_up_;
  BackendArray<Act> product_;
};

void CudaOps::draw_tokens(const float* logits, std::size_t row_width, int rows, int count,
                          const TokenDraw* draws, std::int32_t* ids) {
  // The kernel's struct is the same one.
  static_assert(sizeof(TokenDraw) == sizeof(SampleRow) &&
                offsetof(TokenDraw, inverse_temperature) == offsetof(SampleRow, inverse_temperature) &&
                offsetof(TokenDraw, top_k) == offsetof(SampleRow, top_k) &&
                offsetof(TokenDraw, min_p_distance) == offsetof(SampleRow, min_p_distance) &&
                offsetof(TokenDraw, top_p) == offsetof(SampleRow, top_p) &&
                offsetof(TokenDraw, uniform) == offsetof(SampleRow, uniform));
  device_->use();
  SampleArgs args;
  args.logits = logits;
  args.row_stride = row_width;
  args.rows = rows;
  args.count = count;
  args.params = reinterpret_cast<const SampleRow*>(draws);
  args.ids = ids;
  sample_tokens(args, stream());
}

Result<std::unique_ptr<Matrix>> CudaOps::pack_router(const WeightView& view) {
  if (view.format != WeightFormat::kF32 && view.format != WeightFormat::kBF16) {
    return fail(ErrorCode::kUnsupported, "{}: a router is stored as F32 or BF16", view.name);
  }
  if (view.rows > kRouteMaxExperts) {
    return fail(ErrorCode::kUnsupported, "{}: {} experts, the CUDA backend routes to at most {}", view.name,
                view.rows, kRouteMaxExperts);
  }
  device_->use();
  const std::size_t row_bytes = weight_row_bytes(view.format, view.cols);
  Result<std::unique_ptr<Buffer>> data = device_->allocate(static_cast<std::size_t>(view.rows) * row_bytes);
  if (!data) return tl::unexpected(data.error().within(view.name));
  auto* to = static_cast<std::byte*>((*data)->data());
  for (const WeightSegment& segment : view.segments) {
    const auto rows = static_cast<std::size_t>(segment.rows);
    device_->upload_rows(to, segment.data, row_bytes, segment.row_stride, rows);
    to += rows * row_bytes;
  }
  return std::make_unique<CudaRouter>(std::move(*data), view.rows, view.cols,
                                      view.format == WeightFormat::kBF16);
}

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Ops>> make_cuda_ops(const CudaOptions& options) {
  Result<std::unique_ptr<cuda::Device>> device = cuda::Device::open(options.device);
  if (!device) return forward_error(device);
  const cuda::DeviceInfo& info = (*device)->info();
  if (info.major < 8) {
    return fail(ErrorCode::kUnsupported,
                "--device cuda:{}: {} has compute capability {}.{}, expected 8.0 or later", options.device,
                info.name, info.major, info.minor);
  }
  if (options.fp8_experts && (options.exact || info.major != 9)) {
    return fail(ErrorCode::kUnsupported, "--expert-activations fp8: {}; expected bf16",
                options.exact ? "--activations exact computes in fp32"
                              : fmt::format("{} has compute capability {}.{}, and the kernel is for 9.0",
                                            info.name, info.major, info.minor));
  }
  if (const Status ok = cuda::CudaAttention::check(info, options); !ok) return forward_error(ok);
  return std::make_unique<cuda::CudaOps>(std::move(*device), options);
}

int count_cuda_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

}  // namespace mimo
