#include "checkpoint/binding.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>

namespace mimo {
namespace {

constexpr std::size_t kNamedProblems = 10;
constexpr std::size_t kMaxProblems = 1000;
constexpr std::string_view kMtpPrefix = "model.mtp.";
constexpr std::string_view kMtpLayerPrefix = "model.mtp.layers.";

class Binder {
 public:
  Binder(const ModelConfig& config, const SafetensorsSet& files, const OpenOptions& options)
      : config_(config), files_(files), options_(options) {}

  Binding bind() {
    out_.stored_mtp = count_mtp();
    if (config_.mtp_heads >= 0 && out_.stored_mtp != 0 && config_.mtp_heads != out_.stored_mtp) {
      problem(ErrorCode::kCorrupt, fmt::format("num_nextn_predict_layers is {}, the files hold {} MTP heads",
                                               config_.mtp_heads, out_.stored_mtp));
    }
    if (options_.mtp) {
      out_.mtp_heads = config_.mtp_heads >= 0 ? config_.mtp_heads : out_.stored_mtp;
      if (out_.mtp_heads == 0)
        problem(ErrorCode::kNotFound, "the checkpoint has no MTP heads (model.mtp.layers.*)");
    }
    choose_qkv();
    check(global_tensors(config_));
    for (int i = 0; i < config_.layers; ++i) check(layer_tensors(config_, out_.qkv, i));
    for (int k = 0; k < out_.mtp_heads; ++k) check(mtp_tensors(config_, out_.qkv, k));
    sort_rest();
    return std::move(out_);
  }

 private:
  void problem(ErrorCode code, std::string message) {
    if (out_.problems.size() < kMaxProblems) out_.problems.push_back({code, std::move(message)});
  }

  int count_mtp() const {
    int heads = 0;
    for (const auto& [name, tensor] : files_.tensors()) {
      if (!name.starts_with(kMtpLayerPrefix)) continue;
      int head = 0;
      const char* begin = name.data() + kMtpLayerPrefix.size();
      const char* end = name.data() + name.size();
      const auto [rest, ec] = std::from_chars(begin, end, head);
      if (ec == std::errc() && rest != end && *rest == '.' && head >= 0 && head < 64)
        heads = std::max(heads, head + 1);
    }
    return heads;
  }

  // Chunked or plain, from a full-attention layer: only there do the two grids differ for every released size
  // (the window layers of the 309B model have 116 scale rows either way).
  void choose_qkv() {
    out_.qkv = {config_.fused_qkv, config_.qkv_chunks};
    if (!config_.fused_qkv) {
      if (options_.qkv_layout == OpenOptions::QkvLayout::kChunked) {
        problem(ErrorCode::kInvalidArgument,
                "a chunked QKV layout was asked for, but attention_projection_layout is split");
      }
      return;
    }
    if (options_.qkv_layout == OpenOptions::QkvLayout::kPlain) {
      out_.qkv.chunks = 1;
      return;
    }
    const auto tp_size = files_.index_tp_size();
    const bool chunked = options_.qkv_layout == OpenOptions::QkvLayout::kChunked;
    if (tp_size && *tp_size != config_.qkv_chunks) {
      problem(
          ErrorCode::kInvalidArgument,
          fmt::format(
              "the index says that the fused QKV has {} chunks (metadata.tp_size), num_key_value_heads {} "
              "means {}",
              *tp_size, config_.full.kv_heads, config_.qkv_chunks));
    }
    if (chunked) return;
    for (int i = 0; i < config_.layers; ++i) {
      if (config_.layer_kinds[static_cast<std::size_t>(i)] != LayerKind::kFull) continue;
      const std::string name = layer_module(i, "self_attn.qkv_proj.weight_scale_inv");
      const StoredTensor* scale = files_.find(name);
      if (scale == nullptr || scale->info->shape.size() != 2) continue;
      const std::int64_t stored = scale->info->shape[0];
      const std::int64_t per_chunk = qkv_chunk(config_.full, config_.qkv_chunks).rows();
      const std::int64_t as_chunks = fp8_blocks(per_chunk) * config_.qkv_chunks;
      const std::int64_t as_plain = fp8_blocks(per_chunk * config_.qkv_chunks);
      if (as_chunks == as_plain) break;
      if (stored == as_plain) {
        out_.qkv.chunks = 1;
        out_.warnings.push_back(
            fmt::format("{} has {} rows: read as a plain [Q|K|V] re-export, not as {} chunks", name, stored,
                        config_.qkv_chunks));
      } else if (stored != as_chunks) {
        problem(ErrorCode::kCorrupt,
                fmt::format("{} has {} rows, expected {} ({} chunks) or {} (plain [Q|K|V])", name, stored,
                            as_chunks, config_.qkv_chunks, as_plain));
      }
      return;
    }
    if (!tp_size && config_.qkv_chunks > 1) {
      out_.warnings.push_back(
          fmt::format("nothing in the files tells whether the fused QKV is chunked or plain; read as {} "
                      "chunks as the released "
                      "members are (the QKV layout option overrides)",
                      config_.qkv_chunks));
    }
  }

  void check(const std::vector<ExpectedTensor>& table) {
    for (const ExpectedTensor& expected : table) {
      const StoredTensor* stored = files_.find(expected.name);
      if (stored == nullptr) {
        problem(ErrorCode::kNotFound, fmt::format("tensor \"{}\" {} {} is missing", expected.name,
                                                  dtype_name(expected.dtype), shape_text(expected.shape())));
        continue;
      }
      bound_.insert(stored->info);
      const TensorInfo& info = *stored->info;
      const bool dtype_ok = info.dtype == expected.dtype || info.dtype == expected.also;
      if (!dtype_ok || !std::equal(info.shape.begin(), info.shape.end(), expected.shape().begin(),
                                   expected.shape().end())) {
        problem(ErrorCode::kCorrupt,
                fmt::format("{}: tensor \"{}\" is {} {}, expected {} {}", stored->file->path(), expected.name,
                            dtype_name(info.dtype), shape_text(info.shape), dtype_name(expected.dtype),
                            shape_text(expected.shape())));
      }
      if (expected.group == TensorGroup::kRouter && expected.rank == 2 && dtype_ok && !out_.router_format) {
        out_.router_format = info.dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBF16;
      }
      out_.total_bytes += info.bytes;
      out_.group_bytes[static_cast<std::size_t>(expected.group)] += info.bytes;
    }
  }

  void sort_rest() {
    if (bound_.size() == files_.tensors().size()) return;
    const std::vector<std::string> prefixes = skipped_prefixes(options_.mtp);
    for (const auto& [name, stored] : files_.tensors()) {
      if (bound_.contains(stored.info)) continue;
      const std::string_view text = name;
      const auto prefix = std::find_if(prefixes.begin(), prefixes.end(),
                                       [&](const std::string& each) { return text.starts_with(each); });
      if (prefix == prefixes.end()) {
        out_.leftover.emplace_back(name);
      } else {
        SkippedTensors& skipped = out_.skipped[*prefix];
        ++skipped.count;
        skipped.bytes += stored.info->bytes;
      }
    }
    std::sort(out_.leftover.begin(), out_.leftover.end());
    for (const std::string& name : out_.leftover) {
      problem(ErrorCode::kCorrupt, fmt::format("{}: tensor \"{}\" is not one this model has",
                                               files_.find(name)->file->path(), name));
    }
  }

  const ModelConfig& config_;
  const SafetensorsSet& files_;
  const OpenOptions& options_;
  Binding out_;
  std::unordered_set<const TensorInfo*> bound_;
};

}  // namespace

Binding bind_checkpoint(const ModelConfig& config, const SafetensorsSet& files, const OpenOptions& options) {
  return Binder(config, files, options).bind();
}

std::vector<std::string> skipped_prefixes(bool mtp) {
  std::vector<std::string> prefixes = {"visual.", "vision_model.", "audio_", "speech_embeddings."};
  if (!mtp) prefixes.emplace_back(kMtpPrefix);
  return prefixes;
}

std::vector<std::string> skipped_lines(const Binding& binding) {
  std::vector<std::string> lines;
  for (const auto& [prefix, skipped] : binding.skipped) {
    lines.push_back(fmt::format("{}*: {} tensors, {} bytes", prefix, skipped.count, skipped.bytes));
  }
  return lines;
}

Error joined_problems(const std::vector<Error>& problems) {
  Error joined{problems.front().code, ""};
  for (std::size_t i = 0; i < problems.size() && i < kNamedProblems; ++i) {
    if (i > 0) joined.message += "; ";
    joined.message += problems[i].message;
  }
  if (problems.size() > kNamedProblems) {
    joined.message += fmt::format("; and {} more", problems.size() - kNamedProblems);
  }
  return joined;
}

}  // namespace mimo
