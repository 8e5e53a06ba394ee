#include "checkpoint/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "checkpoint/field_reader.h"
#include "core/file.h"
#include "core/json.h"

namespace mimo {
namespace {

constexpr std::size_t kMaxConfigBytes = 16u << 20;

// Far above every family member; they keep products of dimensions inside 64 bits and refuse nonsense early.
constexpr int kMaxLayers = 1024;
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxExperts = 1 << 14;
constexpr std::int64_t kMaxExpertsInAll = 1 << 20;  // layers * experts; the largest release has 26,880
constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadDim = 4096;

// Keys of the hub and transformers configs that do not touch the text forward pass.
constexpr std::array<std::string_view, 36> kIgnoredKeys = {"torch_dtype",
                                                           "dtype",
                                                           "transformers_version",
                                                           "initializer_range",
                                                           "auto_map",
                                                           "use_cache",
                                                           "_name_or_path",
                                                           "attention_dropout",
                                                           "attention_chunk_size",
                                                           "return_dict",
                                                           "output_attentions",
                                                           "output_hidden_states",
                                                           "output_router_logits",
                                                           "router_aux_loss_coef",
                                                           "aux_loss_alpha",
                                                           "seq_aux",
                                                           "pretraining_tp",
                                                           "is_decoder",
                                                           "is_encoder_decoder",
                                                           "add_cross_attention",
                                                           "chunk_size_feed_forward",
                                                           "cross_attention_hidden_size",
                                                           "problem_type",
                                                           "id2label",
                                                           "label2id",
                                                           "task_specific_params",
                                                           "tokenizer_class",
                                                           "prefix",
                                                           "unk_token_id",
                                                           "sep_token_id",
                                                           "decoder_start_token_id",
                                                           "processor_class",
                                                           "processor_config",
                                                           "name_or_path",
                                                           "_attn_implementation",
                                                           "keys_to_ignore_at_inference"};
// Encoders and placeholder tokens of the multimodal members.
constexpr std::array<std::string_view, 8> kIgnoredPrefixes = {"vision", "visual", "audio", "video",
                                                              "image",  "speech", "vit_",  "mm_"};

bool is_ignored(std::string_view key) {
  if (std::find(kIgnoredKeys.begin(), kIgnoredKeys.end(), key) != kIgnoredKeys.end()) return true;
  return std::any_of(kIgnoredPrefixes.begin(), kIgnoredPrefixes.end(),
                     [&](std::string_view prefix) { return key.starts_with(prefix); });
}

// eos_token_id as an integer or a list, appended to `ids` without repeats.
void read_stop_ids(FieldReader& in, std::vector<int>& ids) {
  if (!in.has("eos_token_id")) return;
  const auto append = [&ids](std::int64_t id) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(static_cast<int>(id));
  };
  const json::value* value = in.value("eos_token_id");
  const json::array one = value->is_array() ? json::array() : json::array({*value});
  for (const json::value& id : value->is_array() ? value->get_array() : one) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= kMaxVocab) {
      in.refuse("eos_token_id", "a token id or a list of token ids");
      return;
    }
    append(id.get_int64());
  }
}

// Rotary settings of one layer kind as found in the several places that may state them.
struct Rope {
  std::optional<double> theta;
  std::optional<double> factor;
};

class ConfigParser {
 public:
  ConfigParser(const json::object& fields, std::string what) : in_(fields, std::move(what)) {}

  Result<ModelConfig> parse() {
    identity();
    sizes();
    layer_pattern();
    attention();
    rope();
    experts();
    norms_and_tokens();
    quantization();
    if (!in_.failed()) check_dimensions();
    if (in_.failed()) return tl::unexpected<Error>(*in_.error());
    for (const std::string& key : in_.unread()) {
      if (!is_ignored(key)) out_.warnings.push_back(fmt::format("{}: unknown key \"{}\"", in_.where(), key));
    }
    out_.member = member_name();
    return std::move(out_);
  }

 private:
  void identity() {
    const json::array* names = in_.array("architectures");
    if (names == nullptr) {
      in_.missing("architectures");
      return;
    }
    if (names->size() != 1 || !names->front().is_string()) {
      in_.refuse("architectures", "an array of one name");
      return;
    }
    const json::string& name = names->front().get_string();
    out_.architecture.assign(name.data(), name.size());
    const bool flash = out_.architecture == "MiMoV2FlashForCausalLM";
    if (!flash && out_.architecture != "MiMoV2ForCausalLM") {
      in_.refuse("architectures", "[\"MiMoV2ForCausalLM\"] or [\"MiMoV2FlashForCausalLM\"]");
      return;
    }
    if (!in_.has("model_type")) in_.missing("model_type");
    out_.model_type = in_.one_of("model_type", {"mimo_v2", "mimo_v2_flash"}).value_or("");
    if (!in_.failed() && flash != (out_.model_type == "mimo_v2_flash"))
      in_.contradict("model_type", "architectures");
  }

  void sizes() {
    out_.hidden = in_.required_integer("hidden_size", 1, kMaxWidth);
    out_.layers = in_.required_integer("num_hidden_layers", 1, kMaxLayers);
    out_.vocab = in_.required_integer("vocab_size", 1, kMaxVocab);
    if (!in_.has("max_position_embeddings")) in_.missing("max_position_embeddings");
    out_.max_positions =
        in_.integer("max_position_embeddings", 1, std::numeric_limits<std::int32_t>::max()).value_or(1);
    if (const auto heads = in_.integer("num_nextn_predict_layers", 0, 64))
      out_.mtp_heads = static_cast<int>(*heads);
    in_.only_boolean("tie_word_embeddings", false);
    in_.one_of("hidden_act", {"silu"});
  }

  // One entry per layer: true for `on`, false for `off` (an integer or a string each).
  std::optional<std::vector<bool>> pattern(std::string_view key, const json::value& off,
                                           const json::value& on) {
    const json::array* entries = in_.array(key);
    if (entries == nullptr) return std::nullopt;
    if (entries->size() != static_cast<std::size_t>(out_.layers)) {
      in_.problem(ErrorCode::kInvalidArgument, fmt::format("{} has {} entries, num_hidden_layers is {}", key,
                                                           entries->size(), out_.layers));
      return std::nullopt;
    }
    std::vector<bool> result;
    for (std::size_t i = 0; i < entries->size(); ++i) {
      const json::value& entry = (*entries)[i];
      if (entry != on && entry != off) {
        in_.problem(ErrorCode::kInvalidArgument,
                    fmt::format("{}[{}] is {}, expected {} or {}", key, i, json::serialize(entry),
                                json::serialize(off), json::serialize(on)));
        return std::nullopt;
      }
      result.push_back(entry == on);
    }
    return result;
  }

  // The pattern under either of its names; both may be there when they agree.
  std::vector<bool> pattern_of(std::string_view hub_key, std::string_view new_key, const json::value& new_off,
                               const json::value& new_on) {
    const auto hub = pattern(hub_key, 0, 1);
    const auto renamed = pattern(new_key, new_off, new_on);
    if (in_.failed()) return {};
    if (!hub && !renamed) {
      in_.missing(fmt::format("{} (or {})", hub_key, new_key));
      return {};
    }
    if (hub && renamed && *hub != *renamed) in_.contradict(hub_key, new_key);
    return hub ? *hub : *renamed;
  }

  void layer_pattern() {
    // transformers re-saves V2-Flash with layer_types and drops the keys that its model class fixes.
    resaved_ = in_.has("layer_types") && !in_.has("hybrid_layer_pattern");
    for (const bool window :
         pattern_of("hybrid_layer_pattern", "layer_types", "full_attention", "sliding_attention")) {
      out_.layer_kinds.push_back(window ? LayerKind::kWindow : LayerKind::kFull);
    }
    out_.layer_is_moe = pattern_of("moe_layer_freq", "mlp_layer_types", "dense", "sparse");
    any_window_ = std::find(out_.layer_kinds.begin(), out_.layer_kinds.end(), LayerKind::kWindow) !=
                  out_.layer_kinds.end();
    any_moe_ = std::find(out_.layer_is_moe.begin(), out_.layer_is_moe.end(), true) != out_.layer_is_moe.end();
    any_dense_ =
        std::find(out_.layer_is_moe.begin(), out_.layer_is_moe.end(), false) != out_.layer_is_moe.end();
  }

  // `swa_key` may repeat `key`; released members never give the window layers another value.
  int same_for_both(std::string_view key, std::string_view swa_key, int max) {
    const int value = in_.required_integer(key, 1, max);
    const auto swa = in_.integer(swa_key, 1, max);
    if (!in_.failed() && swa && *swa != value) in_.contradict(swa_key, key);
    return value;
  }

  void attention() {
    AttentionShape& full = out_.full;
    full.q_heads = same_for_both("num_attention_heads", "swa_num_attention_heads", kMaxHeads);
    full.qk_dim = same_for_both("head_dim", "swa_head_dim", kMaxHeadDim);
    full.v_dim = same_for_both("v_head_dim", "swa_v_head_dim", kMaxHeadDim);
    full.kv_heads = in_.required_integer("num_key_value_heads", 1, kMaxHeads);
    out_.window = full;
    if (const auto heads = in_.integer("swa_num_key_value_heads", 1, kMaxHeads)) {
      out_.window.kv_heads = static_cast<int>(*heads);
    } else if (resaved_) {
      out_.window.kv_heads = 2 * full.kv_heads;  // fixed in the model class of transformers
    } else if (any_window_) {
      in_.missing("swa_num_key_value_heads");
    }

    const auto window = in_.integer("sliding_window", 1, kMaxWidth);
    const auto window_size = in_.integer("sliding_window_size", 1, kMaxWidth);
    if (window && window_size && *window != *window_size)
      in_.contradict("sliding_window", "sliding_window_size");
    if (any_window_ && !window && !window_size) in_.missing("sliding_window");
    out_.window.window = static_cast<int>(window.value_or(window_size.value_or(0)));

    const auto window_sink = in_.boolean("add_swa_attention_sink_bias");
    const auto full_sink = in_.boolean("add_full_attention_sink_bias");
    if (!resaved_ && any_window_ && !window_sink) in_.missing("add_swa_attention_sink_bias");
    if (!resaved_ && !full_sink) in_.missing("add_full_attention_sink_bias");
    out_.window.sink = window_sink.value_or(true);
    full.sink = full_sink.value_or(false);

    in_.only_boolean("attention_bias", false);
    if (!in_.present("attention_value_scale")) in_.missing("attention_value_scale");
    // An explicit null is how transformers writes "no scale".
    out_.value_scale = static_cast<float>(in_.number("attention_value_scale", 1e-6, 1e6).value_or(1.0));

    out_.fused_qkv = in_.one_of("attention_projection_layout", {"split", "fused_qkv"}) == "fused_qkv";
    out_.qkv_chunks = out_.fused_qkv ? full.kv_heads : 1;
  }

  // rope_scaling, or one entry of rope_parameters: only the default kind, with the theta it may repeat.
  Rope rope_entry(const json::object& fields, const std::string& name) {
    FieldReader entry(fields, name);
    entry.one_of("type", {"default"});
    entry.one_of("rope_type", {"default"});
    entry.only_integer("factor", 1);
    Rope rope{entry.number("rope_theta", 1.0, 1e12), entry.number("partial_rotary_factor", 1e-6, 1.0)};
    if (entry.failed()) in_.problem(entry.error()->code, entry.error()->message);
    for (const std::string& key : entry.unread()) {
      // A key of a scaled kind (mrope_section, original_max_position_embeddings...) next to type "default"
      // has no effect in the reference, but is worth a look.
      out_.warnings.push_back(fmt::format("{}: unknown key \"{}\" in {}", in_.where(), key, name));
    }
    return rope;
  }

  void merge(std::optional<double>& value, const std::optional<double>& other, std::string_view name,
             std::string_view place) {
    if (value && other && *value != *other) {
      in_.problem(ErrorCode::kInvalidArgument,
                  fmt::format("{} {} contradicts {} in {}", name, *value, *other, place));
    }
    if (!value) value = other;
  }

  void rope() {
    const auto factor = in_.number("partial_rotary_factor", 1e-6, 1.0);
    Rope full{in_.number("rope_theta", 1.0, 1e12), factor};
    Rope window{in_.number("swa_rope_theta", 1.0, 1e12), factor};
    if (const json::object* scaling = in_.object("rope_scaling")) {
      const Rope stated = rope_entry(*scaling, "rope_scaling");
      merge(full.theta, stated.theta, "rope_theta", "rope_scaling");
      merge(full.factor, stated.factor, "partial_rotary_factor", "rope_scaling");
      window.factor = full.factor;
    }
    if (const json::object* parameters = in_.object("rope_parameters")) {
      const json::value* by_full = parameters->if_contains("full_attention");
      const json::value* by_window = parameters->if_contains("sliding_attention");
      if (by_full != nullptr || by_window != nullptr) {
        if (parameters->size() != 2 || by_full == nullptr || by_window == nullptr || !by_full->is_object() ||
            !by_window->is_object()) {
          in_.refuse("rope_parameters", "one object each for full_attention and sliding_attention");
          return;
        }
        const Rope f = rope_entry(by_full->get_object(), "rope_parameters.full_attention");
        const Rope w = rope_entry(by_window->get_object(), "rope_parameters.sliding_attention");
        merge(full.theta, f.theta, "rope_theta", "rope_parameters.full_attention");
        merge(full.factor, f.factor, "partial_rotary_factor", "rope_parameters.full_attention");
        merge(window.theta, w.theta, "swa_rope_theta", "rope_parameters.sliding_attention");
        merge(window.factor, w.factor, "partial_rotary_factor", "rope_parameters.sliding_attention");
      } else {
        const Rope stated = rope_entry(*parameters, "rope_parameters");
        merge(full.theta, stated.theta, "rope_theta", "rope_parameters");
        merge(full.factor, stated.factor, "partial_rotary_factor", "rope_parameters");
        merge(window.factor, stated.factor, "partial_rotary_factor", "rope_parameters");
      }
    }
    if (!full.theta) in_.missing("rope_theta");
    if (any_window_ && !window.theta) in_.missing("swa_rope_theta");
    if (!full.factor || (any_window_ && !window.factor)) in_.missing("partial_rotary_factor");
    if (in_.failed()) return;
    out_.full.rope_theta = static_cast<float>(*full.theta);
    out_.window.rope_theta = static_cast<float>(window.theta.value_or(*full.theta));
    // Truncated, not rounded (192 * 0.334 = 64.128 -> 64).
    out_.full.rotary_dims = static_cast<int>(out_.full.qk_dim * *full.factor);
    out_.window.rotary_dims = static_cast<int>(out_.window.qk_dim * window.factor.value_or(*full.factor));
    for (const AttentionShape* shape : {&out_.full, &out_.window}) {
      if (shape->rotary_dims < 2 || shape->rotary_dims % 2 != 0) {
        in_.problem(
            ErrorCode::kInvalidArgument,
            fmt::format("head_dim {} times partial_rotary_factor gives {} rotated dims, expected an even "
                        "number of at least 2",
                        shape->qk_dim, shape->rotary_dims));
      }
    }
  }

  void experts() {
    if (any_dense_ || in_.has("intermediate_size")) {
      out_.intermediate = in_.required_integer("intermediate_size", 1, kMaxWidth);
    }
    in_.only_integer("n_shared_experts", 0);
    in_.one_of("scoring_func", {"sigmoid"});
    in_.one_of("topk_method", {"noaux_tc"});
    in_.only_integer("n_group", 1);
    in_.only_integer("topk_group", 1);
    out_.routed_scaling = static_cast<float>(in_.number("routed_scaling_factor", 1e-6, 1e6).value_or(1.0));
    const auto dtype = in_.one_of("moe_router_dtype", {"bfloat16", "float32"});
    out_.router_format = dtype == "bfloat16" ? WeightFormat::kBF16 : WeightFormat::kF32;
    const auto norm = in_.boolean("norm_topk_prob");
    const auto experts = in_.integer("n_routed_experts", 1, kMaxExperts);
    const auto local = in_.integer("num_local_experts", 1, kMaxExperts);
    if (experts && local && *experts != *local) in_.contradict("n_routed_experts", "num_local_experts");
    in_.ignore("num_experts_per_tok");
    in_.ignore("moe_intermediate_size");
    if (!any_moe_) return;
    if (!experts && !local) in_.missing("n_routed_experts");
    if (!norm) in_.missing("norm_topk_prob");
    out_.norm_topk_prob = norm.value_or(true);
    out_.experts = static_cast<int>(experts.value_or(local.value_or(1)));
    out_.moe_intermediate = in_.required_integer("moe_intermediate_size", 1, kMaxWidth);
    out_.top_k = in_.required_integer("num_experts_per_tok", 1, kMaxExperts);
    if (std::int64_t{out_.experts} * out_.layers > kMaxExpertsInAll) {
      in_.problem(ErrorCode::kLimit, fmt::format("n_routed_experts {} in {} layers are more than {} experts",
                                                 out_.experts, out_.layers, kMaxExpertsInAll));
    }
    if (!in_.failed() && out_.top_k > out_.experts) {
      in_.refuse("num_experts_per_tok", fmt::format("at most n_routed_experts ({})", out_.experts));
    }
  }

  void norms_and_tokens() {
    const auto hub = in_.number("layernorm_epsilon", 1e-12, 1.0);
    const auto renamed = in_.number("rms_norm_eps", 1e-12, 1.0);
    if (hub && renamed && *hub != *renamed) in_.contradict("layernorm_epsilon", "rms_norm_eps");
    if (!hub && !renamed) in_.missing("layernorm_epsilon");
    out_.norm_eps = static_cast<float>(hub.value_or(renamed.value_or(0.0)));
    out_.bos_token_id = static_cast<int>(in_.integer("bos_token_id", 0, kMaxVocab).value_or(-1));
    out_.pad_token_id = static_cast<int>(in_.integer("pad_token_id", 0, kMaxVocab).value_or(-1));
    read_stop_ids(in_, out_.eos_token_ids);
  }

  void quantization() {
    const json::object* fields = in_.object("quantization_config");
    if (fields == nullptr) return;
    FieldReader in(*fields, "quantization_config");
    if (!in.has("quant_method")) in.missing("quant_method");
    in.one_of("quant_method", {"fp8"});
    in.one_of("fmt", {"e4m3"});
    in.one_of("activation_scheme", {"dynamic"});
    const json::array* block = in.array("weight_block_size");
    if (block == nullptr) in.missing("weight_block_size");
    if (block != nullptr && *block != json::array({kFp8Block, kFp8Block}))
      in.refuse("weight_block_size", "[128,128]");
    out_.dense_format = WeightFormat::kFp8;
    out_.expert_format = WeightFormat::kFp8;
    if (in.one_of("store_dtype", {"mxfp4"})) out_.expert_format = WeightFormat::kMxfp4;
    in.only_integer("mxfp4_block_size", kMxfp4Block);
    if (in.has("mxfp4_block_size") && out_.expert_format != WeightFormat::kMxfp4) {
      in.problem(ErrorCode::kInvalidArgument, "mxfp4_block_size without store_dtype \"mxfp4\"");
    }
    for (const char* key : {"ignored_layers", "modules_to_not_convert"}) {
      const json::array* names = in.array(key);
      if (names == nullptr) continue;
      for (const json::value& name : *names) {
        if (!name.is_string()) {
          in.refuse(key, "an array of module names");
          break;
        }
        std::string module(name.get_string().data(), name.get_string().size());
        if (module.find(".mlp.experts") != std::string::npos) {
          in.problem(ErrorCode::kUnsupported,
                     fmt::format("{} names \"{}\"; routed experts share one format here", key, module));
        }
        out_.unquantized.push_back(std::move(module));
      }
    }
    if (in.failed()) in_.problem(in.error()->code, in.error()->message);
    for (const std::string& key : in.unread()) {
      out_.warnings.push_back(fmt::format("{}: unknown key \"{}\" in quantization_config", in_.where(), key));
    }
  }

  void divides(std::string_view whole_name, int whole, std::string_view part_name, int part) {
    if (whole % part == 0) return;
    in_.problem(ErrorCode::kInvalidArgument,
                fmt::format("{} {} is not a multiple of {} {}", whole_name, whole, part_name, part));
  }

  void check_dimensions() {
    const AttentionShape& full = out_.full;
    const AttentionShape& window = out_.window;
    divides("head_dim", full.qk_dim, "the kernel width", 16);
    divides("v_head_dim", full.v_dim, "the kernel width", 16);
    divides("num_attention_heads", full.q_heads, "num_key_value_heads", full.kv_heads);
    divides("num_attention_heads", window.q_heads, "swa_num_key_value_heads", window.kv_heads);
    if (out_.fused_qkv && any_window_) {
      divides("swa_num_key_value_heads", window.kv_heads, "num_key_value_heads (the chunks of the fused QKV)",
              out_.qkv_chunks);
    }
    if (any_moe_ && out_.expert_format == WeightFormat::kMxfp4) {
      divides("hidden_size", out_.hidden, "the MXFP4 block", static_cast<int>(kMxfp4Block));
      divides("moe_intermediate_size", out_.moe_intermediate, "the MXFP4 block",
              static_cast<int>(kMxfp4Block));
    }
  }

  // The release whose sizes these are. The storage tells V2.5 from its FP4 edition, eps and router dtype that
  // from V2.6; nothing else in the program depends on the name.
  std::string member_name() const {
    const bool flash_size = out_.hidden == 4096 && out_.layers == 48 && out_.experts == 256;
    const bool pro_size = out_.hidden == 6144 && out_.layers == 70 && out_.experts == 384;
    const bool mxfp4 = out_.expert_format == WeightFormat::kMxfp4;
    const bool bf16_router = out_.router_format == WeightFormat::kBF16;
    if (flash_size && out_.architecture == "MiMoV2FlashForCausalLM") return "V2-Flash";
    if (out_.architecture != "MiMoV2ForCausalLM") return "custom";
    if (flash_size) return !mxfp4 ? "V2.5" : bf16_router ? "V2.6-Flash" : "V2.5-FP4";
    if (pro_size) return !mxfp4 ? "V2.5-Pro" : bf16_router ? "V2.6-Pro" : "V2.5-Pro-FP4";
    return "custom";
  }

  FieldReader in_;
  ModelConfig out_;
  bool resaved_ = false;
  bool any_window_ = false;
  bool any_moe_ = false;
  bool any_dense_ = false;
};

}  // namespace

Result<ModelConfig> parse_config(std::string_view text, std::string_view what) {
  JsonLimits limits;
  limits.max_bytes = kMaxConfigBytes;
  const Result<json::value> value = parse_json(text, what, limits);
  if (!value) return forward_error(value);
  if (!value->is_object()) return fail(ErrorCode::kInvalidArgument, "{}: expected a JSON object", what);
  return ConfigParser(value->get_object(), std::string(what)).parse();
}

Result<ModelConfig> load_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  const Result<std::string> text = read_file(path, kMaxConfigBytes);
  if (!text) return forward_error(text);
  Result<ModelConfig> config = parse_config(*text, path);
  if (!config) return config;

  const std::string generation_path = directory + "/generation_config.json";
  if (!file_exists(generation_path)) return config;
  JsonLimits limits;
  limits.max_bytes = kMaxConfigBytes;
  const Result<json::value> generation = parse_json_file(generation_path, limits);
  if (!generation) return forward_error(generation);
  if (!generation->is_object()) {
    return fail(ErrorCode::kInvalidArgument, "{}: expected a JSON object", generation_path);
  }
  FieldReader in(generation->get_object(), generation_path);
  read_stop_ids(in, config->eos_token_ids);
  if (in.failed()) return tl::unexpected<Error>(*in.error());
  return config;
}

}  // namespace mimo
