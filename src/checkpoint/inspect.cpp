#include "checkpoint/inspect.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "checkpoint/dflash_weights.h"
#include "checkpoint/mask_embedding.h"
#include "checkpoint/safetensors_set.h"
#include "checkpoint/sharding.h"

namespace mimo {
namespace {

std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

std::string gigabytes(std::uint64_t bytes) {
  return bytes < 100'000'000 ? fmt::format("{:.3f} MB", static_cast<double>(bytes) / 1e6)
                             : fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
}

std::string parameter_text(std::uint64_t count) {
  return count < 1'000'000'000 ? fmt::format("{:.2f}M", static_cast<double>(count) / 1e6)
                               : fmt::format("{:.2f}B", static_cast<double>(count) / 1e9);
}

const char* kind_name(LayerKind kind) { return kind == LayerKind::kFull ? "full" : "window"; }

std::string qkv_text(const QkvLayout& layout) {
  if (!layout.fused) return "split";
  return layout.chunks > 1 ? fmt::format("fused in {} chunks", layout.chunks) : "fused, plain [Q|K|V]";
}

void add_attention(std::string& text, const char* name, const AttentionShape& shape) {
  text += fmt::format(
      "  {:<7} {} query heads, {} KV heads, head {} / {}, rotary {} of theta {}, {}{}\n", name, shape.q_heads,
      shape.kv_heads, shape.qk_dim, shape.v_dim, shape.rotary_dims, shape.rope_theta,
      shape.window > 0 ? fmt::format("window {}", shape.window) : "all keys", shape.sink ? ", sinks" : "");
}

json::object attention_json(const AttentionShape& shape) {
  return {{"q_heads", shape.q_heads},         {"kv_heads", shape.kv_heads},
          {"qk_dim", shape.qk_dim},           {"v_dim", shape.v_dim},
          {"rotary_dims", shape.rotary_dims}, {"rope_theta", shape.rope_theta},
          {"window", shape.window},           {"sink", shape.sink}};
}

constexpr std::uint8_t kLargestE4m3 = 0x7E;  // 448
// Real checkpoints are quantised by the block's maximum, so nearly every whole block reaches 448.
constexpr double kExpectedAt448 = 0.9;

// See InspectReport::qkv_blocks_at_448. Only whole blocks count: the last rows of a chunk may not fill one.
std::optional<double> blocks_at_448(const ModelConfig& config, const QkvLayout& layout,
                                    const SafetensorsSet& files) {
  const auto first_full = std::find(config.layer_kinds.begin(), config.layer_kinds.end(), LayerKind::kFull);
  if (!layout.fused || first_full == config.layer_kinds.end()) return std::nullopt;
  const int layer = static_cast<int>(first_full - config.layer_kinds.begin());
  const StoredTensor* weight = files.find(layer_module(layer, "self_attn.qkv_proj.weight"));
  const std::int64_t rows = qkv_chunk(config.full, layout.chunks).rows();
  const std::vector<std::int64_t> shape = {rows * layout.chunks, config.hidden};
  if (weight == nullptr || weight->info->dtype != DType::kF8E4M3 || weight->info->shape != shape)
    return std::nullopt;
  std::int64_t whole = 0;
  std::int64_t reached = 0;
  for (int c = 0; c < layout.chunks; ++c) {
    for (std::int64_t block = 0; block < rows / kFp8Block; ++block) {
      for (std::int64_t col = 0; col + kFp8Block <= config.hidden; col += kFp8Block) {
        std::uint8_t largest = 0;
        for (std::int64_t r = 0; r < kFp8Block; ++r) {
          const std::uint8_t* row =
              weight->data() + (c * rows + block * kFp8Block + r) * std::int64_t{config.hidden} + col;
          for (std::int64_t i = 0; i < kFp8Block; ++i) {
            largest = std::max(largest, static_cast<std::uint8_t>(row[i] & 0x7F));
          }
        }
        ++whole;
        reached += largest == kLargestE4m3 ? 1 : 0;
      }
    }
  }
  if (whole == 0) return std::nullopt;
  return static_cast<double>(reached) / static_cast<double>(whole);
}

// Everything that start-up would refuse is a problem: a drafter that is there is used.
void inspect_drafter(InspectReport& report) {
  const std::string directory = report.directory + "/dflash";
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) return;
  DrafterReport& drafter = report.drafter.emplace();
  Result<DFlashConfig> config = load_dflash_config(directory, report.config);
  if (!config) {
    report.problems.push_back(config.error().message);
    return;
  }
  drafter.config = std::move(*config);
  const Result<std::vector<float>> mask =
      load_mask_embedding(directory, drafter.config->mask_token_id, drafter.config->hidden);
  if (mask) {
    double squares = 0;
    for (const float value : *mask) squares += double{value} * double{value};
    drafter.mask_norm = std::sqrt(squares);
  } else {
    report.problems.push_back(mask.error().message);
  }
  const Result<DFlashWeights> weights = DFlashWeights::open(directory, *drafter.config);
  if (!weights) report.problems.push_back(weights.error().message);
  for (const std::string& warning : drafter.config->warnings) report.config.warnings.push_back(warning);
}

std::string window_text(const DFlashConfig& config) {
  const int window = config.widest_window();
  return window > 0 ? fmt::format("window {}", window) : "the whole context";
}

std::string drafter_text(const DrafterReport& drafter) {
  if (!drafter.config) return "\ndrafter (dflash/): cannot be read\n";
  const DFlashConfig& config = *drafter.config;
  std::string text = fmt::format(
      "\ndrafter (dflash/)\n  {} layers, blocks of {} ({} drafts), {}, taps after layers {}\n", config.layers,
      config.block, config.block - 1, window_text(config), fmt::join(config.target_layer_ids, ", "));
  text += fmt::format("  {} parameters, {} in bf16; mask token {}, norm of its embedding {}\n",
                      parameter_text(config.parameters()), gigabytes(2 * config.parameters()),
                      config.mask_token_id,
                      drafter.mask_norm ? fmt::format("{:.3f}", *drafter.mask_norm) : std::string("unknown"));
  return text;
}

json::value drafter_json(const std::optional<DrafterReport>& drafter) {
  if (!drafter) return nullptr;
  json::object out;
  if (drafter->config) {
    const DFlashConfig& config = *drafter->config;
    out = {{"layers", config.layers},
           {"block", config.block},
           {"window", config.widest_window()},
           {"target_layer_ids", json::value_from(config.target_layer_ids)},
           {"mask_token_id", config.mask_token_id},
           {"parameters", config.parameters()},
           {"bytes", 2 * config.parameters()}};
  }
  out["mask_embedding_norm"] = drafter->mask_norm ? json::value(*drafter->mask_norm) : json::value();
  return out;
}

json::array text_array(const std::vector<std::string>& texts) {
  json::array out;
  for (const std::string& text : texts) out.emplace_back(json::string(text));
  return out;
}

}  // namespace

const char* weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kFp8:
      return "fp8-e4m3-block128";
    case WeightFormat::kMxfp4:
      return "mxfp4";
  }
  return "";
}

Result<InspectReport> inspect_checkpoint(const std::string& directory, const OpenOptions& options) {
  Result<ModelConfig> config = load_config(directory);
  if (!config) return forward_error(config);
  InspectReport report;
  report.directory = directory;
  report.config = std::move(*config);
  report.kv_bf16 = kv_bytes(report.config, KvFormat::kBF16, false);
  report.kv_fp8 = kv_bytes(report.config, KvFormat::kFp8, false);
  report.tensor_parallel = supported_shard_sizes(report.config);
  report.qkv = {report.config.fused_qkv, report.config.qkv_chunks};
  inspect_drafter(report);
  const Result<SafetensorsSet> files = SafetensorsSet::open(directory);
  if (!files) {
    report.problems.push_back(files.error().message);
    report.size = model_size(report.config, std::max(report.config.mtp_heads, 0));
    return report;
  }
  report.indexed = files->indexed();
  report.other_files = files->other_files();
  for (const SafetensorsFile& file : files->files()) {
    report.files.push_back(file_name(file.path()));
    if (file.header().hole_bytes != 0) {
      report.config.warnings.push_back(
          fmt::format("{}: {} data bytes belong to no tensor", file.path(), file.header().hole_bytes));
    }
  }
  OpenOptions with_mtp = options;
  with_mtp.mtp = true;
  Binding binding = bind_checkpoint(report.config, *files, with_mtp);
  if (binding.stored_mtp == 0 && !options.mtp) {
    with_mtp.mtp = false;  // a checkpoint without heads is complete unless they were asked for
    binding = bind_checkpoint(report.config, *files, with_mtp);
  }
  report.qkv = binding.qkv;
  report.mtp_heads = binding.stored_mtp;
  report.size = model_size(report.config, binding.stored_mtp);
  report.stored_bytes = binding.total_bytes;
  report.skipped = binding.skipped;
  report.config.router_format = binding.router_format.value_or(report.config.router_format);
  report.qkv_blocks_at_448 = blocks_at_448(report.config, binding.qkv, *files);
  if (report.qkv_blocks_at_448.value_or(1.0) < kExpectedAt448) {
    report.config.warnings.push_back(fmt::format(
        "only {:.1f}% of the fused QKV's FP8 blocks reach 448: the rows may be stored in another layout",
        100 * *report.qkv_blocks_at_448));
  }
  auto& warnings = report.config.warnings;
  warnings.insert(warnings.end(), binding.warnings.begin(), binding.warnings.end());
  for (const Error& problem : files->problems()) report.problems.push_back(problem.message);
  for (const Error& problem : binding.problems) report.problems.push_back(problem.message);
  return report;
}

std::string to_text(const InspectReport& report) {
  const ModelConfig& config = report.config;
  std::string text = fmt::format("{}: MiMo-{} ({} / {})\n", report.directory, config.member,
                                 config.architecture, config.model_type);
  text += fmt::format("  {} layers, hidden {}, vocabulary {}, context {}, eps {}, value scale {}\n",
                      config.layers, config.hidden, config.vocab, config.max_positions, config.norm_eps,
                      config.value_scale);
  text += fmt::format("  parameters {} total, {} active per token\n",
                      parameter_text(report.size.total_parameters),
                      parameter_text(report.size.active_parameters));

  text += "\nattention\n";
  add_attention(text, "full", config.full);
  add_attention(text, "window", config.window);

  text += "\nlayers\n";
  for (int first = 0; first < config.layers;) {
    const auto same = [&](int i) {
      return config.layer_kinds[static_cast<std::size_t>(i)] ==
                 config.layer_kinds[static_cast<std::size_t>(first)] &&
             config.layer_is_moe[static_cast<std::size_t>(i)] ==
                 config.layer_is_moe[static_cast<std::size_t>(first)];
    };
    int last = first;
    while (last + 1 < config.layers && same(last + 1)) ++last;
    const std::string range = first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
    text += fmt::format("  {:>7}  {:<6}  {}\n", range,
                        kind_name(config.layer_kinds[static_cast<std::size_t>(first)]),
                        config.layer_is_moe[static_cast<std::size_t>(first)]
                            ? fmt::format("MoE, {} of {} experts of width {}", config.top_k, config.experts,
                                          config.moe_intermediate)
                            : fmt::format("dense MLP of width {}", config.intermediate));
    first = last + 1;
  }

  text += fmt::format("\nformats\n  qkv, dense MLP {}; experts {}; router {}; QKV {}; MTP heads {}\n",
                      weight_format_name(config.dense_format), weight_format_name(config.expert_format),
                      weight_format_name(config.router_format), qkv_text(report.qkv), report.mtp_heads);
  if (report.qkv_blocks_at_448) {
    text +=
        fmt::format("  {:.1f}% of the fused QKV's FP8 blocks reach 448\n", 100 * *report.qkv_blocks_at_448);
  }
  if (report.drafter) text += drafter_text(*report.drafter);
  text += "\nbytes by group\n";
  for (int g = 0; g < kTensorGroups; ++g) {
    const auto at = static_cast<std::size_t>(g);
    if (report.size.bytes[at] == 0) continue;
    text += fmt::format("  {:<22} {:>12}  {:>9} parameters\n", tensor_group_name(static_cast<TensorGroup>(g)),
                        gigabytes(report.size.bytes[at]), parameter_text(report.size.parameters[at]));
  }
  text += fmt::format("  {:<22} {:>12}  ({} found in {} file{}{})\n", "total",
                      gigabytes(report.size.total_bytes), gigabytes(report.stored_bytes), report.files.size(),
                      report.files.size() == 1 ? "" : "s", report.indexed ? ", indexed" : "");
  text += fmt::format(
      "\nKV cache\n  {} bytes a token in bf16, {} in fp8, plus {} / {} for the last {} tokens of each "
      "running request\n",
      report.kv_bf16.full_per_token, report.kv_fp8.full_per_token,
      gigabytes(report.kv_bf16.window_per_token * static_cast<std::uint64_t>(config.window.window)),
      gigabytes(report.kv_fp8.window_per_token * static_cast<std::uint64_t>(config.window.window)),
      config.window.window);
  text += fmt::format("\ntensor-parallel sizes: {}\n", fmt::join(report.tensor_parallel, ", "));
  text += fmt::format("stop ids: {}\n", config.eos_token_ids.empty()
                                            ? std::string("none")
                                            : fmt::format("{}", fmt::join(config.eos_token_ids, ", ")));
  for (const auto& [prefix, skipped] : report.skipped) {
    text += fmt::format("skipped: {}* ({} tensors, {})\n", prefix, skipped.count, gigabytes(skipped.bytes));
  }
  for (const std::string& file : report.other_files)
    text += fmt::format("not part of the checkpoint: {}\n", file);
  for (const std::string& warning : config.warnings) text += fmt::format("odd: {}\n", warning);
  for (const std::string& problem : report.problems) text += fmt::format("PROBLEM: {}\n", problem);
  if (report.problems.empty()) text += "complete: every tensor is there with the expected dtype and shape\n";
  return text;
}

json::value to_json(const InspectReport& report) {
  const ModelConfig& config = report.config;
  json::array layers;
  for (int i = 0; i < config.layers; ++i) {
    layers.push_back(json::object{
        {"attention", kind_name(config.layer_kinds[static_cast<std::size_t>(i)])},
        {"mlp", config.layer_is_moe[static_cast<std::size_t>(i)] ? "moe" : "dense"},
    });
  }
  json::object groups;
  for (int g = 0; g < kTensorGroups; ++g) {
    const auto at = static_cast<std::size_t>(g);
    groups[tensor_group_name(static_cast<TensorGroup>(g))] =
        json::object{{"bytes", report.size.bytes[at]}, {"parameters", report.size.parameters[at]}};
  }
  json::object skipped;
  for (const auto& [prefix, tensors] : report.skipped) {
    skipped[prefix] = json::object{{"tensors", tensors.count}, {"bytes", tensors.bytes}};
  }
  const auto kv = [](const KvBytes& bytes) {
    return json::object{{"full_bytes_per_token", bytes.full_per_token},
                        {"window_bytes_per_token", bytes.window_per_token}};
  };
  return json::object{
      {"directory", report.directory},
      {"member", config.member},
      {"architecture", config.architecture},
      {"model_type", config.model_type},
      {"layers", config.layers},
      {"hidden", config.hidden},
      {"vocab", config.vocab},
      {"max_positions", config.max_positions},
      {"norm_eps", config.norm_eps},
      {"value_scale", config.value_scale},
      {"experts", config.experts},
      {"top_k", config.top_k},
      {"attention",
       json::object{{"full", attention_json(config.full)}, {"window", attention_json(config.window)}}},
      {"layer_table", layers},
      {"formats", json::object{{"dense", weight_format_name(config.dense_format)},
                               {"experts", weight_format_name(config.expert_format)},
                               {"router", weight_format_name(config.router_format)},
                               {"qkv", qkv_text(report.qkv)},
                               {"qkv_chunks", report.qkv.chunks}}},
      {"qkv_blocks_at_448",
       report.qkv_blocks_at_448 ? json::value(*report.qkv_blocks_at_448) : json::value()},
      {"mtp_heads", report.mtp_heads},
      {"drafter", drafter_json(report.drafter)},
      {"groups", groups},
      {"parameters_total", report.size.total_parameters},
      {"parameters_active", report.size.active_parameters},
      {"bytes_expected", report.size.total_bytes},
      {"bytes_stored", report.stored_bytes},
      {"kv_bf16", kv(report.kv_bf16)},
      {"kv_fp8", kv(report.kv_fp8)},
      {"window", config.window.window},
      {"tensor_parallel", json::value_from(report.tensor_parallel)},
      {"stop_ids", json::value_from(config.eos_token_ids)},
      {"files", text_array(report.files)},
      {"other_files", text_array(report.other_files)},
      {"skipped", skipped},
      {"warnings", text_array(config.warnings)},
      {"problems", text_array(report.problems)},
      {"complete", report.problems.empty()},
  };
}

}  // namespace mimo
