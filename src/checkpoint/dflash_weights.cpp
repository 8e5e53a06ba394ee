#include "checkpoint/dflash_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/file.h"
#include "core/number_formats.h"

namespace mimo {
namespace {

constexpr std::string_view kPrefix = "model.";

// Tensors by name, with what has been asked for crossed off.
class TensorBook {
 public:
  explicit TensorBook(std::string where) : where_(std::move(where)) {}

  // Fails on a name that is there with and without the optional prefix.
  Status add(const TensorInfo& info, const std::uint8_t* data) {
    std::string_view name = info.name;
    if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
    if (!tensors_.emplace(name, Stored{&info, data, false}).second) {
      return fail(ErrorCode::kCorrupt, "{}: tensor {} is there twice, with and without \"model.\"", where_,
                  name);
    }
    return {};
  }

  Result<const std::uint8_t*> take(const std::string& name, const std::vector<std::int64_t>& shape) {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return fail(ErrorCode::kNotFound, "{}: tensor {} is missing", where_, name);
    const TensorInfo& info = *it->second.info;
    if (info.dtype != DType::kBF16) {
      return fail(ErrorCode::kUnsupported, "{}: tensor {} is {}, expected BF16", where_, name,
                  dtype_name(info.dtype));
    }
    if (info.shape != shape) {
      return fail(ErrorCode::kInvalidArgument, "{}: tensor {} has shape {}, expected {}", where_, name,
                  shape_text(info.shape), shape_text(shape));
    }
    it->second.taken = true;
    return it->second.data;
  }

  // fp32 values of a vector; all must be finite.
  Status vector(const std::string& name, std::int64_t size, std::vector<float>& out) {
    const Result<const std::uint8_t*> data = take(name, {size});
    if (!data) return forward_error(data);
    out.resize(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, *data + 2 * i, sizeof(bits));
      out[i] = bf16_to_float(bits);
      if (!std::isfinite(out[i])) {
        return fail(ErrorCode::kCorrupt, "{}: tensor {} has a value that is not finite", where_, name);
      }
    }
    return {};
  }

  // Appends the rows of a stored matrix to a view.
  Status append(const std::string& name, std::int64_t rows, std::int64_t cols, WeightView& view) {
    const Result<const std::uint8_t*> data = take(name, {rows, cols});
    if (!data) return forward_error(data);
    view.name =
        view.name.empty() ? fmt::format("{}: {}", where_, name) : fmt::format("{}, {}", view.name, name);
    view.format = WeightFormat::kBF16;
    view.cols = cols;
    view.rows += rows;
    WeightSegment segment;
    segment.rows = rows;
    segment.data = *data;
    segment.row_stride = weight_row_bytes(WeightFormat::kBF16, cols);
    view.segments.push_back(segment);
    return {};
  }

  Status nothing_left() const {
    std::string names;
    std::size_t count = 0;
    for (const auto& [name, stored] : tensors_) {
      if (stored.taken) continue;
      if (++count <= 5) names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
    }
    if (count == 0) return {};
    return fail(ErrorCode::kInvalidArgument, "{}: {} unexpected tensor{} for this config: {}{}", where_,
                count, count == 1 ? "" : "s", names, count > 5 ? ", ..." : "");
  }

 private:
  struct Stored {
    const TensorInfo* info;
    const std::uint8_t* data;
    bool taken;
  };
  std::string where_;
  std::map<std::string, Stored, std::less<>> tensors_;
};

}  // namespace

Result<DFlashWeights> DFlashWeights::open(const std::string& directory, const DFlashConfig& config) {
  DFlashWeights weights;
  if (file_exists(directory + "/model.safetensors.index.json")) {
    Result<SafetensorsSet> set = SafetensorsSet::open(directory);
    if (!set) return forward_error(set);
    if (!set->problems().empty()) return tl::unexpected<Error>(set->problems().front());
    weights.set_.emplace(std::move(*set));
  } else {
    std::string path = directory + "/dflash_draft_model.safetensors";
    if (const std::string other = directory + "/model.safetensors";
        !file_exists(path) && file_exists(other)) {
      path = other;
    }
    Result<SafetensorsFile> file = SafetensorsFile::open(path);
    if (!file) return forward_error(file);
    weights.file_.emplace(std::move(*file));
  }
  if (const Status ok = weights.read(config, directory); !ok) return forward_error(ok);
  return weights;
}

Status DFlashWeights::read(const DFlashConfig& config, const std::string& directory) {
  TensorBook book(file_ ? file_->path() : directory);
  if (file_) {
    for (const TensorInfo& info : file_->header().tensors) {
      if (const Status ok = book.add(info, file_->data(info)); !ok) return ok;
    }
  } else {
    for (const auto& [name, stored] : set_->tensors()) {
      if (const Status ok = book.add(*stored.info, stored.data()); !ok) return ok;
    }
  }

  const std::int64_t hidden = config.hidden;
  const std::int64_t dim = config.head_dim;
  const std::int64_t q = config.q_heads * dim;
  const std::int64_t kv = config.kv_heads * dim;
  const std::int64_t wide = config.intermediate;
  Status status;
  const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t cols, WeightView& view) {
    if (status) status = book.append(name, rows, cols, view);
  };
  const auto vector = [&](const std::string& name, std::int64_t size, std::vector<float>& out) {
    if (status) status = book.vector(name, size, out);
  };
  matrix("fc.weight", hidden, static_cast<std::int64_t>(config.target_layer_ids.size()) * hidden, fc);
  vector("hidden_norm.weight", hidden, hidden_norm);
  vector("norm.weight", hidden, norm);
  for (int i = 0; i < config.layers && status; ++i) {
    const std::string at = fmt::format("layers.{}.", i);
    const std::string attention = at + "self_attn.";
    DFlashLayerWeights layer;
    vector(at + "input_layernorm.weight", hidden, layer.input_norm);
    vector(at + "post_attention_layernorm.weight", hidden, layer.post_norm);
    matrix(attention + "q_proj.weight", q, hidden, layer.qkv);
    matrix(attention + "k_proj.weight", kv, hidden, layer.qkv);
    matrix(attention + "v_proj.weight", kv, hidden, layer.qkv);
    matrix(attention + "k_proj.weight", kv, hidden, context_kv);
    matrix(attention + "v_proj.weight", kv, hidden, context_kv);
    matrix(attention + "o_proj.weight", hidden, q, layer.o_proj);
    vector(attention + "q_norm.weight", dim, layer.q_norm);
    vector(attention + "k_norm.weight", dim, layer.k_norm);
    if (config.sinks) vector(attention + "attention_sink_bias", config.q_heads, layer.sinks);
    matrix(at + "mlp.gate_proj.weight", wide, hidden, layer.gate);
    matrix(at + "mlp.up_proj.weight", wide, hidden, layer.up);
    matrix(at + "mlp.down_proj.weight", hidden, wide, layer.down);
    layers.push_back(std::move(layer));
  }
  if (!status) return status;
  return book.nothing_left();
}

}  // namespace mimo
