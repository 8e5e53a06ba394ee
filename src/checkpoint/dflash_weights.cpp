#include "checkpoint/dflash_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <thread>

#include "checkpoint/random_fill.h"
#include "checkpoint/tensor_table.h"
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

// Lists tensors where a TensorBook would read them.
class TensorList {
 public:
  Status vector(const std::string& name, std::int64_t size, std::vector<float>& /*out*/) {
    add(name, {size, 0}, 1);
    return {};
  }
  Status append(const std::string& name, std::int64_t rows, std::int64_t cols, WeightView& /*view*/) {
    add(name, {rows, cols}, 2);
    return {};
  }
  const std::vector<ExpectedTensor>& tensors() const { return tensors_; }

 private:
  void add(const std::string& name, std::array<std::int64_t, 2> dims, int rank) {
    const auto same = [&](const ExpectedTensor& tensor) { return tensor.name == name; };
    if (std::any_of(tensors_.begin(), tensors_.end(), same)) return;  // K and V are read twice
    ExpectedTensor tensor;
    tensor.name = name;
    tensor.dims = dims;
    tensor.rank = rank;
    tensors_.push_back(std::move(tensor));
  }

  std::vector<ExpectedTensor> tensors_;
};

// Every tensor of the config from a TensorBook, or to a TensorList.
template <class Book>
Status read_tensors(const DFlashConfig& config, Book& book, DFlashWeights& out) {
  const std::int64_t hidden = config.hidden;
  const std::int64_t dim = config.head_dim;
  const std::int64_t q = config.q_heads * dim;
  const std::int64_t kv = config.kv_heads * dim;
  const std::int64_t wide = config.intermediate;
  Status status;
  const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t cols, WeightView& view) {
    if (status) status = book.append(name, rows, cols, view);
  };
  const auto vector = [&](const std::string& name, std::int64_t size, std::vector<float>& values) {
    if (status) status = book.vector(name, size, values);
  };
  matrix("fc.weight", hidden, static_cast<std::int64_t>(config.target_layer_ids.size()) * hidden, out.fc);
  vector("hidden_norm.weight", hidden, out.hidden_norm);
  vector("norm.weight", hidden, out.norm);
  for (int i = 0; i < config.layers && status; ++i) {
    const std::string at = fmt::format("layers.{}.", i);
    const std::string attention = at + "self_attn.";
    DFlashLayerWeights layer;
    vector(at + "input_layernorm.weight", hidden, layer.input_norm);
    vector(at + "post_attention_layernorm.weight", hidden, layer.post_norm);
    matrix(attention + "q_proj.weight", q, hidden, layer.qkv);
    matrix(attention + "k_proj.weight", kv, hidden, layer.qkv);
    matrix(attention + "v_proj.weight", kv, hidden, layer.qkv);
    matrix(attention + "k_proj.weight", kv, hidden, out.context_kv);
    matrix(attention + "v_proj.weight", kv, hidden, out.context_kv);
    matrix(attention + "o_proj.weight", hidden, q, layer.o_proj);
    vector(attention + "q_norm.weight", dim, layer.q_norm);
    vector(attention + "k_norm.weight", dim, layer.k_norm);
    if (config.sinks) vector(attention + "attention_sink_bias", config.q_heads, layer.sinks);
    matrix(at + "mlp.gate_proj.weight", wide, hidden, layer.gate);
    matrix(at + "mlp.up_proj.weight", wide, hidden, layer.up);
    matrix(at + "mlp.down_proj.weight", hidden, wide, layer.down);
    out.layers.push_back(std::move(layer));
  }
  return status;
}

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
  TensorBook book(weights.file_ ? weights.file_->path() : directory);
  if (weights.file_) {
    for (const TensorInfo& info : weights.file_->header().tensors) {
      if (const Status ok = book.add(info, weights.file_->data(info)); !ok) return forward_error(ok);
    }
  } else {
    for (const auto& [name, stored] : weights.set_->tensors()) {
      if (const Status ok = book.add(*stored.info, stored.data()); !ok) return forward_error(ok);
    }
  }
  if (const Status ok = read_tensors(config, book, weights); !ok) return forward_error(ok);
  if (const Status ok = book.nothing_left(); !ok) return forward_error(ok);
  return weights;
}

Result<DFlashWeights> DFlashWeights::random(const DFlashConfig& config, std::uint64_t seed) {
  constexpr std::size_t kAlignment = 64;
  TensorList list;
  DFlashWeights none;
  if (const Status ok = read_tensors(config, list, none); !ok) return forward_error(ok);
  std::vector<TensorInfo> infos;
  std::size_t total = 0;
  for (const ExpectedTensor& tensor : list.tensors()) {
    const auto bytes = static_cast<std::size_t>(tensor.bytes());
    infos.push_back(
        {tensor.name, tensor.dtype, {tensor.shape().begin(), tensor.shape().end()}, total, bytes});
    total += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  DFlashWeights weights;
  try {
    weights.generated_.emplace(total);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kLimit, "random weights: no memory for the {:.2f} GB of the drafter",
                static_cast<double>(total) / 1e9);
  }
  TensorBook book("random drafter");
  std::vector<FillJob> jobs;
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const ExpectedTensor& tensor = list.tensors()[i];
    std::uint8_t* out = weights.generated_->data() + infos[i].offset;
    jobs.push_back({&tensor, tensor.dims[1], out});
    if (const Status ok = book.add(infos[i], out); !ok) return forward_error(ok);
  }
  fill_random(jobs, seed, static_cast<int>(std::thread::hardware_concurrency()));
  if (const Status ok = read_tensors(config, book, weights); !ok) return forward_error(ok);
  return weights;
}

}  // namespace mimo
