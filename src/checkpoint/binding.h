// Holds the files of a checkpoint against the tensor table of its config. Reads headers only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/qkv_layout.h"
#include "checkpoint/safetensors_set.h"
#include "checkpoint/tensor_table.h"
#include "checkpoint/weight_source.h"

namespace mimo {

struct SkippedTensors {
  std::size_t count = 0;
  std::uint64_t bytes = 0;
};

struct Binding {
  QkvLayout qkv;
  int mtp_heads = 0;   // that were asked for and are bound
  int stored_mtp = 0;  // heads with tensors in the files
  std::uint64_t total_bytes = 0;
  std::array<std::uint64_t, kTensorGroups> group_bytes{};
  std::map<std::string, SkippedTensors>
      skipped;                                // by prefix: encoders, and MTP heads that were not asked for
  std::optional<WeightFormat> router_format;  // as stored, when the first MoE layer has one
  std::vector<std::string> leftover;          // names that nothing explains
  std::vector<std::string> warnings;
  std::vector<Error> problems;  // empty: the checkpoint is complete
};

Binding bind_checkpoint(const ModelConfig& config, const SafetensorsSet& files, const OpenOptions& options);

// Prefixes of tensors that the text model does not read.
std::vector<std::string> skipped_prefixes(bool mtp);

// "visual.*: 351 tensors, 1200000 bytes" for each prefix.
std::vector<std::string> skipped_lines(const Binding& binding);

// The problems as one error, at most ten of them by name.
Error joined_problems(const std::vector<Error>& problems);

}  // namespace mimo
