// What the table of attention kernels says that a kernel takes is what the kernel itself says.
#include <gtest/gtest.h>

#include "ops/attention_select.h"
#include "ops/cuda/kernels/attention_decode.h"
#include "ops/cuda/kernels/attention_prefill.h"

namespace mimo::cuda {
namespace {

// The largest call that a query stands for.
AttentionArgs arguments(const AttentionQuery& query, int kv_heads) {
  alignas(16) static char memory[64];  // nothing is read
  AttentionArgs args;
  args.type = query.fp32_activations ? ActType::kF32 : ActType::kBF16;
  args.q_heads = kv_heads * query.group;
  // Rows of Q, K and V, as a model has them: one more element where rows are not aligned.
  args.q_stride =
      std::int64_t{args.q_heads + kv_heads} * query.qk_dim + kv_heads * query.v_dim + (query.aligned ? 0 : 1);
  args.q = memory;
  args.out = memory;
  args.kv.k = memory;
  args.kv.v = memory;
  args.kv.kv_heads = kv_heads;
  args.kv.qk_dim = query.qk_dim;
  args.kv.v_dim = query.v_dim;
  args.kv.page_size = query.page_size;
  args.kv.fp8 = query.kv == KvDType::kFp8;
  args.sequences.sequences = query.sequences;
  args.sequences.max_rows = query.rows;
  args.sequences.total_rows = query.sequences * query.rows;
  args.mask = query.mask == MaskKind::kCausal ? Mask::kCausal : Mask::kBidirectional;
  args.scale = 0.07f;
  return args;
}

std::string text(const AttentionQuery& query) {
  return fmt::format("{}, heads {}/{}, group {}, pages of {}, {} rows, {} sequences, {}, fp32 {}, aligned {}",
                     attention_phase_name(query.phase), query.qk_dim, query.v_dim, query.group,
                     query.page_size, query.rows, query.sequences, kv_dtype_name(query.kv),
                     query.fp32_activations, query.aligned);
}

// Every query of a grid whose sizes lie around the kernels' limits.
template <class Check>
void for_every_query(const Check& check) {
  for (const AttentionPhase phase :
       {AttentionPhase::kPrefill, AttentionPhase::kDecode, AttentionPhase::kDraft})
    for (const int qk : {64, 128, 192, 256})
      for (const int v : {64, 128, 192})
        for (const int group : {1, 2, 3, 4, 8, 12, 15, 16, 17, 32, 48, 64, 128})
          for (const int page : {1, 3, 8, 16, 64, 100, 256, 257, 512})
            for (const int rows : {1, 7, 16, 17, 64})
              for (const int sequences : {kAttentionSequences, 2 * kAttentionSequences})
                for (const KvDType kv : {KvDType::kBF16, KvDType::kFp8, KvDType::kF32})
                  for (const bool fp32 : {false, true})
                    for (const bool aligned : {true, false}) {
                      AttentionQuery query;
                      query.device = attention_device(9, 0);
                      query.phase = phase;
                      query.qk_dim = qk;
                      query.v_dim = v;
                      query.group = group;
                      query.page_size = page;
                      query.rows = attention_rows(phase, rows);
                      query.sequences = sequences;
                      query.kv = kv;
                      query.fp32_activations = fp32;
                      query.mask =
                          phase == AttentionPhase::kDraft ? MaskKind::kBidirectional : MaskKind::kCausal;
                      query.aligned = aligned;
                      check(query);
                    }
}

TEST(AttentionLimits, WhatTheTableGivesToHopperItsKernelsTake) {
  int given[3] = {};
  for_every_query([&](const AttentionQuery& query) {
    const Result<AttentionSelection> selection = select_attention(query, {});
    if (!selection || selection->entry->name != "hopper") return;
    ++given[static_cast<int>(query.phase)];
    const bool prefill = selection->entry->has(AttentionPhase::kPrefill);
    for (const int kv_heads : {1, 4, 8}) {
      const AttentionArgs args = arguments(query, kv_heads);
      const bool taken = prefill ? attention_prefill_supports(args) : attention_decode_supports(args);
      if (!taken) ADD_FAILURE() << "chosen but not taken: " << text(query);
    }
  });
  for (const int count : given) EXPECT_GT(count, 50);
}

// What the kernels could run is not left to the slow one, except what the table leaves out on purpose: masks, and FP32
// keys and values, which no GPU kernel takes.
TEST(AttentionLimits, NothingThatTheKernelsTakeIsGivenToAnother) {
  for_every_query([&](const AttentionQuery& query) {
    if (query.kv == KvDType::kF32) return;
    const Result<AttentionSelection> selection = select_attention(query, {});
    if (selection && selection->entry->name == "hopper") return;
    const AttentionArgs args = arguments(query, 4);
    const bool taken = query.phase == AttentionPhase::kPrefill ? attention_prefill_supports(args)
                                                               : attention_decode_supports(args);
    if (taken) ADD_FAILURE() << "taken but not chosen: " << text(query);
  });
}

}  // namespace
}  // namespace mimo::cuda
