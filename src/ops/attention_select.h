// Which attention kernel runs: the kernels that exist as a table, and the choice by device family, phase and shape.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "ops/ops.h"

namespace mimo {

// Whether this source has the kernel of Hopper for prompts.
inline constexpr bool kHopperPrefillBuilt = true;

// Rows of one sequence in a call up to which it counts as decoding: a token, or a token and its drafts.
inline constexpr int kAttentionDecodeRows = 16;

// Sequences of a call that every kernel takes: calls with fewer are one query.
inline constexpr int kAttentionSequences = 1024;

enum class DeviceFamily : std::uint8_t { kCpu, kAmpereAda, kHopper, kBlackwell, kBlackwellRtx, kOtherGpu };
const char* device_family_name(DeviceFamily family);

struct AttentionDevice {
  DeviceFamily family = DeviceFamily::kCpu;
  int sm = 0;  // compute capability without its point: 90; 0 on a CPU

  bool operator==(const AttentionDevice& other) const = default;
};
AttentionDevice attention_device(int major, int minor);

enum class AttentionPhase : std::uint8_t {
  kPrefill,  // longer chunks of prompts
  kDecode,   // up to kAttentionDecodeRows rows a sequence, causal
  kDraft,    // the block of a drafter, whose rows see each other
};
const char* attention_phase_name(AttentionPhase phase);
// Of a call with this mask and at most `rows` rows of a sequence.
AttentionPhase attention_phase(MaskKind mask, int rows);

// What an attention call is, as far as the choice depends on it.
struct AttentionQuery {
  AttentionDevice device;
  AttentionPhase phase = AttentionPhase::kDecode;
  int qk_dim = 0;
  int v_dim = 0;
  int group = 1;  // query heads of a KV head
  int page_size = 0;
  int rows = 1;                         // of one sequence, at most
  int sequences = kAttentionSequences;  // at most
  KvDType kv = KvDType::kBF16;
  bool fp32_activations = false;
  MaskKind mask = MaskKind::kCausal;
  bool aligned = true;  // every row of queries and results begins at a multiple of 16 bytes

  bool operator==(const AttentionQuery& other) const = default;
};

// `rows` as queries have it: 16 for all calls that decode and 17 for all chunks, so that calls which differ in nothing
// else are one query; the rows of a drafter's block, but 16 for smaller ones.
int attention_rows(AttentionPhase phase, int rows);

struct HeadDims {
  int qk = 0;
  int v = 0;
};

// A kernel: where it runs and what it takes. Sets are bits, 1 << value.
struct AttentionEntry {
  std::string_view name;
  unsigned phases = 0;    // of AttentionPhase
  unsigned families = 0;  // of DeviceFamily
  bool built = false;     // this binary has it where it has the backend
  bool own = false;       // made for its family: what is preferred there
  std::span<const HeadDims> dims = {};
  int any_dims = 0;                  // where `dims` is empty: any up to this; 0: no limit
  int max_rows = 0;                  // 0: any number
  int max_group = 0;                 // 0: any
  std::span<const int> groups = {};  // if not empty, the only ones
  int max_sequences = 0;             // 0: any number
  int max_page = 0;                  // 0: any
  unsigned kv = 0;                   // of KvDType
  bool fp32_activations = false;
  bool bidirectional = false;
  bool unaligned = false;

  bool has(AttentionPhase phase) const { return (phases >> static_cast<unsigned>(phase) & 1u) != 0; }
  bool has(DeviceFamily family) const { return (families >> static_cast<unsigned>(family) & 1u) != 0; }
  bool has(KvDType dtype) const { return (kv >> static_cast<unsigned>(dtype) & 1u) != 0; }
};

// Every kernel, the preferred ones first. A name may stand for a kernel of each phase.
std::span<const AttentionEntry> attention_entries();

// "auto" and the names of the entries.
std::vector<std::string> attention_backend_names();

// What was asked for, and by which flag.
struct AttentionChoice {
  std::string name = "auto";
  std::string flag = "--attention-backend";
};

struct AttentionChoices {
  AttentionChoice prefill;
  AttentionChoice decode;
  AttentionChoice draft;

  const AttentionChoice& of(AttentionPhase phase) const;
};

struct AttentionSelection {
  const AttentionEntry* entry = nullptr;
  std::string reason;
  // Nobody asked for this kernel, and one of the device's own would be faster: the caller says so once.
  bool slow = false;
};

// With "auto" the first built entry that takes the query. A named one is taken or refused, never replaced. Fails,
// naming the flag, the value and why, where the name is not known or what it names does not run this; with "auto"
// where no entry does.
Result<AttentionSelection> select_attention(const AttentionQuery& query, const AttentionChoice& choice);

// What is wrong with a choice for this device whatever the shape: its name, the family, a kernel that is not built,
// the type of activations.
Status check_attention_choice(const AttentionDevice& device, AttentionPhase phase,
                              const AttentionChoice& choice, bool fp32_activations);

// "attention, decode, heads 192/128, 16 query heads a KV head, pages of 64 bf16: hopper (sm_90, ...)"
std::string describe_attention(const AttentionQuery& query, const AttentionSelection& selection);

}  // namespace mimo
