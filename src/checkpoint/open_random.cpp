#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "checkpoint/assemble.h"
#include "checkpoint/random_fill.h"
#include "checkpoint/sharding.h"
#include "checkpoint/tensor_table.h"
#include "checkpoint/weight_source.h"
#include "core/check.h"
#include "core/huge_buffer.h"

namespace mimo {
namespace {

constexpr std::size_t kTensorAlignment = 64;
constexpr int kMaxThreads = 64;

// The tensors of one layer (or head, or the globals), generated into one buffer.
class GeneratedStore : public TensorStore {
 public:
  GeneratedStore(std::vector<ExpectedTensor> tensors, std::uint64_t seed) : tensors_(std::move(tensors)) {
    std::size_t total = 0;
    std::vector<std::size_t> offsets;
    for (const ExpectedTensor& tensor : tensors_) {
      offsets.push_back(total);
      total += (static_cast<std::size_t>(tensor.bytes()) + kTensorAlignment - 1) / kTensorAlignment *
               kTensorAlignment;
    }
    buffer_ = HugeBuffer(total);
    std::vector<FillJob> jobs;
    std::int64_t fan_in = 1;  // a scale tensor follows its weight and takes that weight's width
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const ExpectedTensor& tensor = tensors_[i];
      if (tensor.name.ends_with(".weight") && tensor.rank == 2) {
        fan_in = tensor.dtype == DType::kU8 ? 2 * tensor.dims[1] : tensor.dims[1];
      }
      std::uint8_t* out = buffer_.data() + offsets[i];
      jobs.push_back({&tensor, fan_in, out});
      bytes_.emplace(tensor.name, TensorBytes{tensor.dtype, out, static_cast<std::size_t>(tensor.bytes())});
    }
    fill_random(jobs, seed,
                std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads));
  }

  TensorBytes get(const std::string& name) override {
    const auto it = bytes_.find(name);
    MIMO_CHECK(it != bytes_.end(), "tensor {} was not generated", name);
    return it->second;
  }

 private:
  std::vector<ExpectedTensor> tensors_;
  std::unordered_map<std::string_view, TensorBytes> bytes_;  // keys point into tensors_
  HugeBuffer buffer_;
};

class RandomSource : public WeightSource {
 public:
  RandomSource(ModelConfig config, std::uint64_t seed)
      : config_(std::move(config)), layout_{config_.fused_qkv, config_.qkv_chunks}, seed_(seed) {
    config_.mtp_heads = std::max(config_.mtp_heads, 0);
    const auto add = [this](const std::vector<ExpectedTensor>& tensors) {
      for (const ExpectedTensor& tensor : tensors) total_bytes_ += tensor.bytes();
    };
    add(global_tensors(config_));
    for (int i = 0; i < config_.layers; ++i) add(layer_tensors(config_, layout_, i));
    for (int k = 0; k < config_.mtp_heads; ++k) add(mtp_tensors(config_, layout_, k));
  }

  const ModelConfig& config() const override { return config_; }
  int mtp_heads() const override { return config_.mtp_heads; }
  std::uint64_t total_bytes() const override { return total_bytes_; }

  Result<GlobalWeights> globals() override {
    const Status made = generate(globals_, "globals", [this] { return global_tensors(config_); });
    if (!made) return forward_error(made);
    return assemble_globals(config_, *globals_);
  }

  Result<LayerWeights> layer(int index, Shard shard) override {
    MIMO_CHECK(index >= 0 && index < config_.layers, "layer {} of {}", index, config_.layers);
    if (const Status status = check_shard(config_, shard); !status) return forward_error(status);
    const Status made = generate(layers_[index], fmt::format("layer {}", index),
                                 [this, index] { return layer_tensors(config_, layout_, index); });
    if (!made) return forward_error(made);
    return assemble_layer(config_, layout_, *layers_[index], index, shard);
  }

  Result<MtpWeights> mtp(int head, Shard shard) override {
    MIMO_CHECK(head >= 0 && head < config_.mtp_heads, "MTP head {} of {}", head, config_.mtp_heads);
    if (const Status status = check_mtp_shard(config_, shard); !status) return forward_error(status);
    const Status made = generate(mtp_[head], fmt::format("MTP head {}", head),
                                 [this, head] { return mtp_tensors(config_, layout_, head); });
    if (!made) return forward_error(made);
    return assemble_mtp(config_, layout_, *mtp_[head], head, shard);
  }

  void release_layer(int index) override { layers_.erase(index); }
  void release_mtp(int head) override { mtp_.erase(head); }
  void release_globals() override { globals_.reset(); }

 private:
  template <class Table>
  Status generate(std::unique_ptr<GeneratedStore>& slot, const std::string& what, Table table) {
    if (slot) return {};
    try {
      slot = std::make_unique<GeneratedStore>(table(), seed_);
    } catch (const std::bad_alloc&) {
      return fail(ErrorCode::kLimit, "random weights: no memory for {}", what);
    }
    return {};
  }

  ModelConfig config_;
  QkvLayout layout_;
  std::uint64_t seed_;
  std::uint64_t total_bytes_ = 0;
  std::unique_ptr<GeneratedStore> globals_;
  std::map<int, std::unique_ptr<GeneratedStore>> layers_;
  std::map<int, std::unique_ptr<GeneratedStore>> mtp_;
};

}  // namespace

Result<std::unique_ptr<WeightSource>> open_random(const ModelConfig& config, std::uint64_t seed) {
  return std::make_unique<RandomSource>(config, seed);
}

}  // namespace mimo
