#include "ops/cpu/mlp_runner.h"

#include <algorithm>

namespace mimo {
MlpRunner::MlpRunner(const CpuKernels& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), scratch_(static_cast<std::size_t>(pool.threads())) {}

void MlpRunner::group_by_expert(int rows, int experts, int top_k, const std::int32_t* ids,
                                const float* weights) {
  const int slots = rows * top_k;
  counts_.assign(static_cast<std::size_t>(experts) + 1, 0);
  for (int s = 0; s < slots; ++s) ++counts_[static_cast<std::size_t>(ids[s]) + 1];
  for (std::size_t e = 1; e < counts_.size(); ++e) counts_[e] += counts_[e - 1];
  token_of_slot_.resize(static_cast<std::size_t>(slots));
  weight_of_slot_.resize(static_cast<std::size_t>(slots));
  groups_.clear();
  for (int e = 0; e < experts; ++e) {
    const int begin = counts_[static_cast<std::size_t>(e)];
    const int count = counts_[static_cast<std::size_t>(e) + 1] - begin;
    for (int part = 0; part < count; part += kRowBlock) {
      groups_.push_back({.expert = e, .begin = begin + part, .count = std::min(kRowBlock, count - part)});
    }
  }
  for (int s = 0; s < slots; ++s) {
    const int slot = counts_[static_cast<std::size_t>(ids[s])]++;
    token_of_slot_[static_cast<std::size_t>(slot)] = s / top_k;
    weight_of_slot_[static_cast<std::size_t>(slot)] = weights[s];
  }
}

void MlpRunner::run(const float* x, int rows, const PackedMlpBank& bank, int top_k, const std::int32_t* ids,
                    const float* weights, float* y) {
  group_by_expert(rows, bank.experts(), top_k, ids, weights);
  const auto hidden = static_cast<std::size_t>(bank.hidden());
  const auto slots = static_cast<int>(token_of_slot_.size());
  const PackedPanels gate_up0 = bank.gate_up(0);
  const PackedPanels down0 = bank.down(0);
  const ActRows input = inputs_.round(kernels_, pool_, gate_up0.shape, x, rows, hidden);
  const auto inner_stride = static_cast<std::size_t>(gate_up0.panels / 2 * kPanelRows);
  float* inner = hidden_.get<float>(static_cast<std::size_t>(slots) * inner_stride);

  const auto threads = static_cast<std::int64_t>(pool_.threads());
  const auto groups = static_cast<std::int64_t>(groups_.size());
  // Enough tasks for balance (experts' row counts differ), not more: each task rounds its rows to tile order
  // anew.
  const std::int64_t wanted = std::max<std::int64_t>(1, (8 * threads + groups - 1) / groups);

  const std::int64_t pairs = gate_up0.panels / 2;
  const std::int64_t pair_span = std::max<std::int64_t>(1, (pairs + wanted - 1) / wanted);
  const std::int64_t pair_spans = (pairs + pair_span - 1) / pair_span;
  pool_.for_each(groups * pair_spans, 1, [&](std::int64_t task, int worker) {
    const Group& group = groups_[static_cast<std::size_t>(task / pair_spans)];
    GemmArgs args;
    args.w = bank.gate_up(group.expert);
    args.x = input;
    args.gather = token_of_slot_.data() + group.begin;
    args.rows = group.count;
    args.panel_begin = task % pair_spans * pair_span * 2;
    args.panel_end = std::min(args.panel_begin + pair_span * 2, pairs * 2);
    args.epilogue = Epilogue::kGatedSilu;
    args.out = inner + static_cast<std::size_t>(group.begin) * inner_stride;
    args.out_stride = inner_stride;
    args.scratch = scratch_[static_cast<std::size_t>(worker)].get<std::uint8_t>(
        gemm_scratch_bytes(args.w.shape, args.rows));
    kernels_.gemm(args);
  });

  const ActRows act = inner_.round(kernels_, pool_, down0.shape, inner, slots, inner_stride);

  // A task owns a range of output columns and walks the experts in order, so that rows are summed in one
  // order.
  const std::int64_t panels = down0.panels;
  const std::int64_t span = std::max<std::int64_t>(1, panels / (4 * threads));
  const std::int64_t spans = (panels + span - 1) / span;
  pool_.for_each(spans, 1, [&](std::int64_t task, int worker) {
    for (const Group& group : groups_) {
      GemmArgs args;
      args.w = bank.down(group.expert);
      args.x = act.from_row(group.begin);
      args.rows = group.count;
      args.panel_begin = task * span;
      args.panel_end = std::min(args.panel_begin + span, panels);
      args.epilogue = Epilogue::kAddScaled;
      args.out = y;
      args.out_stride = hidden;
      args.scatter = token_of_slot_.data() + group.begin;
      args.row_scale = weight_of_slot_.data() + group.begin;
      args.scratch = scratch_[static_cast<std::size_t>(worker)].get<std::uint8_t>(
          gemm_scratch_bytes(args.w.shape, args.rows));
      kernels_.gemm(args);
    }
  });
}

}  // namespace mimo
