// The table of attention kernels and the choice from it.
#include "ops/attention_select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace mimo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Phase = AttentionPhase;
using Family = DeviceFamily;

const AttentionChoice kAuto;

AttentionQuery target(AttentionDevice device, Phase phase) {
  AttentionQuery query;
  query.device = device;
  query.phase = phase;
  query.qk_dim = 192;
  query.v_dim = 128;
  query.group = 16;
  query.page_size = 64;
  query.rows = attention_rows(phase, 1);
  return query;
}

// A block of a DFlash drafter.
AttentionQuery block(AttentionDevice device, int rows) {
  AttentionQuery query = target(device, Phase::kDraft);
  query.qk_dim = 128;
  query.group = 4;
  query.rows = attention_rows(Phase::kDraft, rows);
  query.mask = MaskKind::kBidirectional;
  return query;
}

AttentionSelection selected(const AttentionQuery& query, const AttentionChoice& choice = kAuto) {
  const Result<AttentionSelection> selection = select_attention(query, choice);
  if (!selection) {
    ADD_FAILURE() << selection.error().message;
    return {&attention_entries().front(), "nothing was selected", false};
  }
  return *selection;
}

std::string refusal(const AttentionQuery& query, const AttentionChoice& choice) {
  const Result<AttentionSelection> selection = select_attention(query, choice);
  return selection ? "taken: " + std::string(selection->entry->name) : selection.error().message;
}

TEST(AttentionDevice, FamilyOfTheComputeCapability) {
  const struct {
    int major, minor;
    Family family;
  } cases[] = {{8, 0, Family::kAmpereAda},     {8, 6, Family::kAmpereAda},     {8, 9, Family::kAmpereAda},
               {9, 0, Family::kHopper},        {10, 0, Family::kBlackwell},    {10, 3, Family::kBlackwell},
               {12, 0, Family::kBlackwellRtx}, {12, 1, Family::kBlackwellRtx}, {11, 0, Family::kOtherGpu},
               {13, 0, Family::kOtherGpu}};
  for (const auto& c : cases) {
    EXPECT_EQ(attention_device(c.major, c.minor).family, c.family) << c.major << "." << c.minor;
    EXPECT_EQ(attention_device(c.major, c.minor).sm, 10 * c.major + c.minor);
  }
}

TEST(AttentionPhase, OfMaskAndRows) {
  for (const int rows : {1, 8, 16})
    EXPECT_EQ(attention_phase(MaskKind::kCausal, rows), Phase::kDecode) << rows;
  for (const int rows : {17, 512})
    EXPECT_EQ(attention_phase(MaskKind::kCausal, rows), Phase::kPrefill) << rows;
  for (const int rows : {1, 8, 16, 17, 512}) {
    EXPECT_EQ(attention_phase(MaskKind::kBidirectional, rows), Phase::kDraft) << rows;
  }
}

// What each device runs by itself, and which of it is to be reported.
TEST(AttentionSelect, AutomaticByFamilyAndPhase) {
  const struct {
    int major, minor;
    Phase phase;
    const char* name;
    bool slow;
    const char* reason;
  } cases[] = {
      {8, 0, Phase::kPrefill, "portable", true, "no kernel of its own for sm_80 (ampere/ada)"},
      {8, 6, Phase::kDecode, "portable", true, "no kernel of its own for sm_86 (ampere/ada)"},
      {8, 9, Phase::kDraft, "portable", true, "no kernel of its own for sm_89 (ampere/ada)"},
      {9, 0, Phase::kDecode, "hopper", false, "sm_90, heads 192/128, up to 16 rows a sequence"},
      {9, 0, Phase::kDraft, "hopper", false, "sm_90, heads 192/128, up to 16 rows a sequence"},
      {10, 0, Phase::kPrefill, "portable", true, "blackwell: this mimo has no such prefill kernel"},
      {10, 0, Phase::kDecode, "portable", true, "blackwell: this mimo has no such decode kernel"},
      {10, 3, Phase::kDraft, "portable", true, "blackwell: this mimo has no such draft kernel"},
      {12, 0, Phase::kPrefill, "portable", true, "blackwell_rtx: this mimo has no such prefill kernel"},
      {12, 1, Phase::kDecode, "portable", true, "blackwell_rtx: this mimo has no such decode kernel"},
      {12, 0, Phase::kDraft, "portable", true, "blackwell_rtx: this mimo has no such draft kernel"},
      {11, 0, Phase::kDecode, "portable", true, "no kernel of its own for sm_110 (another family)"},
  };
  for (const auto& c : cases) {
    const AttentionSelection selection = selected(target(attention_device(c.major, c.minor), c.phase));
    EXPECT_EQ(selection.entry->name, c.name) << c.reason;
    EXPECT_EQ(selection.reason, c.reason);
    EXPECT_EQ(selection.slow, c.slow) << c.reason;
    EXPECT_TRUE(selection.entry->built);
  }
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode, Phase::kDraft}) {
    const AttentionSelection selection = selected(target({}, phase));
    EXPECT_EQ(selection.entry->name, "cpu");
    EXPECT_FALSE(selection.slow);
  }
}

TEST(AttentionSelect, PromptsOnHopper) {
  const AttentionSelection selection = selected(target(attention_device(9, 0), Phase::kPrefill));
  if (kHopperPrefillBuilt) {
    EXPECT_EQ(selection.entry->name, "hopper");
    EXPECT_FALSE(selection.slow);
    EXPECT_EQ(selection.reason, "sm_90, heads 192/128, any number of rows");
  } else {
    EXPECT_EQ(selection.entry->name, "portable");
    EXPECT_TRUE(selection.slow);
    EXPECT_EQ(selection.reason, "hopper: this mimo has no such prefill kernel");
  }
}

// The kernel for few rows on Hopper takes exactly this; else the portable one runs, with the reason.
TEST(AttentionSelect, ShapesOnHopper) {
  const AttentionDevice hopper = attention_device(9, 0);
  const auto expect = [](const AttentionQuery& query, const std::string& fault) {
    const AttentionSelection selection = selected(query);
    EXPECT_EQ(selection.entry->name, fault.empty() ? "hopper" : "portable") << selection.reason;
    EXPECT_EQ(selection.slow, !fault.empty()) << selection.reason;
    if (!fault.empty()) {
      EXPECT_EQ(selection.reason, "hopper: " + fault);
      // Who asks for it by name is told the same.
      EXPECT_THAT(refusal(query, {"hopper", "--flag"}), AllOf(HasSubstr("--flag hopper"), HasSubstr(fault)));
    }
  };
  for (int group = 1; group <= 32; ++group) {
    AttentionQuery query = target(hopper, Phase::kDecode);
    query.group = group;
    expect(query, group <= 16 ? "" : "takes up to 16 query heads a KV head, not " + std::to_string(group));
  }
  for (const int page : {1, 3, 16, 64, 255, 256, 257, 512, 1024}) {
    AttentionQuery query = target(hopper, Phase::kDecode);
    query.page_size = page;
    expect(query, page <= 256 ? "" : "takes pages of up to 256 tokens, not " + std::to_string(page));
  }
  for (const int rows : {1, 8, 16, 17, 512}) {
    expect(block(hopper, rows),
           rows <= 16 ? "" : "takes up to 16 rows a sequence, not " + std::to_string(rows));
  }
  for (const auto& [qk, v] :
       {std::pair{192, 128}, {128, 128}, {64, 64}, {192, 192}, {128, 192}, {256, 128}}) {
    AttentionQuery query = target(hopper, Phase::kDecode);
    query.qk_dim = qk;
    query.v_dim = v;
    const bool taken = v == 128 && (qk == 192 || qk == 128);
    expect(query, taken ? ""
                        : "takes heads of 192/128 or 128/128 dims, not " + std::to_string(qk) + "/" +
                              std::to_string(v));
  }
  for (const KvDType kv : {KvDType::kBF16, KvDType::kFp8}) {
    AttentionQuery query = target(hopper, Phase::kDecode);
    query.kv = kv;
    expect(query, "");
  }
  AttentionQuery query = target(hopper, Phase::kDecode);
  query.aligned = false;
  expect(query, "takes rows that begin at multiples of 16 bytes only");
}

TEST(AttentionSelect, ShapesOfPromptsOnHopper) {
  if (!kHopperPrefillBuilt) GTEST_SKIP() << "no such kernel";
  const auto reason = [](const AttentionQuery& query) { return selected(query).reason; };
  for (int group = 1; group <= 64; ++group) {
    AttentionQuery query = target(attention_device(9, 0), Phase::kPrefill);
    query.group = group;
    const bool taken = group == 8 || group == 16 || group == 32 || group == 64;
    EXPECT_EQ(selected(query).entry->name, taken ? "hopper" : "portable") << group;
    EXPECT_EQ(selected(query).slow, !taken) << group;
  }
  AttentionQuery query = target(attention_device(9, 0), Phase::kPrefill);
  query.page_size = 1024;
  EXPECT_EQ(selected(query).entry->name, "hopper");
  query.sequences = 1025;
  EXPECT_EQ(reason(query), "hopper: takes up to 1024 sequences, not 1025");
  query = target(attention_device(9, 0), Phase::kPrefill);
  query.qk_dim = 128;
  EXPECT_EQ(reason(query), "hopper: takes heads of 192/128 dims, not 128/128");
}

TEST(AttentionSelect, TheExactModeIsPortableAndNotReported) {
  for (const auto& [major, minor] : {std::pair{8, 0}, {9, 0}, {10, 0}, {12, 0}, {11, 0}}) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode, Phase::kDraft}) {
      AttentionQuery query = target(attention_device(major, minor), phase);
      query.fp32_activations = true;
      const AttentionSelection selection = selected(query);
      EXPECT_EQ(selection.entry->name, "portable");
      EXPECT_EQ(selection.reason, "the exact mode: fp32 activations");
      EXPECT_FALSE(selection.slow);
    }
  }
  const AttentionChoice choice{"hopper", "--decode-attention-backend"};
  EXPECT_EQ(check_attention_choice(attention_device(9, 0), Phase::kDecode, choice, true).error().message,
            "--decode-attention-backend hopper: takes BF16 activations, not the fp32 ones of the exact mode "
            "(attention, decode)");
  EXPECT_TRUE(check_attention_choice(attention_device(9, 0), Phase::kDecode, {"portable", "--flag"}, true));
}

TEST(AttentionSelect, WhatNoKernelTakesIsRefused) {
  AttentionQuery query = target(attention_device(9, 0), Phase::kDecode);
  query.qk_dim = 512;
  EXPECT_EQ(
      refusal(query, kAuto),
      "no attention kernel for decode on sm_90 (hopper): hopper: takes heads of 192/128 or 128/128 dims, not "
      "512/128; portable: takes heads of up to 256 dims, not 512/128");
  query = target(attention_device(8, 0), Phase::kPrefill);
  query.kv = KvDType::kF32;
  EXPECT_THAT(refusal(query, kAuto), HasSubstr("portable: does not take f32 keys and values"));
}

// A choice by name wins over the automatic one, and nobody is warned of what was asked for.
TEST(AttentionSelect, ANamedKernelWins) {
  const AttentionChoice portable{"portable", "--attention-backend"};
  for (const auto& [major, minor] : {std::pair{8, 9}, {9, 0}, {10, 3}, {12, 0}}) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode, Phase::kDraft}) {
      const AttentionSelection selection = selected(target(attention_device(major, minor), phase), portable);
      EXPECT_EQ(selection.entry->name, "portable");
      EXPECT_EQ(selection.reason, "--attention-backend portable");
      EXPECT_FALSE(selection.slow);
    }
  }
  const AttentionSelection hopper =
      selected(block(attention_device(9, 0), 8), {"hopper", "--speculative-draft-attention-backend"});
  EXPECT_EQ(hopper.entry->name, "hopper");
  EXPECT_EQ(hopper.reason, "--speculative-draft-attention-backend hopper");
  EXPECT_EQ(selected(target({}, Phase::kDecode), {"cpu", "--attention-backend"}).entry->name, "cpu");
}

TEST(AttentionSelect, ANamedKernelThatDoesNotRunHereIsRefused) {
  const struct {
    AttentionDevice device;
    Phase phase;
    const char* name;
    const char* message;
  } cases[] = {
      {attention_device(8, 6), Phase::kDecode, "hopper",
       "--flag hopper: runs on sm_90 (hopper), this is sm_86 (ampere/ada) (attention, decode)"},
      {attention_device(9, 0), Phase::kDecode, "blackwell",
       "--flag blackwell: runs on sm_100 and sm_103 (blackwell), this is sm_90 (hopper) (attention, decode)"},
      {attention_device(10, 0), Phase::kPrefill, "blackwell",
       "--flag blackwell: this mimo has no such prefill kernel (attention, prefill)"},
      {attention_device(12, 0), Phase::kDraft, "blackwell_rtx",
       "--flag blackwell_rtx: this mimo has no such draft kernel (attention, draft)"},
      {attention_device(10, 0), Phase::kDraft, "blackwell_rtx",
       "--flag blackwell_rtx: runs on sm_120 and sm_121 (blackwell_rtx), this is sm_100 (blackwell) "
       "(attention, draft)"},
      {attention_device(9, 0), Phase::kDecode, "cpu",
       "--flag cpu: runs on the CPU backends, this is sm_90 (hopper) (attention, decode)"},
      {{},
       Phase::kDecode,
       "hopper",
       "--flag hopper: runs on sm_90 (hopper), this is the CPU (attention, decode)"},
      {{},
       Phase::kPrefill,
       "portable",
       "--flag portable: runs on any GPU, this is the CPU (attention, prefill)"},
      {attention_device(9, 0), Phase::kDecode, "flashinfer",
       "--flag flashinfer: expected auto, hopper, blackwell, blackwell_rtx, portable, cpu"},
      {attention_device(9, 0), Phase::kDecode, "",
       "--flag : expected auto, hopper, blackwell, blackwell_rtx, "
       "portable, cpu"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(refusal(target(c.device, c.phase), {c.name, "--flag"}), c.message);
    const Status ok = check_attention_choice(c.device, c.phase, {c.name, "--flag"}, false);
    ASSERT_FALSE(ok) << c.name;
    EXPECT_EQ(ok.error().message, c.message);
  }
  EXPECT_TRUE(check_attention_choice(attention_device(8, 0), Phase::kPrefill, kAuto, false));
  EXPECT_TRUE(check_attention_choice(attention_device(9, 0), Phase::kDecode, {"hopper", "--flag"}, false));
}

TEST(AttentionSelect, EachPhaseHasItsOwnChoice) {
  AttentionChoices choices;
  choices.prefill.name = "portable";
  choices.decode.name = "hopper";
  choices.draft.name = "cpu";
  EXPECT_EQ(choices.of(Phase::kPrefill).name, "portable");
  EXPECT_EQ(choices.of(Phase::kDecode).name, "hopper");
  EXPECT_EQ(choices.of(Phase::kDraft).name, "cpu");
}

// Whoever adds a kernel keeps these: every name has an entry for each phase, so that a name is refused with a reason
// and not as unknown; a kernel of a family's own stands before the portable one; portable takes all that is GPU.
TEST(AttentionEntries, AreComplete) {
  std::set<std::string_view> names;
  bool portable_seen = false;
  for (const AttentionEntry& entry : attention_entries()) {
    names.insert(entry.name);
    EXPECT_NE(entry.kv, 0u) << entry.name;
    if (entry.name == "portable") portable_seen = true;
    EXPECT_FALSE(entry.own && !entry.has(Family::kCpu) && portable_seen) << entry.name;
  }
  for (const std::string_view name : names) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode, Phase::kDraft}) {
      int found = 0;
      for (const AttentionEntry& entry : attention_entries()) found += entry.name == name && entry.has(phase);
      EXPECT_EQ(found, 1) << name << " " << attention_phase_name(phase);
    }
  }
  EXPECT_EQ(names.size() + 1, attention_backend_names().size());
}

TEST(AttentionSelect, Describes) {
  const AttentionQuery query = block(attention_device(9, 0), 8);
  EXPECT_EQ(
      describe_attention(query, selected(query)),
      "attention, draft, heads 128/128, 4 query heads a KV head, pages of 64 in bf16: hopper (sm_90, heads "
      "128/128, up to 16 rows a sequence)");
}

}  // namespace
}  // namespace mimo
