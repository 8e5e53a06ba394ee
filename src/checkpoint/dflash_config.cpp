#include "checkpoint/dflash_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "checkpoint/field_reader.h"
#include "core/file.h"
#include "core/json.h"

namespace mimo {
namespace {

constexpr std::size_t kMaxConfigBytes = 1u << 20;
constexpr int kMaxLayers = 64;
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadDim = 512;
constexpr int kMaxBlock = 128;
constexpr int kMaxWindow = 1 << 24;

// Of the Qwen3 config class that drafters are saved with, and of training: nothing the forward pass reads.
// backbone_rotary_base is the target's.
constexpr std::array<std::string_view, 22> kIgnored = {"torch_dtype",
                                                       "dtype",
                                                       "transformers_version",
                                                       "initializer_range",
                                                       "auto_map",
                                                       "use_cache",
                                                       "_name_or_path",
                                                       "attention_dropout",
                                                       "tie_word_embeddings",
                                                       "max_window_layers",
                                                       "bos_token_id",
                                                       "eos_token_id",
                                                       "pad_token_id",
                                                       "max_position_embeddings",
                                                       "add_full_attention_sink_bias",
                                                       "backbone_rotary_base",
                                                       "num_anchors",
                                                       "loss_decay_gamma",
                                                       "model_type",
                                                       "attention_chunk_size",
                                                       "head_dtype",
                                                       "return_dict"};

class Parser {
 public:
  Parser(const json::object& fields, const json::object& nested, const std::string& what,
         const ModelConfig& target)
      : top_(fields, what), nested_(nested, what + ": dflash_config"), target_(target) {}

  Result<DFlashConfig> parse() {
    top_.object("dflash_config");
    identity();
    sizes();
    rotation();
    taps();
    extras();
    attention();
    for (FieldReader* in : {&top_, &nested_}) {
      if (in->failed()) return tl::unexpected<Error>(*in->error());
      for (const std::string& key : in->unread()) {
        if (std::find(kIgnored.begin(), kIgnored.end(), key) != kIgnored.end()) continue;
        out_.warnings.push_back(fmt::format("{}: unknown key \"{}\"", in->where(), key));
      }
    }
    return std::move(out_);
  }

 private:
  bool failed() const { return top_.failed() || nested_.failed(); }

  // Where a key stands that may be nested or at the top: nested first.
  FieldReader& holder(std::string_view key) { return nested_.has(key) ? nested_ : top_; }

  void identity() {
    const json::array* names = top_.array("architectures");
    if (names == nullptr) {
      top_.missing("architectures");
      return;
    }
    if (names->size() != 1 || !names->front().is_string() ||
        names->front().get_string() != "DFlashDraftModel") {
      top_.refuse("architectures", "[\"DFlashDraftModel\"]");
    }
    if (top_.has("hidden_act") && top_.text("hidden_act") != "silu") top_.refuse("hidden_act", "\"silu\"");
    top_.only_boolean("attention_bias", false);
  }

  // The drafter shares matrices with its target: what they have in common must agree.
  void same_as_target(std::string_view key, int value) {
    if (!top_.has(key)) return;
    const std::optional<std::int64_t> found = top_.integer(key, 0, 1 << 30);
    if (found && *found != value) top_.refuse(key, fmt::format("{}, as in the target", value));
  }

  void sizes() {
    out_.hidden = top_.required_integer("hidden_size", 1, kMaxWidth);
    if (out_.hidden != target_.hidden && !failed()) {
      top_.refuse("hidden_size", fmt::format("{}, as in the target", target_.hidden));
    }
    same_as_target("target_hidden_size", target_.hidden);
    same_as_target("vocab_size", target_.vocab);
    same_as_target("num_target_layers", target_.layers);
    out_.intermediate = top_.required_integer("intermediate_size", 1, kMaxWidth);
    out_.layers = top_.required_integer("num_hidden_layers", 1, kMaxLayers);
    out_.q_heads = top_.required_integer("num_attention_heads", 1, kMaxHeads);
    out_.kv_heads =
        static_cast<int>(top_.integer("num_key_value_heads", 1, kMaxHeads).value_or(out_.q_heads));
    if (!failed() && out_.q_heads % out_.kv_heads != 0) {
      top_.refuse("num_key_value_heads", fmt::format("a divisor of num_attention_heads {}", out_.q_heads));
    }
    out_.head_dim = top_.required_integer("head_dim", 2, kMaxHeadDim);
    if (top_.has("v_head_dim") && top_.integer("v_head_dim", 1, kMaxHeadDim) != out_.head_dim) {
      top_.refuse("v_head_dim", fmt::format("{}, as head_dim", out_.head_dim));
    }
    if (!top_.has("rms_norm_eps")) top_.missing("rms_norm_eps");
    out_.norm_eps = static_cast<float>(top_.number("rms_norm_eps", 1e-12, 1e-2).value_or(1e-6));
    FieldReader& in = holder("block_size");
    out_.block = in.required_integer("block_size", 2, kMaxBlock);
    if (&in == &nested_) top_.ignore("block_size");
  }

  // The base is the drafter's own; the target's would turn the keys by other angles.
  void rotation() {
    std::optional<double> theta = top_.number("rope_theta", 1.0, 1e12);
    std::optional<double> factor = top_.number("partial_rotary_factor", 0.0, 1.0);
    if (const json::object* fields = top_.object("rope_parameters")) {
      FieldReader in(*fields, top_.where() + ": rope_parameters");
      in.one_of("rope_type", {"default"});
      if (!theta) theta = in.number("rope_theta", 1.0, 1e12);
      if (!factor) factor = in.number("partial_rotary_factor", 0.0, 1.0);
      if (in.failed()) top_.problem(in.error()->code, in.error()->message);
    }
    if (const json::value* scaling = top_.value("rope_scaling")) {
      const json::object* fields = scaling->if_object();
      const json::value* type = nullptr;
      if (fields != nullptr) type = fields->if_contains(fields->contains("rope_type") ? "rope_type" : "type");
      if (type == nullptr || !type->is_string() || type->get_string() != "default") {
        top_.refuse("rope_scaling", "null or the type \"default\"");
      }
    }
    if (!theta) top_.missing("rope_theta");
    out_.rope_theta = static_cast<float>(theta.value_or(1.0));
    out_.rotary_dims = static_cast<int>(out_.head_dim * factor.value_or(1.0));
    if (!failed() && (out_.rotary_dims < 2 || out_.rotary_dims % 2 != 0)) {
      top_.refuse("partial_rotary_factor",
                  fmt::format("a factor that rotates an even number of the {} head dims", out_.head_dim));
    }
  }

  void taps() {
    FieldReader& in = holder("target_layer_ids");
    const json::array* ids = in.array("target_layer_ids");
    if (&in == &nested_) top_.ignore("target_layer_ids");
    if (ids == nullptr) {
      if (!failed()) default_taps();
    } else {
      for (const json::value& id : *ids) {
        if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= target_.layers) {
          in.refuse("target_layer_ids", fmt::format("layer numbers from 0 to {}", target_.layers - 1));
          return;
        }
        out_.target_layer_ids.push_back(static_cast<int>(id.get_int64()));
      }
      if (ids->empty() || ids->size() > static_cast<std::size_t>(target_.layers)) {
        in.refuse("target_layer_ids", fmt::format("1 to {} layer numbers", target_.layers));
      }
    }
  }

  // One draft layer taps the middle; more spread their taps evenly from layer 1 to the third last.
  void default_taps() {
    const int n = target_.layers;
    if (out_.layers == 1) {
      out_.target_layer_ids = {n / 2};
      return;
    }
    if (n < 4) {
      top_.problem(ErrorCode::kInvalidArgument,
                   fmt::format("target_layer_ids is missing, and a target of {} layers has no default", n));
      return;
    }
    for (int i = 0; i < out_.layers; ++i) {
      const double at = 1.0 + static_cast<double>(i) * (n - 4) / (out_.layers - 1);
      out_.target_layer_ids.push_back(static_cast<int>(std::nearbyint(at)));  // half to even
    }
  }

  void extras() {
    FieldReader& in = holder("mask_token_id");
    out_.mask_token_id = in.required_integer("mask_token_id", 0, std::max(0, target_.vocab - 1));
    if (&in == &nested_) top_.ignore("mask_token_id");
    FieldReader& scale = holder("attention_value_scale");
    out_.value_scale = static_cast<float>(scale.number("attention_value_scale", 1e-3, 1e3).value_or(1.0));
    if (&scale == &nested_) top_.ignore("attention_value_scale");
    const std::optional<bool> nested = nested_.boolean("attention_sink_bias");
    const std::optional<bool> outer = top_.boolean("add_swa_attention_sink_bias");
    if (nested && outer && *nested != *outer) {
      top_.problem(
          ErrorCode::kInvalidArgument,
          fmt::format("add_swa_attention_sink_bias {} contradicts dflash_config.attention_sink_bias {}",
                      *outer, *nested));
    }
    out_.sinks = nested.value_or(outer.value_or(false));
  }

  void attention() {
    std::vector<bool> sliding;
    if (const json::array* types = top_.array("layer_types")) {
      if (types->size() != static_cast<std::size_t>(out_.layers)) {
        top_.refuse("layer_types", fmt::format("{} entries, one a layer", out_.layers));
      }
      for (const json::value& type : *types) {
        const bool is_sliding = type.is_string() && type.get_string() == "sliding_attention";
        if (!is_sliding && !(type.is_string() && type.get_string() == "full_attention")) {
          top_.refuse("layer_types", "\"sliding_attention\" or \"full_attention\" for every layer");
        }
        sliding.push_back(is_sliding);
      }
    }
    const bool forced = nested_.boolean("use_swa").value_or(false);
    const bool declared = top_.boolean("use_sliding_window").value_or(false);
    const bool typed = !sliding.empty();
    if (declared && !typed && !forced) {
      top_.problem(ErrorCode::kInvalidArgument,
                   "use_sliding_window is true, but neither layer_types nor dflash_config.use_swa says for "
                   "which layers");
    }
    std::optional<std::int64_t> size = nested_.integer("swa_window_size", 1, kMaxWindow);
    const std::optional<std::int64_t> outer = top_.integer("sliding_window", 1, kMaxWindow);
    const std::string_view size_key = size ? "dflash_config.swa_window_size" : "sliding_window";
    if (!size) size = outer;
    const std::optional<bool> top_causal = top_.boolean("is_causal");
    const std::optional<bool> nested_causal = nested_.boolean("causal");
    if (failed()) return;

    for (int i = 0; i < out_.layers; ++i) {
      const bool type = typed && sliding[static_cast<std::size_t>(i)];
      DFlashConfig::Layer layer;
      if (forced || type) {
        if (!size) {
          top_.missing("sliding_window");
          return;
        }
        if (*size < out_.block) {
          top_.problem(ErrorCode::kInvalidArgument,
                       fmt::format("{} is {}, expected at least block_size {}", size_key, *size, out_.block));
          return;
        }
        layer.window = static_cast<int>(*size);
      }
      // Publishers that say nothing mean causal by a sliding layer; MiMo's say is_causal false, or name no
      // layer types.
      layer.causal = top_causal.value_or(nested_causal.value_or(type));
      out_.attention.push_back(layer);
    }
  }

  FieldReader top_;
  FieldReader nested_;
  const ModelConfig& target_;
  DFlashConfig out_;
};

}  // namespace

int DFlashConfig::widest_window() const {
  int widest = 0;
  for (const Layer& layer : attention) {
    if (layer.window == 0) return 0;
    widest = std::max(widest, layer.window);
  }
  return widest;
}

std::uint64_t DFlashConfig::context_parameters() const {
  return 2ull * static_cast<std::uint64_t>(layers) * static_cast<std::uint64_t>(kv_heads) *
         static_cast<std::uint64_t>(head_dim) * static_cast<std::uint64_t>(hidden);
}

std::uint64_t DFlashConfig::parameters() const {
  const auto width = static_cast<std::uint64_t>(hidden);
  const auto dim = static_cast<std::uint64_t>(head_dim);
  const auto heads = static_cast<std::uint64_t>(q_heads);
  const std::uint64_t fc = target_layer_ids.size() * width * width;
  const std::uint64_t layer = 2 * heads * dim * width                                 // q_proj, o_proj
                              + 3 * static_cast<std::uint64_t>(intermediate) * width  // gate, up, down
                              + 2 * width + 2 * dim + (sinks ? heads : 0);            // norms, sinks
  return fc + 2 * width + static_cast<std::uint64_t>(layers) * layer + context_parameters();
}

Result<DFlashConfig> parse_dflash_config(std::string_view text, std::string_view what,
                                         const ModelConfig& target) {
  JsonLimits limits;
  limits.max_bytes = kMaxConfigBytes;
  limits.allow_comments_and_commas = true;
  const Result<json::value> value = parse_json(text, what, limits);
  if (!value) return forward_error(value);
  const json::object* fields = value->if_object();
  if (fields == nullptr) return fail(ErrorCode::kInvalidArgument, "{}: expected a JSON object", what);
  const json::value* nested = fields->if_contains("dflash_config");
  const json::object none;
  return Parser(*fields, nested != nullptr && nested->is_object() ? nested->get_object() : none,
                std::string(what), target)
      .parse();
}

Result<DFlashConfig> load_dflash_config(const std::string& directory, const ModelConfig& target) {
  const std::string path = directory + "/config.json";
  const Result<std::string> text = read_file(path, kMaxConfigBytes);
  if (!text) return forward_error(text);
  return parse_dflash_config(*text, path, target);
}

}  // namespace mimo
