#include "ops/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "core/number_formats.h"
#include "core/thread_pool.h"
#include "ops/cpu/activations.h"
#include "ops/cpu/attention_runner.h"
#include "ops/cpu/cpu_kv.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/mlp_runner.h"
#include "ops/cpu/packed_matrix.h"
#include "ops/cpu/task_span.h"

namespace mimo {
namespace {

// Panels of a task with many rows: it brings the rows into tile order first, which takes as long as one and a half
// panels.
constexpr std::int64_t kLeastPanels = 12;

// A smaller matrix is multiplied by the caller alone: waking the pool would take longer.
constexpr std::int64_t kSharedBytes = 128 << 10;

class CpuOps final : public HostOps {
 public:
  CpuOps(CpuLevel level, const CpuOptions& options)
      : kernels_(cpu_kernels(level)),
        precision_(options.precision),
        pool_({.threads = options.threads > 0 ? options.threads : available_cpus(), .pin = options.pin}),
        attention_(kernels_, pool_),
        mlps_(kernels_, pool_),
        scratch_(static_cast<std::size_t>(pool_.threads())) {}

  const char* name() const override { return "cpu"; }

  std::vector<std::string> describe() const override {
    return {
        fmt::format("instruction set: {} ({})", cpu_level_name(kernels_.level), cpu_description()),
        fmt::format("threads: {}", pool_.threads()),
        fmt::format("MXFP4 weights: {} x {} activations, groups of 64",
                    kernels_.level != CpuLevel::kAvx2 ? "vpdpbusd" : "vpmaddubsw",
                    precision_ == ActivationPrecision::kExact ? "15-bit" : "int8"),
        fmt::format("FP8 weights: {} x {}-bit activations, groups of 128",
                    kernels_.level != CpuLevel::kAvx2 ? "vpdpwssd" : "vpmaddwd",
                    precision_ == ActivationPrecision::kExact ? 21 : 11),
        precision_ == ActivationPrecision::kExact ? std::string("BF16 weights: fp32 multiply-add")
                                                  : std::string("BF16 weights: as FP8"),
        fmt::format("attention: {}", kernels_.level == CpuLevel::kAvx512 ? "vdpbf16ps" : "fp32 multiply-add"),
    };
  }

  Result<std::unique_ptr<Matrix>> pack_matrix(const WeightView& view, MatrixUse use) override {
    return PackedMatrix::pack(view, use, precision_, pool_);
  }

  Result<std::unique_ptr<Matrix>> pack_router(const WeightView& view) override {
    // Vocabulary matrices are multiplied in fp32 arithmetic from their stored values, which is what a router
    // needs.
    if (view.format != WeightFormat::kF32 && view.format != WeightFormat::kBF16) {
      return fail(ErrorCode::kUnsupported, "{}: a router is stored as F32 or BF16", view.name);
    }
    return PackedMatrix::pack(view, MatrixUse::kVocabulary, precision_, pool_);
  }

  Result<std::unique_ptr<MlpBank>> pack_mlps(std::span<const MlpViews> experts, MatrixUse use) override {
    return PackedMlpBank::pack(experts, use, precision_, pool_);
  }

  Result<std::unique_ptr<KvStore>> make_kv(const KvSpec& spec) override {
    if (const Status ok = CpuKv::check(spec); !ok) return forward_error(ok);
    return std::make_unique<CpuKv>(spec);
  }

  void embed(const Matrix& table, const std::int32_t* ids, int count, float* out) override {
    const PackedPanels& panels = own(table).panels();
    MIMO_CHECK(panels.shape.kind == PackedKind::kBf16 || panels.shape.kind == PackedKind::kF32,
               "embedding tables are BF16 or F32");
    const auto columns = static_cast<std::size_t>(panels.shape.k);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const auto id = static_cast<std::size_t>(ids[i]);
      const std::uint8_t* panel = panels.data + id / kPanelRows * panels.shape.bytes + id % kPanelRows * 4;
      float* row = out + i * columns;
      for (std::size_t k = 0; k < columns; ++k) {
        if (panels.shape.kind == PackedKind::kF32) {
          std::memcpy(row + k, panel + k * 64, 4);
        } else {
          std::uint16_t bits = 0;
          std::memcpy(&bits, panel + k / 2 * 64 + k % 2 * 2, 2);
          row[k] = bf16_to_float(bits);
        }
      }
    }
  }

  void rms_norm(const float* x, int rows, const Vector& weight, float eps, float* out) override {
    norm(x, rows, weight, eps, out, weight.size());
  }

  void rms_norm(const float* x, int rows, const Vector& weight, float eps, Act* out,
                std::size_t out_width) override {
    norm(x, rows, weight, eps, f32(out), out_width);
  }

  void rms_norm_heads(Act* x, std::size_t row_width, int rows, int heads, const Vector& weight,
                      float eps) override {
    const std::size_t width = weight.size();
    pool_.for_each(rows, 16, [&](std::int64_t r, int) {
      for (int h = 0; h < heads; ++h) {
        float* head = f32(x) + static_cast<std::size_t>(r) * row_width + static_cast<std::size_t>(h) * width;
        kernels_.rms_norm(head, static_cast<std::int64_t>(width), weight.data(), eps, head);
      }
    });
  }

  void linear(const Act* x, int rows, const Matrix& weight, Act* y) override {
    linear(x, rows, weight, f32(y), Store::kOverwrite);
  }

  void linear(const Act* x, int rows, const Matrix& weight, float* y, Store store) override {
    const PackedPanels& panels = own(weight).panels();
    const ActRows act = activations_.round(kernels_, pool_, panels.shape, f32(x), rows,
                                           static_cast<std::size_t>(panels.shape.k));
    GemmArgs args;
    args.w = panels;
    args.x = act;
    args.epilogue = store == Store::kAdd ? Epilogue::kAdd : Epilogue::kStore;
    args.out_stride = static_cast<std::size_t>(panels.rows);
    run_gemm(args, rows, y);
  }

  void rope_and_store_kv(Act* qkv, std::size_t row_width, const SequenceBatch& sequences,
                         const AttentionSpec& spec, float value_scale, KvStore& kv) override {
    attention_.rope_and_store(f32(qkv), row_width, host(sequences), spec, value_scale,
                              dynamic_cast<CpuKv&>(kv));
  }

  void attention(const Act* qkv, std::size_t row_width, const SequenceBatch& sequences,
                 const AttentionSpec& spec, const KvStore& kv, Act* out) override {
    attention_.run(f32(qkv), row_width, host(sequences).sequences(), spec, dynamic_cast<const CpuKv&>(kv),
                   f32(out));
  }

  void route(const Act* x, int rows, const Matrix& router, const RouteSpec& spec, std::int32_t* ids,
             float* weights) override {
    const auto experts = static_cast<std::size_t>(spec.experts);
    const auto top_k = static_cast<std::size_t>(spec.top_k);
    float* logits = logits_.get<float>(static_cast<std::size_t>(rows) * experts);
    linear(x, rows, router, logits, Store::kOverwrite);
    pool_.for_each(rows, 16, [&](std::int64_t r, int) {
      const auto row = static_cast<std::size_t>(r);
      choose_experts({logits + row * experts, experts}, spec, values(spec.bias), {ids + row * top_k, top_k},
                     {weights + row * top_k, top_k});
    });
  }

  void experts(const Act* x, int rows, const MlpBank& bank, int top_k, const std::int32_t* ids,
               const float* weights, float* y) override {
    mlps_.run(f32(x), rows, dynamic_cast<const PackedMlpBank&>(bank), top_k, ids, weights, y);
  }

  void mlp(const Act* x, int rows, const MlpBank& bank, float* y) override {
    const auto& own_bank = dynamic_cast<const PackedMlpBank&>(bank);
    dense_ids_.assign(static_cast<std::size_t>(rows), 0);
    dense_weights_.assign(static_cast<std::size_t>(rows), 1.0f);
    mlps_.run(f32(x), rows, own_bank, 1, dense_ids_.data(), dense_weights_.data(), y);
  }

  void best_tokens(const float* logits, std::size_t row_width, int rows, int count, std::int32_t* ids,
                   float* probabilities) override {
    pool_.for_each(rows, 1, [&](std::int64_t r, int) {
      kernels_.best_token(logits + static_cast<std::size_t>(r) * row_width, count, ids + r,
                          probabilities == nullptr ? nullptr : probabilities + r);
    });
  }

 private:
  void norm(const float* x, int rows, const Vector& weight, float eps, float* out, std::size_t out_width) {
    const std::size_t width = weight.size();
    pool_.for_each(rows, 16, [&](std::int64_t r, int) {
      const auto row = static_cast<std::size_t>(r);
      kernels_.rms_norm(x + row * width, static_cast<std::int64_t>(width), weight.data(), eps,
                        out + row * out_width);
    });
  }

  static const PackedMatrix& own(const Matrix& matrix) { return dynamic_cast<const PackedMatrix&>(matrix); }

  // Cuts [rows] x [panels] into tasks. `args` holds what all of them share.
  void run_gemm(const GemmArgs& args, int rows, float* y) {
    const std::int64_t panels = args.w.panels;
    const int blocks = (rows + kRowBlock - 1) / kRowBlock;
    const std::int64_t threads = pool_.threads();
    // Panels a task. Many rows: about 8 tasks a thread in all, so that the last one to finish costs little.
    const std::int64_t span =
        rows <= kStreamRows
            ? stream_span(panels, args.w.shape.bytes, threads)
            : even_span(panels, std::max<std::int64_t>(kLeastPanels, panels * blocks / (8 * threads)),
                        threads);
    const std::int64_t spans = (panels + span - 1) / span;
    const auto task = [&](std::int64_t index, int worker) {
      const auto block = static_cast<int>(index / spans);
      GemmArgs part = args;
      const int first = block * kRowBlock;
      part.rows = std::min(rows - first, kRowBlock);
      part.x = args.x.from_row(first);
      part.out = y + static_cast<std::size_t>(first) * args.out_stride;
      part.panel_begin = index % spans * span;
      part.panel_end = std::min(part.panel_begin + span, panels);
      part.scratch = scratch_[static_cast<std::size_t>(worker)].get<std::uint8_t>(
          gemm_scratch_bytes(args.w.shape, part.rows));
      kernels_.gemm(part);
    };
    if (rows <= kDirectRows && panels * static_cast<std::int64_t>(args.w.shape.bytes) < kSharedBytes) {
      for (std::int64_t i = 0; i < spans * blocks; ++i) task(i, 0);
      return;
    }
    pool_.for_each(spans * blocks, 1, task);
  }

  const CpuKernels& kernels_;
  ActivationPrecision precision_;
  ThreadPool pool_;
  Activations activations_;
  AttentionRunner attention_;
  MlpRunner mlps_;
  std::vector<Workspace> scratch_;  // one a worker
  Workspace logits_;
  std::vector<std::int32_t> dense_ids_;
  std::vector<float> dense_weights_;
};

}  // namespace

Result<std::unique_ptr<Ops>> make_cpu_ops(const CpuOptions& options) {
  const Result<CpuLevel> level = detect_cpu_level();
  if (!level) return forward_error(level);
  return std::make_unique<CpuOps>(*level, options);
}

}  // namespace mimo
