#include "ops/attention_select.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/check.h"

namespace mimo {
namespace {

template <class... T>
constexpr unsigned bits(T... values) {
  return ((1u << static_cast<unsigned>(values)) | ...);
}

constexpr unsigned kEveryPhase =
    bits(AttentionPhase::kPrefill, AttentionPhase::kDecode, AttentionPhase::kDraft);
constexpr unsigned kEveryGpu = bits(DeviceFamily::kAmpereAda, DeviceFamily::kHopper, DeviceFamily::kBlackwell,
                                    DeviceFamily::kBlackwellRtx, DeviceFamily::kOtherGpu);
constexpr unsigned kGpuKv = bits(KvDType::kBF16, KvDType::kFp8);

// Heads of the models: the target's and a DFlash drafter's.
constexpr std::array<HeadDims, 2> kModelDims = {{{192, 128}, {128, 128}}};

constexpr std::array<int, 4> kPrefillGroups = {8, 16, 32, 64};

constexpr AttentionEntry kEntries[] = {
    // ops/cuda/kernels/attention_decode
    {.name = "hopper",
     .phases = bits(AttentionPhase::kDecode, AttentionPhase::kDraft),
     .families = bits(DeviceFamily::kHopper),
     .built = true,
     .own = true,
     .dims = kModelDims,
     .max_rows = kAttentionDecodeRows,
     .max_group = 16,
     .max_page = 256,
     .kv = kGpuKv,
     .bidirectional = true},
    // ops/cuda/kernels/attention_prefill
    {.name = "hopper",
     .phases = bits(AttentionPhase::kPrefill),
     .families = bits(DeviceFamily::kHopper),
     .built = kHopperPrefillBuilt,
     .own = true,
     .dims = std::span(kModelDims).first(1),
     .groups = kPrefillGroups,
     .max_sequences = kAttentionSequences,
     .kv = kGpuKv},
    {.name = "blackwell",
     .phases = kEveryPhase,
     .families = bits(DeviceFamily::kBlackwell),
     .own = true,
     .dims = kModelDims,
     .max_group = 16,
     .max_page = 256,
     .kv = kGpuKv,
     .bidirectional = true},
    {.name = "blackwell_rtx",
     .phases = kEveryPhase,
     .families = bits(DeviceFamily::kBlackwellRtx),
     .own = true,
     .dims = kModelDims,
     .max_group = 16,
     .max_page = 256,
     .kv = kGpuKv,
     .bidirectional = true},
    // ops/cuda/kernels/attention_plain
    {.name = "portable",
     .phases = kEveryPhase,
     .families = kEveryGpu,
     .built = true,
     .any_dims = 256,
     .kv = kGpuKv,
     .fp32_activations = true,
     .bidirectional = true,
     .unaligned = true},
    {.name = "cpu",
     .phases = kEveryPhase,
     .families = bits(DeviceFamily::kCpu),
     .built = true,
     .own = true,
     .kv = bits(KvDType::kF32, KvDType::kBF16, KvDType::kFp8),
     .fp32_activations = true,
     .bidirectional = true,
     .unaligned = true},
};

std::string device_text(const AttentionDevice& device) {
  if (device.family == DeviceFamily::kCpu) return "the CPU";
  return fmt::format("sm_{} ({})", device.sm, device_family_name(device.family));
}

std::string families_text(const AttentionEntry& entry) {
  if (entry.families == kEveryGpu) return "any GPU";
  for (unsigned i = 0; i <= static_cast<unsigned>(DeviceFamily::kOtherGpu); ++i) {
    const auto family = static_cast<DeviceFamily>(i);
    if (!entry.has(family)) continue;
    switch (family) {
      case DeviceFamily::kCpu:
        return "the CPU backends";
      case DeviceFamily::kHopper:
        return "sm_90 (hopper)";
      case DeviceFamily::kBlackwell:
        return "sm_100 and sm_103 (blackwell)";
      case DeviceFamily::kBlackwellRtx:
        return "sm_120 and sm_121 (blackwell_rtx)";
      default:
        return device_family_name(family);
    }
  }
  return "no device";
}

// Why the entry does not run on this device at all, or nothing.
std::string device_fault(const AttentionEntry& entry, const AttentionDevice& device, AttentionPhase phase) {
  if (!entry.has(device.family)) {
    return fmt::format("runs on {}, this is {}", families_text(entry), device_text(device));
  }
  if (!entry.built) return fmt::format("this mimo has no such {} kernel", attention_phase_name(phase));
  return {};
}

constexpr const char* kBF16Only = "takes BF16 activations, not the fp32 ones of the exact mode";

// Why the entry does not take this shape, or nothing.
std::string shape_fault(const AttentionEntry& entry, const AttentionQuery& query) {
  if (query.fp32_activations && !entry.fp32_activations) return kBF16Only;
  if (!entry.dims.empty()) {
    const auto same = [&](const HeadDims& dims) { return dims.qk == query.qk_dim && dims.v == query.v_dim; };
    if (std::none_of(entry.dims.begin(), entry.dims.end(), same)) {
      std::vector<std::string> taken;
      for (const HeadDims& dims : entry.dims) taken.push_back(fmt::format("{}/{}", dims.qk, dims.v));
      return fmt::format("takes heads of {} dims, not {}/{}", fmt::join(taken, " or "), query.qk_dim,
                         query.v_dim);
    }
  } else if (entry.any_dims > 0 && std::max(query.qk_dim, query.v_dim) > entry.any_dims) {
    return fmt::format("takes heads of up to {} dims, not {}/{}", entry.any_dims, query.qk_dim, query.v_dim);
  }
  if (entry.max_rows > 0 && query.rows > entry.max_rows) {
    return fmt::format("takes up to {} rows a sequence, not {}", entry.max_rows, query.rows);
  }
  if (entry.max_group > 0 && query.group > entry.max_group) {
    return fmt::format("takes up to {} query heads a KV head, not {}", entry.max_group, query.group);
  }
  if (!entry.groups.empty() &&
      std::find(entry.groups.begin(), entry.groups.end(), query.group) == entry.groups.end()) {
    return fmt::format("takes {} query heads a KV head, not {}", fmt::join(entry.groups, ", "), query.group);
  }
  if (entry.max_sequences > 0 && query.sequences > entry.max_sequences) {
    return fmt::format("takes up to {} sequences, not {}", entry.max_sequences, query.sequences);
  }
  if (entry.max_page > 0 && query.page_size > entry.max_page) {
    return fmt::format("takes pages of up to {} tokens, not {}", entry.max_page, query.page_size);
  }
  if (!entry.has(query.kv)) return fmt::format("does not take {} keys and values", kv_dtype_name(query.kv));
  if (query.mask == MaskKind::kBidirectional && !entry.bidirectional) return "takes causal masks only";
  if (!query.aligned && !entry.unaligned) return "takes rows that begin at multiples of 16 bytes only";
  return {};
}

std::string fault(const AttentionEntry& entry, const AttentionQuery& query) {
  std::string text = device_fault(entry, query.device, query.phase);
  return text.empty() ? shape_fault(entry, query) : text;
}

std::string why_it_fits(const AttentionEntry& entry, const AttentionQuery& query) {
  if (query.device.family == DeviceFamily::kCpu) return "the CPU backend's own";
  std::string rows =
      entry.max_rows == 0 ? "any number of rows" : fmt::format("up to {} rows a sequence", entry.max_rows);
  return fmt::format("sm_{}, heads {}/{}, {}", query.device.sm, query.qk_dim, query.v_dim, rows);
}

Result<AttentionSelection> select_automatically(const AttentionQuery& query) {
  AttentionSelection selection;
  std::vector<std::string> faults;  // of the family's own kernels
  for (const AttentionEntry& entry : attention_entries()) {
    if (!entry.has(query.device.family) || !entry.has(query.phase)) continue;
    const std::string why_not = fault(entry, query);
    if (!why_not.empty()) {
      faults.push_back(fmt::format("{}: {}", entry.name, why_not));
      continue;
    }
    selection.entry = &entry;
    if (entry.own) {
      selection.reason = why_it_fits(entry, query);
    } else if (query.fp32_activations) {
      selection.reason = "the exact mode: fp32 activations";
    } else {
      selection.slow = true;
      selection.reason = faults.empty()
                             ? fmt::format("no kernel of its own for {}", device_text(query.device))
                             : fmt::format("{}", fmt::join(faults, "; "));
    }
    return selection;
  }
  return fail(ErrorCode::kUnsupported, "no attention kernel for {} on {}: {}",
              attention_phase_name(query.phase), device_text(query.device), fmt::join(faults, "; "));
}

// The entry that a choice names, or why there is none.
Result<const AttentionEntry*> named_entry(AttentionPhase phase, const AttentionChoice& choice) {
  for (const AttentionEntry& entry : attention_entries()) {
    if (entry.name == choice.name && entry.has(phase)) return &entry;
  }
  return fail(ErrorCode::kInvalidArgument, "{} {}: expected {}", choice.flag, choice.name,
              fmt::join(attention_backend_names(), ", "));
}

tl::unexpected<Error> refuse(const AttentionChoice& choice, AttentionPhase phase, const std::string& why) {
  return fail(ErrorCode::kUnsupported, "{} {}: {} (attention, {})", choice.flag, choice.name, why,
              attention_phase_name(phase));
}

}  // namespace

const char* device_family_name(DeviceFamily family) {
  switch (family) {
    case DeviceFamily::kCpu:
      return "cpu";
    case DeviceFamily::kAmpereAda:
      return "ampere/ada";
    case DeviceFamily::kHopper:
      return "hopper";
    case DeviceFamily::kBlackwell:
      return "blackwell";
    case DeviceFamily::kBlackwellRtx:
      return "blackwell_rtx";
    case DeviceFamily::kOtherGpu:
      return "another family";
  }
  return "?";
}

AttentionDevice attention_device(int major, int minor) {
  const int sm = 10 * major + minor;
  switch (sm) {
    case 80:
    case 86:
    case 87:
    case 89:
      return {DeviceFamily::kAmpereAda, sm};
    case 90:
      return {DeviceFamily::kHopper, sm};
    case 100:
    case 103:
      return {DeviceFamily::kBlackwell, sm};
    case 120:
    case 121:
      return {DeviceFamily::kBlackwellRtx, sm};
    default:
      return {DeviceFamily::kOtherGpu, sm};
  }
}

const char* attention_phase_name(AttentionPhase phase) {
  switch (phase) {
    case AttentionPhase::kPrefill:
      return "prefill";
    case AttentionPhase::kDecode:
      return "decode";
    case AttentionPhase::kDraft:
      return "draft";
  }
  return "?";
}

AttentionPhase attention_phase(MaskKind mask, int rows) {
  if (mask == MaskKind::kBidirectional) return AttentionPhase::kDraft;
  return rows <= kAttentionDecodeRows ? AttentionPhase::kDecode : AttentionPhase::kPrefill;
}

int attention_rows(AttentionPhase phase, int rows) {
  if (phase == AttentionPhase::kDecode) return kAttentionDecodeRows;
  if (phase == AttentionPhase::kPrefill) return kAttentionDecodeRows + 1;
  return std::max(rows, kAttentionDecodeRows);
}

std::span<const AttentionEntry> attention_entries() { return kEntries; }

std::vector<std::string> attention_backend_names() {
  std::vector<std::string> names = {"auto"};
  for (const AttentionEntry& entry : attention_entries()) {
    if (std::find(names.begin(), names.end(), entry.name) == names.end()) names.emplace_back(entry.name);
  }
  return names;
}

const AttentionChoice& AttentionChoices::of(AttentionPhase phase) const {
  switch (phase) {
    case AttentionPhase::kPrefill:
      return prefill;
    case AttentionPhase::kDraft:
      return draft;
    case AttentionPhase::kDecode:
      break;
  }
  return decode;
}

Result<AttentionSelection> select_attention(const AttentionQuery& query, const AttentionChoice& choice) {
  if (choice.name == "auto") return select_automatically(query);
  const Result<const AttentionEntry*> entry = named_entry(query.phase, choice);
  if (!entry) return forward_error(entry);
  const std::string why_not = fault(**entry, query);
  if (!why_not.empty()) return refuse(choice, query.phase, why_not);
  return AttentionSelection{*entry, fmt::format("{} {}", choice.flag, choice.name), false};
}

Status check_attention_choice(const AttentionDevice& device, AttentionPhase phase,
                              const AttentionChoice& choice, bool fp32_activations) {
  if (choice.name == "auto") return {};
  const Result<const AttentionEntry*> entry = named_entry(phase, choice);
  if (!entry) return forward_error(entry);
  std::string why_not = device_fault(**entry, device, phase);
  if (why_not.empty() && fp32_activations && !(*entry)->fp32_activations) why_not = kBF16Only;
  if (!why_not.empty()) return refuse(choice, phase, why_not);
  return {};
}

std::string describe_attention(const AttentionQuery& query, const AttentionSelection& selection) {
  MIMO_CHECK(selection.entry != nullptr, "an attention selection without a kernel");
  return fmt::format("attention, {}, heads {}/{}, {} query heads a KV head, pages of {} in {}: {} ({})",
                     attention_phase_name(query.phase), query.qk_dim, query.v_dim, query.group,
                     query.page_size, kv_dtype_name(query.kv), selection.entry->name, selection.reason);
}

}  // namespace mimo
