// A second, deliberately simple reader of checkpoint directories for tests: whole files in memory, fp32
// matrices, the formulas of spec model 3.2 to 3.5 written down element by element. Shares no code with
// src/checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/config.h"
#include "core/weight_view.h"

namespace mimo::testing {

struct PlainTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;
};

struct PlainMatrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<float> values;  // [rows, cols]

  PlainMatrix row_range(std::int64_t begin, std::int64_t count) const;
  PlainMatrix column_range(std::int64_t begin, std::int64_t count) const;
  void append_rows(const PlainMatrix& other);
};

class PlainCheckpoint {
 public:
  // Every model*.safetensors of the directory; throws std::runtime_error.
  explicit PlainCheckpoint(const std::string& directory);

  const PlainTensor& tensor(const std::string& name) const { return tensors_.at(name); }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  const std::map<std::string, PlainTensor>& tensors() const { return tensors_; }

  std::vector<float> vector(const std::string& name) const;
  // module + ".weight", dequantised by whatever scale tensor stands next to it; `chunks`: of an FP8 fused QKV
  // matrix.
  const PlainMatrix& matrix(const std::string& module, int chunks = 1) const;

  struct Qkv {
    PlainMatrix q, k, v;
  };
  // Canonical Q, K, V of one attention block ("model.layers.3.self_attn."), fused in `chunks` chunks or
  // split.
  Qkv qkv(const std::string& prefix, const AttentionShape& shape, int chunks) const;

 private:
  std::map<std::string, PlainTensor> tensors_;
  mutable std::map<std::pair<std::string, int>, PlainMatrix> matrices_;  // already computed
};

// The view as fp32, through dequantize_row.
PlainMatrix to_matrix(const WeightView& view);

}  // namespace mimo::testing
