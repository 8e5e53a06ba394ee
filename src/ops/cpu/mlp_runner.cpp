#include "ops/cpu/mlp_runner.h"

#include <algorithm>
#include <numeric>

#include "ops/cpu/task_span.h"

namespace mimo {
namespace {

// Experts up to this size may be handed out whole: a larger one is better streamed by several threads.
constexpr std::size_t kWholeExpertBytes = 256u << 10;

// Slots up to which this is done: with more, the loops over panels have enough to balance.
constexpr int kWholeSlots = 1024;

// Columns that a task adds up.
constexpr std::int64_t kSumColumns = 128;

}  // namespace

MlpRunner::MlpRunner(const CpuKernels& kernels, ThreadPool& pool)
    : kernels_(kernels),
      pool_(pool),
      own_inner_(static_cast<std::size_t>(pool.threads())),
      scratch_(static_cast<std::size_t>(pool.threads())) {}

bool MlpRunner::whole_experts(const PackedMlpBank& bank, int rows) const {
  const auto groups = static_cast<int>(groups_.size());
  const int threads = pool_.threads();
  if (static_cast<int>(token_of_slot_.size()) > kWholeSlots || bank.expert_bytes() > kWholeExpertBytes) {
    return false;
  }
  // Experts of one row take the same time; others even out when there are several for every thread.
  return rows == 1 ? groups % threads == 0 : groups >= 4 * threads;
}

// Every expert by one thread from its input to its output, then the sums: two loops instead of four, and an
// expert's weights are one stream.
void MlpRunner::run_whole(const PackedMlpBank& bank, const ActRows& input, float* inner,
                          std::size_t inner_stride, float* y) {
  const auto hidden = static_cast<std::size_t>(bank.hidden());
  const auto slots = static_cast<std::int64_t>(token_of_slot_.size());
  float* outputs = outputs_.get<float>(static_cast<std::size_t>(slots) * hidden);
  order_.resize(groups_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
    return groups_[static_cast<std::size_t>(a)].count > groups_[static_cast<std::size_t>(b)].count;
  });
  pool_.for_each(static_cast<std::int64_t>(groups_.size()), 1, [&](std::int64_t task, int worker) {
    const auto own = static_cast<std::size_t>(worker);
    const Group& group = groups_[static_cast<std::size_t>(order_[static_cast<std::size_t>(task)])];
    GemmArgs args;
    args.w = bank.gate_up(group.expert);
    args.x = input;
    args.gather = token_of_slot_.data() + group.begin;
    args.rows = group.count;
    args.panel_end = args.w.panels;
    args.epilogue = Epilogue::kGatedSilu;
    args.out = inner + static_cast<std::size_t>(group.begin) * inner_stride;
    args.out_stride = inner_stride;
    args.scratch = scratch_[own].get<std::uint8_t>(gemm_scratch_bytes(args.w.shape, args.rows));
    kernels_.gemm(args);

    GemmArgs down;
    down.w = bank.down(group.expert);
    down.x = own_inner_[own].round(kernels_, down.w.shape, args.out, group.count, inner_stride);
    down.rows = group.count;
    down.panel_end = down.w.panels;
    down.out = outputs + static_cast<std::size_t>(group.begin) * hidden;
    down.out_stride = hidden;
    down.scratch = scratch_[own].get<std::uint8_t>(gemm_scratch_bytes(down.w.shape, down.rows));
    kernels_.gemm(down);
  });
  // Slots are in the order of experts, so that every row is summed as the other way sums it.
  const std::int64_t columns = bank.hidden();
  pool_.for_each((columns + kSumColumns - 1) / kSumColumns, 1, [&](std::int64_t part, int) {
    const std::int64_t begin = part * kSumColumns;
    const std::int64_t count = std::min(kSumColumns, columns - begin);
    for (std::size_t slot = 0; slot < static_cast<std::size_t>(slots); ++slot) {
      const auto row = static_cast<std::size_t>(token_of_slot_[slot]);
      kernels_.add_scaled(outputs + slot * hidden + begin, count, weight_of_slot_[slot],
                          y + row * hidden + begin);
    }
  });
}

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

  if (whole_experts(bank, rows)) {
    run_whole(bank, input, inner, inner_stride, y);
    return;
  }

  const auto threads = static_cast<std::int64_t>(pool_.threads());
  const auto groups = static_cast<std::int64_t>(groups_.size());
  // Enough tasks for balance (experts' row counts differ), not more: each task rounds its rows to tile order
  // anew.
  const std::int64_t wanted = std::max<std::int64_t>(1, (8 * threads + groups - 1) / groups);

  const std::int64_t pairs = gate_up0.panels / 2;
  // One expert (a dense MLP) and few rows: a stream.
  const bool stream = groups == 1 && rows <= kStreamRows;
  const std::int64_t pair_span = stream ? stream_span(pairs, 2 * gate_up0.shape.bytes, threads)
                                        : std::max<std::int64_t>(1, (pairs + wanted - 1) / wanted);
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
  const std::int64_t span = stream ? stream_span(panels, down0.shape.bytes, threads)
                                   : std::max<std::int64_t>(1, panels / (4 * threads));
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
