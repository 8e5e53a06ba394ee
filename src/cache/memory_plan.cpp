#include "cache/memory_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "checkpoint/sharding.h"

namespace mimo {
namespace {

constexpr const char* kDraftKvRow = "KV: drafter";
constexpr int kMaxPageTokens = 1024;
constexpr int kMaxRunning = 1 << 16;
constexpr int kMaxChunk = 1 << 20;
constexpr std::uint64_t kMaxMemory = 1ull << 50;  // keeps every sum far inside 64 bits

// Context lengths and page counts are whole pages.
std::int64_t pages_of(std::int64_t tokens, int page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

int rank_kv_heads(const AttentionShape& shape, int size) { return std::max(1, shape.kv_heads / size); }

// Part of a tensor that one rank holds, as bytes. Scale tensors follow their matrix; KV heads are replicated
// above their number.
std::uint64_t rank_bytes(const ExpectedTensor& tensor, const AttentionShape& shape, int size) {
  const std::uint64_t bytes = tensor.bytes();
  const std::string& name = tensor.name;
  const auto ranks = static_cast<std::uint64_t>(size);
  const bool kv_only = name.find("self_attn.k_proj") != std::string::npos ||
                       name.find("self_attn.v_proj") != std::string::npos;
  if (kv_only) {
    return bytes / static_cast<std::uint64_t>(shape.kv_heads) *
           static_cast<std::uint64_t>(rank_kv_heads(shape, size));
  }
  if (name.find("self_attn.qkv_proj") != std::string::npos) {
    const auto rows = [&shape](int q_heads, int kv_heads) {
      return static_cast<std::uint64_t>(q_heads) * static_cast<std::uint64_t>(shape.qk_dim) +
             static_cast<std::uint64_t>(kv_heads) * static_cast<std::uint64_t>(shape.qk_dim + shape.v_dim);
    };
    const double part = static_cast<double>(rows(shape.q_heads / size, rank_kv_heads(shape, size))) /
                        static_cast<double>(rows(shape.q_heads, shape.kv_heads));
    return size == 1 ? bytes : static_cast<std::uint64_t>(std::ceil(static_cast<double>(bytes) * part));
  }
  const bool cut = tensor.rank == 2 && name.find("eh_proj") == std::string::npos &&
                   (name.find("self_attn.") != std::string::npos || name.find("_proj.") != std::string::npos);
  return cut ? bytes / ranks : bytes;
}

class Planner {
 public:
  Planner(const ModelConfig& config, const MemoryPlanInput& input) : config_(config), in_(input) {
    if (in_.context == 0) in_.context = config.max_positions;
    if (in_.evict_tokens == 0) in_.evict_tokens = std::max(in_.page_tokens, 64);
    const auto by_group = rank_weight_bytes(config_, in_.tensor_parallel, in_.mtp_heads);
    for (int g = 0; g < kTensorGroups; ++g) {
      const auto group = static_cast<TensorGroup>(g);
      const std::uint64_t bytes = by_group[static_cast<std::size_t>(g)];
      if (bytes != 0) weights_.push_back({fmt::format("weights: {}", tensor_group_name(group)), bytes, 0});
    }
  }

  // The plan of the input with other values of what a change may touch.
  MemoryPlan evaluate(std::int64_t context, int max_running, KvFormat format) const {
    MemoryPlan plan;
    plan.input = in_;
    plan.input.context = context;
    plan.input.max_running = max_running;
    plan.input.kv_format = format;
    plan.member = config_.member;
    plan.rows = weights_;
    if (in_.draft) plan.rows.push_back({"weights: drafter", in_.draft->weight_bytes, 0});
    add_activations(plan);
    add_draft_kv(plan);
    if (in_.reserve_bytes != 0) plan.rows.push_back({"reserve", in_.reserve_bytes, 0});

    const std::uint64_t full_token = kv_token(LayerKind::kFull, format) + unwindowed_draft();
    const std::uint64_t window_token = kv_token(LayerKind::kWindow, format);
    const auto page = static_cast<std::uint64_t>(in_.page_tokens);
    plan.full_page_bytes = full_token * page;
    const std::uint64_t window_page_bytes = window_token * page;
    const std::int64_t needed_pages = in_.full_requests * pages_of(context, in_.page_tokens) + 1;
    plan.needed_tokens = (needed_pages - 1) * in_.page_tokens;

    if (in_.window_ratio && window_token != 0) {
      split_by_ratio(plan, window_page_bytes, needed_pages);
    } else {
      if (window_token != 0) {
        plan.window_pages = window_pool_pages(max_running);
        plan.rows.push_back({"KV: window layers",
                             static_cast<std::uint64_t>(plan.window_pages) * window_page_bytes,
                             (plan.window_pages - 1) * in_.page_tokens});
      }
      for (const MemoryPlanRow& row : plan.rows) plan.fixed_bytes += row.bytes;
      const std::uint64_t left =
          in_.memory_bytes > plan.fixed_bytes ? in_.memory_bytes - plan.fixed_bytes : 0;
      // A model without full layers has no growing part; its contexts cost nothing here.
      plan.full_pages =
          plan.full_page_bytes == 0 ? needed_pages : static_cast<std::int64_t>(left / plan.full_page_bytes);
      plan.needed_bytes = plan.fixed_bytes + static_cast<std::uint64_t>(needed_pages) * plan.full_page_bytes;
    }
    plan.full_tokens = std::max<std::int64_t>(0, plan.full_pages - 1) * in_.page_tokens;
    plan.window_tokens = std::max<std::int64_t>(0, plan.window_pages - 1) * in_.page_tokens;
    plan.fits = in_.memory_bytes >= plan.needed_bytes;
    return plan;
  }

  MemoryPlan plan() const {
    MemoryPlan plan = evaluate(in_.context, in_.max_running, in_.kv_format);
    if (!plan.fits) plan.changes = changes(plan);
    return plan;
  }

 private:
  std::uint64_t kv_token(LayerKind kind, KvFormat format) const {
    const AttentionShape& shape = kind == LayerKind::kFull ? config_.full : config_.window;
    const auto layers = std::count(config_.layer_kinds.begin(), config_.layer_kinds.end(), kind) +
                        (kind == LayerKind::kWindow ? in_.mtp_heads : 0);  // MTP heads are window layers
    return static_cast<std::uint64_t>(layers) *
           kv_bytes_per_token(shape, rank_kv_heads(shape, in_.tensor_parallel), format, in_.kv_row_scales);
  }

  std::uint64_t unwindowed_draft() const {
    return in_.draft && in_.draft->window == 0 ? in_.draft->kv_bytes_per_token : 0;
  }

  // Live window tokens of one request at the worst moment: the keys before the query, what the eviction
  // interval lets pile up, rows of two steps in flight and the one being planned, and a broken page at either
  // end.
  std::int64_t window_request_tokens() const {
    const std::int64_t block = in_.block_tokens;
    return config_.window.window - 1 + std::int64_t{in_.evict_tokens} + 3 * block +
           2 * std::int64_t{in_.page_tokens};
  }

  std::int64_t window_pool_pages(int max_running) const {
    const std::int64_t chunks = (in_.overlap ? 2 : 1) * std::int64_t{in_.chunk_tokens};
    const std::int64_t tails = in_.window_tails * pages_of(config_.window.window, in_.page_tokens);
    const std::int64_t live = max_running * window_request_tokens() + chunks;
    return pages_of(live, in_.page_tokens) + tails + 1;
  }

  // What one step needs beside the weights: for each row the residual stream, the normed input and the branch
  // output (bf16), one fp32 accumulator of the expert sum, Q, K, V and the attention output, and the widest
  // MLP stage; logits are fp32 and only for sampled rows.
  void add_activations(MemoryPlan& plan) const {
    const auto size = static_cast<std::uint64_t>(in_.tensor_parallel);
    const auto hidden = static_cast<std::uint64_t>(config_.hidden);
    std::uint64_t attention = 0;
    for (const AttentionShape* shape : {&config_.full, &config_.window}) {
      const auto q = static_cast<std::uint64_t>(shape->q_heads) / size;
      const auto kv = static_cast<std::uint64_t>(rank_kv_heads(*shape, in_.tensor_parallel));
      const auto qk_dim = static_cast<std::uint64_t>(shape->qk_dim);
      const auto v_dim = static_cast<std::uint64_t>(shape->v_dim);
      attention = std::max(attention, 2 * (q * qk_dim + kv * (qk_dim + v_dim) + q * v_dim));
    }
    const std::uint64_t dense = 3 * 2 * static_cast<std::uint64_t>(config_.intermediate) / size;
    const std::uint64_t experts =
        static_cast<std::uint64_t>(config_.top_k) *
            (3 * 2 * static_cast<std::uint64_t>(config_.moe_intermediate) / size + 2 * hidden) +
        4 * static_cast<std::uint64_t>(config_.experts);
    const std::uint64_t row = 3 * 2 * hidden + 4 * hidden + attention + std::max(dense, experts);
    const std::int64_t decode_rows = std::int64_t{plan.input.max_running} * in_.block_tokens;
    const std::int64_t rows = in_.chunk_tokens + decode_rows;
    plan.rows.push_back({"activations", static_cast<std::uint64_t>(rows) * row, rows});
    plan.rows.push_back(
        {"logits", static_cast<std::uint64_t>(decode_rows) * 4 * static_cast<std::uint64_t>(config_.vocab),
         decode_rows});
  }

  void add_draft_kv(MemoryPlan& plan) const {
    if (!in_.draft || in_.draft->window == 0) return;
    // A ring of whole pages a request: the window and the block, which may begin anywhere in a page; no more
    // than the longest request fills.
    const std::int64_t pages = std::min(pages_of(in_.draft->window + in_.block_tokens, in_.page_tokens) + 1,
                                        pages_of(plan.input.context + in_.block_tokens, in_.page_tokens));
    const std::int64_t tokens = plan.input.max_running * pages * in_.page_tokens;
    plan.rows.push_back(
        {kDraftKvRow, static_cast<std::uint64_t>(tokens) * in_.draft->kv_bytes_per_token, tokens});
  }

  // Both pools from one ratio. The window pool must hold at least one request at work.
  void split_by_ratio(MemoryPlan& plan, std::uint64_t window_page_bytes, std::int64_t needed_pages) const {
    for (const MemoryPlanRow& row : plan.rows) plan.fixed_bytes += row.bytes;
    const double ratio = *in_.window_ratio;
    const std::int64_t least_window =
        pages_of(window_request_tokens() + in_.chunk_tokens, in_.page_tokens) + 1;
    const auto window_for = [&](std::int64_t full) {
      return static_cast<std::int64_t>(std::floor(ratio * static_cast<double>(full)));
    };
    const double pair =
        static_cast<double>(plan.full_page_bytes) + ratio * static_cast<double>(window_page_bytes);
    const std::uint64_t left = in_.memory_bytes > plan.fixed_bytes ? in_.memory_bytes - plan.fixed_bytes : 0;
    plan.full_pages = static_cast<std::int64_t>(static_cast<double>(left) / pair);
    plan.window_pages = window_for(plan.full_pages);
    const std::int64_t full_needed = std::max(
        needed_pages, static_cast<std::int64_t>(std::ceil(static_cast<double>(least_window) / ratio)));
    plan.needed_bytes =
        plan.fixed_bytes + static_cast<std::uint64_t>(std::ceil(static_cast<double>(full_needed) * pair));
    const std::uint64_t window_bytes = static_cast<std::uint64_t>(plan.window_pages) * window_page_bytes;
    plan.rows.push_back({"KV: window layers", window_bytes,
                         std::max<std::int64_t>(0, plan.window_pages - 1) * in_.page_tokens});
    plan.fixed_bytes += window_bytes;
  }

  // The largest value in [1, high] for which `fits` holds, or 0. Needs fits to be monotone: less never needs
  // more.
  template <class Fits>
  static std::int64_t largest(std::int64_t high, Fits fits) {
    std::int64_t low = 0;
    while (low < high) {
      const std::int64_t middle = low + (high - low + 1) / 2;
      if (fits(middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  std::vector<MemoryPlanChange> changes(const MemoryPlan& plan) const {
    std::vector<MemoryPlanChange> found;
    const std::int64_t asked_pages = pages_of(in_.context, in_.page_tokens);
    const std::int64_t pages = largest(asked_pages - 1, [&](std::int64_t n) {
      return evaluate(n * in_.page_tokens, in_.max_running, in_.kv_format).fits;
    });
    if (pages > 0) {
      const std::int64_t context = pages * in_.page_tokens;
      found.push_back({fmt::format("--context {} (now {})", context, in_.context), "context", context,
                       1.0 - static_cast<double>(context) / static_cast<double>(in_.context)});
    }
    const std::int64_t running = largest(in_.max_running - 1, [&](std::int64_t n) {
      return evaluate(in_.context, static_cast<int>(n), in_.kv_format).fits;
    });
    if (running > 0) {
      found.push_back({fmt::format("--max-running {} (now {})", running, in_.max_running), "max_running",
                       running, 1.0 - static_cast<double>(running) / in_.max_running});
    }
    if (in_.kv_format == KvFormat::kBF16 && evaluate(in_.context, in_.max_running, KvFormat::kFp8).fits) {
      found.push_back({"--kv-dtype fp8 (now bf16)", "kv_format", 8, 0.5});  // half the bits
    }
    found.push_back(
        {fmt::format("--memory {} ({} more)", plan.needed_bytes, plan.needed_bytes - in_.memory_bytes),
         "memory", static_cast<std::int64_t>(plan.needed_bytes),
         static_cast<double>(plan.needed_bytes - in_.memory_bytes) /
             static_cast<double>(std::max<std::uint64_t>(1, in_.memory_bytes))});
    std::stable_sort(found.begin(), found.end(),
                     [](const MemoryPlanChange& a, const MemoryPlanChange& b) { return a.size < b.size; });
    return found;
  }

  const ModelConfig& config_;
  MemoryPlanInput in_;
  std::vector<MemoryPlanRow> weights_;
};

Status check_range(const char* field, std::int64_t value, std::int64_t min, std::int64_t max) {
  if (value >= min && value <= max) return {};
  return fail(ErrorCode::kInvalidArgument, "memory plan: {} is {}, expected {} to {}", field, value, min,
              max);
}

Status check_input(const ModelConfig& config, const MemoryPlanInput& input) {
  struct Field {
    const char* name;
    std::int64_t value, min, max;
  };
  const Field fields[] = {
      {"page size", input.page_tokens, 1, kMaxPageTokens},
      {"max running", input.max_running, 1, kMaxRunning},
      {"context", input.context, 0, config.max_positions},
      {"requests at full context", input.full_requests, 1, kMaxRunning},
      {"chunk", input.chunk_tokens, 1, kMaxChunk},
      {"eviction interval", input.evict_tokens, 0, kMaxChunk},
      {"block", input.block_tokens, 1, 64},
      {"window snapshots", input.window_tails, 0, kMaxRunning},
      {"MTP heads", input.mtp_heads, 0, 64},
  };
  for (const Field& field : fields) {
    if (const Status status = check_range(field.name, field.value, field.min, field.max); !status)
      return status;
  }
  if (!std::has_single_bit(static_cast<unsigned>(input.page_tokens))) {
    return fail(ErrorCode::kInvalidArgument, "memory plan: page size is {}, expected a power of two",
                input.page_tokens);
  }
  if (input.memory_bytes > kMaxMemory || input.reserve_bytes > kMaxMemory) {
    return fail(ErrorCode::kInvalidArgument, "memory plan: memory is {} bytes, expected at most {}",
                std::max(input.memory_bytes, input.reserve_bytes), kMaxMemory);
  }
  if (input.window_ratio && !(*input.window_ratio > 0 && *input.window_ratio <= 1)) {
    return fail(ErrorCode::kInvalidArgument,
                "memory plan: window ratio is {}, expected more than 0 and at most 1", *input.window_ratio);
  }
  if (input.draft &&
      (input.draft->window < 0 || input.draft->window > kMaxChunk || input.draft->weight_bytes > kMaxMemory ||
       input.draft->kv_bytes_per_token > (1u << 30))) {
    return fail(ErrorCode::kInvalidArgument,
                "memory plan: the drafter's window, weights or KV bytes are out of range");
  }
  return check_shard(config, {0, input.tensor_parallel});
}

// GiB, or MiB where small parts would round to nothing.
struct Unit {
  const char* name;
  double bytes;
  std::string operator()(std::uint64_t value) const {
    return fmt::format("{:.3f}", static_cast<double>(value) / bytes);
  }
};

Unit unit_of(const MemoryPlan& plan) {
  constexpr std::uint64_t kSmall = 4ull << 30;
  return std::max(plan.needed_bytes, plan.input.memory_bytes) < kSmall ? Unit{"MiB", 1ull << 20}
                                                                       : Unit{"GiB", 1ull << 30};
}

void add_row(std::string& text, const Unit& unit, std::string_view name, std::uint64_t bytes,
             std::int64_t tokens) {
  text += fmt::format("  {:<32} {:>12} {}", name, unit(bytes), unit.name);
  if (tokens != 0) text += fmt::format(" {:>12} tokens", tokens);
  text += '\n';
}

}  // namespace

std::int64_t MemoryPlan::requests_at_context() const {
  const std::int64_t each = pages_of(input.context, input.page_tokens);
  return each == 0 ? 0 : std::max<std::int64_t>(0, full_pages - 1) / each;
}

std::array<std::uint64_t, kTensorGroups> rank_weight_bytes(const ModelConfig& config, int tensor_parallel,
                                                           int mtp_heads) {
  const QkvLayout layout{config.fused_qkv, config.qkv_chunks};
  std::array<std::uint64_t, kTensorGroups> total{};
  const auto add = [&](const std::vector<ExpectedTensor>& tensors, const AttentionShape& shape) {
    for (const ExpectedTensor& tensor : tensors) {
      total[static_cast<std::size_t>(tensor.group)] += rank_bytes(tensor, shape, tensor_parallel);
    }
  };
  add(global_tensors(config), config.full);
  for (int i = 0; i < config.layers; ++i) add(layer_tensors(config, layout, i), config.attention(i));
  for (int k = 0; k < mtp_heads; ++k) add(mtp_tensors(config, layout, k), config.window);
  return total;
}

DraftPlan draft_plan(const DFlashConfig& config, KvFormat format, bool row_scales) {
  AttentionShape shape;
  shape.qk_dim = config.head_dim;
  shape.v_dim = config.head_dim;
  DraftPlan plan;
  plan.weight_bytes = 2 * (config.parameters() + config.context_parameters());  // bf16
  plan.kv_bytes_per_token = static_cast<std::uint64_t>(config.layers) *
                            kv_bytes_per_token(shape, config.kv_heads, format, row_scales);
  plan.window = config.widest_window();
  return plan;
}

Result<MemoryPlan> plan_memory(const ModelConfig& config, const MemoryPlanInput& input) {
  if (const Status status = check_input(config, input); !status) return forward_error(status);
  return Planner(config, input).plan();
}

std::string to_text(const MemoryPlan& plan) {
  const MemoryPlanInput& in = plan.input;
  std::string text = fmt::format(
      "memory plan of one rank: MiMo-{}, tensor parallel {}, {} KV, pages of {}, {} running, context {}, "
      "chunk {}\n",
      plan.member, in.tensor_parallel, kv_format_name(in.kv_format), in.page_tokens, in.max_running,
      in.context, in.chunk_tokens);
  const Unit unit = unit_of(plan);
  for (const MemoryPlanRow& row : plan.rows) {
    const bool rings = in.draft && row.name == kDraftKvRow;
    add_row(text, unit,
            rings ? fmt::format("{} ({} x {} {})", row.name, in.max_running,
                                unit(row.bytes / static_cast<std::uint64_t>(in.max_running)), unit.name)
                  : row.name,
            row.bytes, row.tokens);
  }
  if (in.draft && in.draft->window == 0) {
    text += fmt::format("  (the drafter's KV, {} bytes a token, grows with that of the full layers)\n",
                        in.draft->kv_bytes_per_token);
  }
  add_row(text, unit, "KV: full layers (what is left)",
          static_cast<std::uint64_t>(plan.full_pages) * plan.full_page_bytes, plan.full_tokens);
  add_row(text, unit, "memory", in.memory_bytes, 0);
  add_row(text, unit, "needed at least", plan.needed_bytes, plan.needed_tokens);
  if (plan.fits) {
    text += fmt::format("fits: {} request{} at {} tokens\n", plan.requests_at_context(),
                        plan.requests_at_context() == 1 ? "" : "s", in.context);
    return text;
  }
  text += fmt::format("does not fit: {} {} short\n", unit(plan.needed_bytes - in.memory_bytes), unit.name);
  for (std::size_t i = 0; i < plan.changes.size(); ++i) {
    text += fmt::format("  {} {}\n", i == 0 ? "smallest change:" : "or:", plan.changes[i].text);
  }
  return text;
}

json::value to_json(const MemoryPlan& plan) {
  const MemoryPlanInput& in = plan.input;
  json::array rows;
  for (const MemoryPlanRow& row : plan.rows) {
    rows.push_back(json::object{{"name", row.name}, {"bytes", row.bytes}, {"tokens", row.tokens}});
  }
  json::array changes;
  for (const MemoryPlanChange& change : plan.changes) {
    changes.push_back(json::object{{"text", change.text},
                                   {"field", change.field},
                                   {"value", change.value},
                                   {"relative_size", change.size}});
  }
  return json::object{
      {"member", plan.member},
      {"memory_bytes", in.memory_bytes},
      {"tensor_parallel", in.tensor_parallel},
      {"kv_dtype", kv_format_name(in.kv_format)},
      {"page_tokens", in.page_tokens},
      {"max_running", in.max_running},
      {"context", in.context},
      {"chunk_tokens", in.chunk_tokens},
      {"rows", rows},
      {"fixed_bytes", plan.fixed_bytes},
      {"full_page_bytes", plan.full_page_bytes},
      {"full_pages", plan.full_pages},
      {"full_tokens", plan.full_tokens},
      {"window_pages", plan.window_pages},
      {"window_tokens", plan.window_tokens},
      {"needed_tokens", plan.needed_tokens},
      {"needed_bytes", plan.needed_bytes},
      {"requests_at_context", plan.requests_at_context()},
      {"fits", plan.fits},
      {"changes", changes},
  };
}

}  // namespace mimo
