// What `mimo inspect` shows: the member, its layers, formats, sizes, and everything that is missing or odd.
// Reads headers only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/binding.h"
#include "checkpoint/config.h"
#include "checkpoint/dflash_config.h"
#include "checkpoint/model_size.h"
#include "checkpoint/weight_source.h"
#include "core/json.h"
#include "core/result.h"

namespace mimo {

// The checkpoint's dflash/. What is wrong with it stands in InspectReport::problems.
struct DrafterReport {
  std::optional<DFlashConfig> config;  // absent: cannot be read
  std::optional<double> mask_norm;     // Euclidean, of the mask embedding; absent: cannot be read
};

struct InspectReport {
  std::string directory;
  ModelConfig config;  // with its own warnings and those of the binding
  bool indexed = false;
  std::vector<std::string> files;        // that hold the checkpoint
  std::vector<std::string> other_files;  // other .safetensors next to them
  QkvLayout qkv;
  int mtp_heads = 0;               // stored in the files
  ModelSize size;                  // from the config, MTP heads included
  std::uint64_t stored_bytes = 0;  // of the tensors found, MTP heads included
  KvBytes kv_bf16;
  KvBytes kv_fp8;                    // without row scales
  std::vector<int> tensor_parallel;  // supported sizes
  // Of the FP8 blocks of the first full layer's fused QKV, the part whose largest code is 448: nearly 1 when
  // the block borders are where the quantiser had them, less when rows are read in another layout.
  std::optional<double> qkv_blocks_at_448;
  std::optional<DrafterReport> drafter;           // absent: no dflash/
  std::map<std::string, SkippedTensors> skipped;  // tensors of other parts (encoders), by prefix
  std::vector<std::string> problems;              // empty: checkpoint and drafter can be loaded
};

// Reads headers and, for the check of the QKV layout, one matrix. Fails only without a directory or a valid
// config.json; everything wrong with the weights is in `problems`. MTP heads are always checked when they are
// there.
Result<InspectReport> inspect_checkpoint(const std::string& directory, const OpenOptions& options);

std::string to_text(const InspectReport& report);
json::value to_json(const InspectReport& report);

// "kBF16" and so on as users know them: "bf16", "f32", "fp8-e4m3-block128", "mxfp4".
const char* weight_format_name(WeightFormat format);

}  // namespace mimo
