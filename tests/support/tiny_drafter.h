// Writes small random DFlash drafters in the published layout, so that tests can run and break them. Shares no
// code with src/checkpoint beyond JSON.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "support/plain_checkpoint.h"

namespace mimo::testing {

// A zip archive of stored entries as torch.save writes it: `padding` bytes of extra field in local headers only.
std::vector<std::uint8_t> torch_archive(const std::vector<std::pair<std::string, std::string>>& entries,
                                        std::size_t padding = 0);
// data.pkl of {"mask_token_id": id, "embedding": tensor}; id < 0: the bare tensor. `storage`:
// "BFloat16Storage" or "FloatStorage".
std::string mask_pickle(int id, const std::string& storage, const std::vector<int>& shape);
// The whole sidecar for these values (rounded to BF16).
std::vector<std::uint8_t> mask_file(int id, const std::vector<float>& values);

// By default a small drafter with everything MiMo has, for the target tests/golden/v26_tiny.
struct DrafterShape {
  int hidden = 256;
  int intermediate = 320;
  int layers = 3;
  int q_heads = 4;
  int kv_heads = 2;
  int head_dim = 128;
  double rotary_factor = 0.5;
  double rope_theta = 10000.0;
  int block = 8;
  int window = 40;  // 0: full attention
  bool causal = false;
  bool sinks = true;
  double value_scale = 0.612;
  std::vector<int> taps = {0, 3, 6};
  int target_layers = 7;
  int vocab = 1024;
  int mask_token_id = 1023;
  std::uint64_t seed = 1;
};

struct TinyDrafter {
  explicit TinyDrafter(const DrafterShape& shape);

  DrafterShape shape;
  json::object config;                         // to edit before write()
  std::map<std::string, PlainTensor> tensors;  // to edit before write()
  std::vector<float> mask;                     // BF16 values
  std::vector<std::uint8_t> mask_bytes;        // of mask_embedding.pt; empty: no file

  std::vector<float> values(const std::string& name) const;  // of a BF16 tensor
  void set(const std::string& name, const std::vector<float>& values);
  void write(const std::string& directory, const std::string& file = "dflash_draft_model.safetensors") const;
};

}  // namespace mimo::testing
