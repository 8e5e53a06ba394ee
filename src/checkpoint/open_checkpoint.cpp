#include <cstring>
#include <memory>
#include <unordered_map>
#include <utility>

#include "checkpoint/assemble.h"
#include "checkpoint/binding.h"
#include "checkpoint/sharding.h"
#include "checkpoint/weight_source.h"
#include "core/check.h"

namespace mimo {
namespace {

// Bytes straight out of the maps. Safetensors does not promise alignment; a tensor that is not aligned for
// its dtype is copied, and the copy lives until the tensor is released.
class MappedStore : public TensorStore {
 public:
  explicit MappedStore(SafetensorsSet files) : files_(std::move(files)) {}

  TensorBytes get(const std::string& name) override {
    const StoredTensor& tensor = stored(name);
    const TensorInfo& info = *tensor.info;
    const std::uint8_t* data = tensor.data();
    if (reinterpret_cast<std::uintptr_t>(data) % dtype_size(info.dtype) != 0) {
      std::unique_ptr<std::uint8_t[]>& copy = copies_[&info];
      if (!copy) {
        copy = std::make_unique<std::uint8_t[]>(info.bytes);  // aligned for every scalar type
        std::memcpy(copy.get(), data, info.bytes);
      }
      data = copy.get();
    }
    return {info.dtype, data, info.bytes};
  }

  void release(const std::string& name) {
    const StoredTensor& tensor = stored(name);
    copies_.erase(tensor.info);
    tensor.file->map().release(tensor.info->offset, tensor.info->bytes);
  }

  void prefetch(const std::string& name) override {
    const StoredTensor& tensor = stored(name);
    tensor.file->map().prefetch(tensor.info->offset, tensor.info->bytes);
  }

 private:
  const StoredTensor& stored(const std::string& name) const {
    const StoredTensor* tensor = files_.find(name);
    MIMO_CHECK(tensor != nullptr, "tensor {} was not bound", name);
    return *tensor;
  }

  SafetensorsSet files_;
  std::unordered_map<const TensorInfo*, std::unique_ptr<std::uint8_t[]>> copies_;
};

class CheckpointSource : public WeightSource {
 public:
  CheckpointSource(ModelConfig config, const Binding& binding, SafetensorsSet files)
      : config_(std::move(config)),
        layout_(binding.qkv),
        mtp_heads_(binding.mtp_heads),
        total_bytes_(binding.total_bytes),
        skipped_(skipped_lines(binding)),
        store_(std::move(files)) {}

  const ModelConfig& config() const override { return config_; }
  int mtp_heads() const override { return mtp_heads_; }
  std::uint64_t total_bytes() const override { return total_bytes_; }
  std::vector<std::string> skipped() const override { return skipped_; }

  Result<GlobalWeights> globals() override { return assemble_globals(config_, store_); }

  Result<LayerWeights> layer(int index, Shard shard) override {
    MIMO_CHECK(index >= 0 && index < config_.layers, "layer {} of {}", index, config_.layers);
    if (const Status status = check_shard(config_, shard); !status) return forward_error(status);
    return assemble_layer(config_, layout_, store_, index, shard);
  }

  Result<MtpWeights> mtp(int head, Shard shard) override {
    MIMO_CHECK(head >= 0 && head < mtp_heads_, "MTP head {} of {}", head, mtp_heads_);
    if (const Status status = check_mtp_shard(config_, shard); !status) return forward_error(status);
    return assemble_mtp(config_, layout_, store_, head, shard);
  }

  void prefetch_layer(int index) override {
    for (const ExpectedTensor& tensor : layer_tensors(config_, layout_, index)) store_.prefetch(tensor.name);
  }

  void release_layer(int index) override { release(layer_tensors(config_, layout_, index)); }
  void release_mtp(int head) override { release(mtp_tensors(config_, layout_, head)); }
  void release_globals() override { release(global_tensors(config_)); }

 private:
  void release(const std::vector<ExpectedTensor>& tensors) {
    for (const ExpectedTensor& tensor : tensors) store_.release(tensor.name);
  }

  ModelConfig config_;
  QkvLayout layout_;
  int mtp_heads_;
  std::uint64_t total_bytes_;
  std::vector<std::string> skipped_;
  MappedStore store_;
};

}  // namespace

Result<std::unique_ptr<WeightSource>> open_checkpoint(const std::string& directory,
                                                      const OpenOptions& options) {
  Result<ModelConfig> config = load_config(directory);
  if (!config) return forward_error(config);
  Result<SafetensorsSet> files = SafetensorsSet::open(directory);
  if (!files) return forward_error(files);
  // A missing or damaged file explains every tensor that is missing with it.
  if (!files->problems().empty())
    return tl::unexpected<Error>(joined_problems(files->problems()).within(directory));
  const Binding binding = bind_checkpoint(*config, *files, options);
  if (!binding.problems.empty())
    return tl::unexpected<Error>(joined_problems(binding.problems).within(directory));
  config->mtp_heads = config->mtp_heads >= 0 ? config->mtp_heads : binding.stored_mtp;
  config->router_format = binding.router_format.value_or(config->router_format);
  config->warnings.insert(config->warnings.end(), binding.warnings.begin(), binding.warnings.end());
  return std::make_unique<CheckpointSource>(std::move(*config), binding, std::move(*files));
}

}  // namespace mimo
