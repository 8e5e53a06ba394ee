// Turns stored tensors into the views of weight_source.h: canonical [Q | K | V] order, one rank's rows and
// columns.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/qkv_layout.h"
#include "checkpoint/weight_source.h"
#include "core/dtype.h"

namespace mimo {

struct TensorBytes {
  DType dtype = DType::kU8;
  const std::uint8_t* data = nullptr;  // aligned for the dtype
  std::size_t bytes = 0;
};

// Tensors by name, checked against the tensor table beforehand: asking for one that is not there is our own
// bug.
class TensorStore {
 public:
  virtual ~TensorStore() = default;
  virtual TensorBytes get(const std::string& name) = 0;
  virtual void prefetch(const std::string& /*name*/) {}  // will be read soon
};

// What is checked here, because it needs the bytes: MXFP4 scales are not 255 (NaN), FP8 scales and small
// vectors are finite. Only tensors that the shard uses are touched.
Result<GlobalWeights> assemble_globals(const ModelConfig& config, TensorStore& store);
Result<LayerWeights> assemble_layer(const ModelConfig& config, const QkvLayout& layout, TensorStore& store,
                                    int layer, Shard shard);
Result<MtpWeights> assemble_mtp(const ModelConfig& config, const QkvLayout& layout, TensorStore& store,
                                int head, Shard shard);

}  // namespace mimo
