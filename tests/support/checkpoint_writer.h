// Writes small checkpoints in every layout of the family, so that tests can break them in every way. Random
// bytes, no code shared with src/checkpoint beyond JSON.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "support/plain_checkpoint.h"

namespace mimo::testing {

// A folder under the system's temporary one, removed by the destructor.
class TempDir {
 public:
  TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir();
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void write_text(const std::string& path, const std::string& text);
// Tensors in the order of the map, offsets without holes, header padded to 8 bytes; `misalign` shifts the
// data section by that many bytes.
void write_safetensors(const std::string& path, const std::map<std::string, PlainTensor>& tensors,
                       int misalign = 0);

struct TinyModel {
  enum class Format { kBF16, kFp8, kMxfp4 };

  // Full layers: 4 KV heads in 4 chunks of 272 rows; window layers: 8 KV heads in 4 chunks of 352 rows.
  bool fused = true;
  int stored_chunks = 4;  // 1: a plain [Q|K|V] re-export under the same config
  Format dense = Format::kFp8;
  Format experts = Format::kMxfp4;
  bool router_f32 = false;
  int mtp_heads = 0;
  int q_heads = 16;
  int full_kv_heads = 4;
  int window_kv_heads = 8;
  int qk_dim = 48;
  int v_dim = 32;
  int hidden = 128;
  int intermediate = 1024;
  int moe_intermediate = 256;
  int expert_count = 4;
  int vocab = 96;
  std::uint64_t seed = 1;
};

struct TinyCheckpoint {
  explicit TinyCheckpoint(const TinyModel& model);

  json::object config;                            // to edit before write()
  std::map<std::string, PlainTensor> tensors;     // to edit before write()
  std::map<std::string, std::string> weight_map;  // extra or changed entries of the index
  std::optional<int> index_tp_size;

  // shards 0: one model.safetensors without an index.
  void write(const std::string& directory, int shards = 0) const;
};

}  // namespace mimo::testing
