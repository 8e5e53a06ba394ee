#include "model/dflash.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "checkpoint/mask_embedding.h"
#include "core/check.h"

namespace mimo {
namespace {

// Rows that are projected at a time: bounds the buffers of long prompts.
constexpr int kContextRows = 256;

Status check_options(const DFlashDrafter::Options& options, const TargetModel& target) {
  const int vocab = target.config().vocab;
  if (options.max_requests >= 1 && options.page_size >= 1 && options.vocab <= vocab) return {};
  return fail(
      ErrorCode::kInvalidArgument,
      "DFlash drafter: max_requests {}, page_size {} and vocab {}: expected at least 1, at least 1 and "
      "at most {}",
      options.max_requests, options.page_size, options.vocab, vocab);
}

}  // namespace

// Pages of one request.
class DFlashDrafter::Ring final : public DraftState {
 public:
  // `limit`: no position at or after it is ever given a slot.
  Ring(DFlashDrafter& owner, std::vector<std::int32_t> pages, std::int64_t limit)
      : owner_(owner), pages_(std::move(pages)), limit_(limit) {}
  ~Ring() override { owner_.free_pages_.insert(owner_.free_pages_.end(), pages_.begin(), pages_.end()); }

  // Gives the positions [begin, end) their slots; pages a ring's length before them are gone.
  void reach(std::int64_t begin, std::int64_t end) {
    MIMO_CHECK(end <= limit_, "position {} of a drafter state made for {}", end, limit_);
    const auto size = static_cast<std::size_t>(owner_.options_.page_size);
    for (auto page = static_cast<std::size_t>(begin) / size; page * size < static_cast<std::size_t>(end);
         ++page) {
      if (table_.size() <= page) table_.resize(page + 1, -1);
      table_[page] = pages_[page % pages_.size()];
      if (page >= pages_.size()) table_[page - pages_.size()] = -1;
    }
  }

  SequenceRows rows(int row_begin, int count, std::int64_t position) const {
    return {row_begin, count, position, table_, first_ < 0 ? position : first_};
  }

  // Takes note of committed rows [position, position + rows), the first `skipped` of which are not stored.
  void advance(std::int64_t position, int rows, int skipped) {
    MIMO_CHECK(first_ < 0 || position >= end_, "observed position {} after {}", position, end_);
    if (first_ < 0 || position > end_ || skipped > 0) first_ = position + skipped;
    end_ = position + rows;
  }
  // The newest positions before `position` that can be kept: observed, in the window, and still in the ring.
  // Nothing: begin == end.
  std::pair<std::int64_t, std::int64_t> kept(std::int64_t position, std::int64_t window) const {
    if (first_ < 0 || position > end_ || position <= first_) return {position, position};
    const std::int64_t size = owner_.options_.page_size;
    const std::int64_t oldest = std::max(first_, position - window);
    std::int64_t begin = position;
    for (std::int64_t page = (position - 1) / size; page >= oldest / size; --page) {
      if (table_[static_cast<std::size_t>(page)] < 0) break;
      begin = std::max(oldest, page * size);
    }
    return {begin, position};
  }
  // A new ring begins with [begin, end), whose pages are then written.
  void begin_with(std::int64_t begin, std::int64_t end) {
    reach(begin, end);
    first_ = begin;
    end_ = end;
  }
  std::int32_t page_at(std::int64_t position) const {
    return table_[static_cast<std::size_t>(position / owner_.options_.page_size)];
  }

  bool observed_to(std::int64_t position) const { return first_ < 0 || end_ == position; }

 private:
  DFlashDrafter& owner_;
  std::vector<std::int32_t> pages_;
  std::int64_t limit_;
  std::vector<std::int32_t> table_;  // by position / page size; -1: no longer or not yet there
  std::int64_t first_ = -1;          // oldest position from which on all were stored; -1: none yet
  std::int64_t end_ = 0;             // one past the newest observed position
};

// Whole pages, those of all layers one after another.
class DFlashDrafter::Tail final : public DraftTail {
 public:
  Tail(std::int64_t begin, std::int64_t end, std::size_t bytes) : begin_(begin), end_(end), pages_(bytes) {}
  std::size_t bytes() const override { return pages_.size(); }
  std::int64_t begin() const { return begin_; }
  std::int64_t end() const { return end_; }
  std::vector<std::byte>& pages() { return pages_; }
  const std::vector<std::byte>& pages() const { return pages_; }

 private:
  std::int64_t begin_;
  std::int64_t end_;
  std::vector<std::byte> pages_;
};

DFlashDrafter::DFlashDrafter(const TargetModel& target, Ops& ops, DFlashConfig config, const Options& options)
    : target_(target), ops_(ops), config_(std::move(config)), options_(options) {
  const int layers = target.config().layers;
  for (const int layer : config_.target_layer_ids) {
    const bool post_norm = layer + 1 == layers && options.final_tap == FinalTap::kPostNorm;
    taps_.push_back(post_norm ? layers + 1 : layer + 1);
  }
  if (options_.max_tokens <= 0) options_.max_tokens = target.config().max_positions;
  if (options_.vocab <= 0) options_.vocab = target.config().vocab;
  batch_ = ops.make_sequences({config_.rope_theta, config_.rotary_dims});
}

DFlashDrafter::~DFlashDrafter() = default;

Result<std::unique_ptr<DFlashDrafter>> DFlashDrafter::load(const std::string& directory,
                                                           const TargetModel& target, Ops& ops,
                                                           const Options& options) {
  Result<DFlashConfig> config = load_dflash_config(directory, target.config());
  if (!config) return forward_error(config);
  if (const Status ok = check_options(options, target); !ok) return forward_error(ok);
  const Result<std::vector<float>> mask =
      load_mask_embedding(directory, config->mask_token_id, config->hidden);
  if (!mask) return forward_error(mask);
  Result<DFlashWeights> weights = DFlashWeights::open(directory, *config);
  if (!weights) return forward_error(weights);
  return make(std::move(*config), *mask, *weights, target, ops, options);
}

Result<std::unique_ptr<DFlashDrafter>> DFlashDrafter::load_random(DFlashConfig config, std::uint64_t seed,
                                                                  const TargetModel& target, Ops& ops,
                                                                  const Options& options) {
  if (const Status ok = check_options(options, target); !ok) return forward_error(ok);
  Result<DFlashWeights> weights = DFlashWeights::random(config, seed);
  if (!weights) return forward_error(weights);
  const std::vector<float> mask = random_mask_embedding(config.hidden, seed);
  return make(std::move(config), mask, *weights, target, ops, options);
}

Result<std::unique_ptr<DFlashDrafter>> DFlashDrafter::make(DFlashConfig config, std::span<const float> mask,
                                                           DFlashWeights& weights, const TargetModel& target,
                                                           Ops& ops, const Options& options) {
  std::unique_ptr<DFlashDrafter> drafter(new DFlashDrafter(target, ops, std::move(config), options));
  Result<Vector> packed_mask = ops.pack_vector(mask);
  if (!packed_mask) return forward_error(packed_mask);
  drafter->mask_ = std::move(*packed_mask);
  if (const Status ok = drafter->pack(weights); !ok) return forward_error(ok);
  if (const Status ok = drafter->make_pages(); !ok) return forward_error(ok);
  return drafter;
}

Status DFlashDrafter::pack(DFlashWeights& weights) {
  Status status;
  const auto matrix = [&](const WeightView& view) -> std::unique_ptr<Matrix> {
    if (!status) return nullptr;
    Result<std::unique_ptr<Matrix>> packed = ops_.pack_matrix(view, MatrixUse::kDrafter);
    if (packed) return std::move(*packed);
    status = forward_error(packed);
    return nullptr;
  };
  const auto vector = [&](std::span<const float> values, Vector& to) {
    if (!status) return;
    Result<Vector> packed = ops_.pack_vector(values);
    if (packed) {
      to = std::move(*packed);
    } else {
      status = forward_error(packed);
    }
  };
  fc_ = matrix(weights.fc);
  vector(weights.hidden_norm, hidden_norm_);
  vector(weights.norm, final_norm_);
  for (DFlashLayerWeights& from : weights.layers) {
    Layer layer;
    vector(from.input_norm, layer.input_norm);
    vector(from.post_norm, layer.post_norm);
    vector(from.q_norm, layer.q_norm);
    vector(from.k_norm, layer.k_norm);
    vector(from.sinks, layer.sinks);
    layer.qkv = matrix(from.qkv);
    layer.o_proj = matrix(from.o_proj);
    if (!status) return status;
    const MlpViews views{&from.gate, &from.up, &from.down};
    Result<std::unique_ptr<MlpBank>> mlp = ops_.pack_mlps({&views, 1}, MatrixUse::kDrafter);
    if (!mlp) return forward_error(mlp);
    layer.mlp = std::move(*mlp);
    layers_.push_back(std::move(layer));
  }
  // After the layers: what is wrong with its rows is then said of one layer.
  context_kv_ = matrix(weights.context_kv);
  return status;
}

Status DFlashDrafter::make_pages() {
  const std::int64_t size = options_.page_size;
  ring_pages_ = (options_.max_tokens + config_.block + size - 1) / size;
  if (const int window = config_.widest_window(); window > 0) {
    // The widest span in use: W positions before the anchor and the block, which may begin anywhere in a page.
    ring_pages_ = std::min(ring_pages_, (window + config_.block + size - 1) / size + 1);
  }
  KvSpec spec;
  spec.kv_heads = config_.kv_heads;
  spec.qk_dim = config_.head_dim;
  spec.v_dim = config_.head_dim;
  spec.page_size = options_.page_size;
  spec.pages = ring_pages_ * options_.max_requests;
  spec.dtype = options_.kv;
  for (Layer& layer : layers_) {
    Result<std::unique_ptr<KvStore>> kv = ops_.make_kv(spec);
    if (!kv) return tl::unexpected<Error>(kv.error().within("drafter KV cache"));
    layer.kv = std::move(*kv);
  }
  for (std::int64_t page = spec.pages; page-- > 0;) free_pages_.push_back(static_cast<std::int32_t>(page));
  return {};
}

std::size_t DFlashDrafter::weight_bytes() const {
  std::size_t total = fc_->bytes() + context_kv_->bytes();
  for (const Layer& layer : layers_) {
    total += layer.qkv->bytes() + layer.o_proj->bytes() + layer.mlp->bytes();
  }
  return total;
}

std::size_t DFlashDrafter::state_bytes() const {
  std::size_t total = 0;
  for (const Layer& layer : layers_) total += layer.kv->bytes();
  return total / static_cast<std::size_t>(options_.max_requests);
}

std::int64_t DFlashDrafter::first_needed(std::int64_t prompt_tokens) const {
  const int window = config_.widest_window();
  return window == 0 ? 0 : std::max<std::int64_t>(0, prompt_tokens - window - config_.block);
}

Result<std::unique_ptr<DraftState>> DFlashDrafter::open(std::int64_t max_tokens) {
  if (max_tokens < 1 || max_tokens > options_.max_tokens) {
    return fail(ErrorCode::kInvalidArgument, "drafter state for {} tokens: expected 1 to {}", max_tokens,
                options_.max_tokens);
  }
  const std::int64_t size = options_.page_size;
  const auto count =
      static_cast<std::size_t>(std::min(ring_pages_, (max_tokens + config_.block + size - 1) / size));
  if (count > free_pages_.size()) {
    return fail(ErrorCode::kLimit, "drafter KV cache: {} pages are free, a request of {} tokens needs {}",
                free_pages_.size(), max_tokens, count);
  }
  std::vector<std::int32_t> pages(free_pages_.end() - static_cast<std::ptrdiff_t>(count), free_pages_.end());
  free_pages_.resize(free_pages_.size() - count);
  if (options_.poison) {
    for (const std::int32_t page : pages) {
      for (Layer& layer : layers_) layer.kv->poison_page(page);
    }
  }
  return std::make_unique<Ring>(*this, std::move(pages), max_tokens + config_.block);
}

std::size_t DFlashDrafter::tail_bytes() const {
  const int window = config_.widest_window();
  if (window == 0) return 0;
  const std::int64_t pages = window / options_.page_size + 2;
  std::size_t page_bytes = 0;
  for (const Layer& layer : layers_) page_bytes += layer.kv->page_bytes();
  return static_cast<std::size_t>(pages) * page_bytes;
}

std::shared_ptr<const DraftTail> DFlashDrafter::save(const DraftState& state, std::int64_t position) const {
  const int window = config_.widest_window();
  if (window == 0) return nullptr;  // a tail would be the whole context
  const auto& ring = dynamic_cast<const Ring&>(state);
  const auto [begin, end] = ring.kept(position, window);
  if (begin == end) return nullptr;
  const std::int64_t size = options_.page_size;
  const auto count = static_cast<std::size_t>((end - 1) / size - begin / size + 1);
  std::size_t page_bytes = 0;
  for (const Layer& layer : layers_) page_bytes += layer.kv->page_bytes();
  auto tail = std::make_shared<Tail>(begin, end, count * page_bytes);
  std::span<std::byte> out = tail->pages();
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t page = ring.page_at(begin + static_cast<std::int64_t>(i) * size);
    for (const Layer& layer : layers_) {
      layer.kv->read_page(page, out.first(layer.kv->page_bytes()));
      out = out.subspan(layer.kv->page_bytes());
    }
  }
  return tail;
}

void DFlashDrafter::restore(DraftState& state, const DraftTail& tail) {
  auto& ring = dynamic_cast<Ring&>(state);
  const auto& from = dynamic_cast<const Tail&>(tail);
  ring.begin_with(from.begin(), from.end());
  const std::int64_t size = options_.page_size;
  std::span<const std::byte> in = from.pages();
  for (std::int64_t at = from.begin() / size * size; at < from.end(); at += size) {
    for (Layer& layer : layers_) {
      layer.kv->write_page(ring.page_at(at), in.first(layer.kv->page_bytes()));
      in = in.subspan(layer.kv->page_bytes());
    }
  }
}

AttentionSpec DFlashDrafter::attention_spec(int layer) const {
  const DFlashConfig::Layer& how = config_.attention[static_cast<std::size_t>(layer)];
  AttentionSpec spec;
  spec.q_heads = config_.q_heads;
  spec.kv_heads = config_.kv_heads;
  spec.qk_dim = config_.head_dim;
  spec.v_dim = config_.head_dim;
  spec.window = how.window;
  spec.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  const Vector& sinks = layers_[static_cast<std::size_t>(layer)].sinks;
  if (!sinks.empty()) spec.sinks = &sinks;
  spec.mask = how.causal ? MaskKind::kCausal : MaskKind::kBidirectional;
  spec.window_start = options_.window_start;
  return spec;
}

void DFlashDrafter::observe(std::span<const DraftObservation> observations, std::span<const float> taps) {
  const int window = config_.widest_window();
  parts_.clear();
  int rows = 0;
  const auto flush = [&] {
    if (rows > 0) store_context(parts_, taps);
    parts_.clear();
    rows = 0;
  };
  for (const DraftObservation& seen : observations) {
    auto& ring = dynamic_cast<Ring&>(*seen.state);
    // Of a long chunk only the end is ever read again, and the ring holds no more.
    const int kept = window == 0 ? seen.rows : std::min(seen.rows, window + config_.block);
    ring.advance(seen.position, seen.rows, seen.rows - kept);
    for (int done = seen.rows - kept; done < seen.rows;) {
      const int count = std::min(seen.rows - done, kContextRows - rows);
      parts_.push_back({&ring, seen.row_begin + done, count, seen.position + done});
      rows += count;
      done += count;
      if (rows == kContextRows) flush();
    }
  }
  flush();
}

// Keys and values of every layer for some observed rows: fc, norm, one projection for all layers, then per
// layer the norm of the key heads, rotation and value scale. The layers' input norms have no part in it.
void DFlashDrafter::store_context(std::span<const ContextRows> parts, std::span<const float> taps) {
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  const std::size_t tap_width = taps_.size() * hidden;
  sequences_.clear();
  int rows = 0;
  for (const ContextRows& part : parts) part.ring->reach(part.position, part.position + part.rows);
  for (const ContextRows& part : parts) {
    sequences_.push_back(part.ring->rows(rows, part.rows, part.position));
    rows += part.rows;
  }
  index_.clear();
  for (const ContextRows& part : parts) {
    for (int r = 0; r < part.rows; ++r) index_.push_back(part.tap_row + r);
  }
  const auto count = static_cast<std::size_t>(rows);
  tap_index_.upload(ops_, index_);
  gathered_.reserve(ops_, count * tap_width);
  normed_.reserve(ops_, count * hidden);
  batch_->set(sequences_);
  key_ = {rows, reinterpret_cast<std::intptr_t>(this), reinterpret_cast<std::intptr_t>(taps.data())};
  batch_->add_key(key_);
  ops_.run(key_, [&] { store_rows(taps.data(), tap_width, rows); });
}

void DFlashDrafter::store_rows(const float* taps, std::size_t tap_width, int rows) {
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  const auto count = static_cast<std::size_t>(rows);
  const auto heads = static_cast<std::size_t>(config_.kv_heads * config_.head_dim);
  const std::size_t width = layers_.size() * 2 * heads;
  ops_.gather_rows(gathered_.data(), taps, tap_width * sizeof(float), tap_index_.data(), rows);
  Act* input = tap_input_.reserve(ops_, count * tap_width);
  ops_.to_act(gathered_.data(), count * tap_width, input);
  float* context = context_.reserve(ops_, count * hidden);
  Act* keys = keys_.reserve(ops_, count * width);
  ops_.linear(input, rows, *fc_, context, Store::kOverwrite);
  ops_.rms_norm(context, rows, hidden_norm_, config_.norm_eps, normed_.data(), hidden);
  ops_.linear(normed_.data(), rows, *context_kv_, keys);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    AttentionSpec spec = attention_spec(static_cast<int>(i));
    spec.q_heads = 0;
    Act* k = act_at(ops_, keys, i * 2 * heads);
    ops_.rms_norm_heads(k, width, rows, config_.kv_heads, layers_[i].k_norm, config_.norm_eps);
    ops_.rope_and_store_kv(k, width, *batch_, spec, config_.value_scale, *layers_[i].kv);
  }
}

const Act* DFlashDrafter::run_blocks(std::span<const DraftRequest> requests) {
  lay_out(requests);
  run_rows(static_cast<int>(requests.size()));
  return normed_.data();
}

// What differs from one call to the next, into memory that the recorded operations read.
void DFlashDrafter::lay_out(std::span<const DraftRequest> requests) {
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  const auto block = static_cast<std::size_t>(config_.block);
  const std::size_t rows = requests.size() * block;
  sequences_.clear();
  anchors_.clear();
  index_.clear();
  wanted_rows_.clear();
  for (const DraftRequest& request : requests) {
    auto& ring = dynamic_cast<Ring&>(*request.state);
    MIMO_CHECK(ring.observed_to(request.position), "draft at {}: not all before it was observed",
               request.position);
    MIMO_CHECK(!request.drafts.empty() && request.drafts.size() < block, "{} drafts of a block of {}",
               request.drafts.size(), block);
    ring.reach(request.position, request.position + config_.block);
    const std::size_t begin = anchors_.size() * block;
    sequences_.push_back(ring.rows(static_cast<int>(begin), config_.block, request.position));
    anchors_.push_back(request.anchor);
    index_.push_back(static_cast<std::int32_t>(anchors_.size()));
    index_.resize(anchors_.size() * block, 0);
    // Only rows that are asked for are normed.
    for (std::size_t r = 1; r <= request.drafts.size(); ++r) {
      wanted_rows_.push_back(static_cast<std::int32_t>(begin + r));
    }
  }
  anchor_ids_.upload(ops_, anchors_);
  block_index_.upload(ops_, index_);
  wanted_index_.upload(ops_, wanted_rows_);
  batch_->set(sequences_);
  inputs_.reserve(ops_, (requests.size() + 1) * hidden);
  hidden_.reserve(ops_, rows * hidden);
  normed_.reserve(ops_, rows * hidden);
  wanted_.reserve(ops_, wanted_rows_.size() * hidden);
}

// The blocks of `requests` requests through all layers, and the norm of the rows that are asked for.
void DFlashDrafter::run_rows(int requests) {
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  const int rows = requests * config_.block;
  const auto count = static_cast<int>(wanted_rows_.size());
  const std::size_t bytes = hidden * sizeof(float);
  float* inputs = inputs_.data();
  float* state = hidden_.data();
  ops_.copy_rows(inputs, bytes, mask_.data(), bytes, bytes, 1);
  target_.embed(anchor_ids_.data(), requests, inputs + hidden);
  ops_.gather_rows(state, inputs, bytes, block_index_.data(), rows);
  for (int i = 0; i < config_.layers; ++i) run_layer(i, rows);
  ops_.gather_rows(wanted_.data(), state, bytes, wanted_index_.data(), count);
  ops_.rms_norm(wanted_.data(), count, final_norm_, config_.norm_eps, normed_.data(), hidden);
}

void DFlashDrafter::run_layer(int index, int rows) {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  const AttentionSpec spec = attention_spec(index);
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  const auto dim = static_cast<std::size_t>(config_.head_dim);
  const std::size_t q_width = static_cast<std::size_t>(config_.q_heads) * dim;
  const std::size_t width = q_width + 2 * static_cast<std::size_t>(config_.kv_heads) * dim;
  float* state = hidden_.data();
  Act* normed = normed_.data();
  Act* qkv = qkv_.reserve(ops_, static_cast<std::size_t>(rows) * width);
  Act* attended = attended_.reserve(ops_, static_cast<std::size_t>(rows) * q_width);

  ops_.rms_norm(state, rows, layer.input_norm, config_.norm_eps, normed, hidden);
  ops_.linear(normed, rows, *layer.qkv, qkv);
  ops_.rms_norm_heads(qkv, width, rows, config_.q_heads, layer.q_norm, config_.norm_eps);
  ops_.rms_norm_heads(act_at(ops_, qkv, q_width), width, rows, config_.kv_heads, layer.k_norm,
                      config_.norm_eps);
  ops_.rope_and_store_kv(qkv, width, *batch_, spec, config_.value_scale, *layer.kv);
  ops_.attention(qkv, width, *batch_, spec, *layer.kv, attended);
  ops_.linear(attended, rows, *layer.o_proj, state, Store::kAdd);
  ops_.rms_norm(state, rows, layer.post_norm, config_.norm_eps, normed, hidden);
  ops_.mlp(normed, rows, *layer.mlp, state);
}

void DFlashDrafter::draft(std::span<DraftRequest> requests) {
  if (requests.empty()) return;
  lay_out(requests);
  const std::size_t wanted = wanted_rows_.size();
  std::uint32_t* chosen = chosen_.reserve(ops_, 2 * wanted);
  key_ = {std::ssize(requests), std::ssize(wanted_rows_), reinterpret_cast<std::intptr_t>(this)};
  batch_->add_key(key_);
  ops_.run(key_, [&] {
    run_rows(static_cast<int>(requests.size()));
    target_.best_of_head(normed_.data(), static_cast<int>(wanted), options_.vocab, logits_,
                         reinterpret_cast<std::int32_t*>(chosen), reinterpret_cast<float*>(chosen + wanted));
  });
  answers_.resize(2 * wanted);
  ops_.download(answers_.data(), chosen, answers_.size() * sizeof(std::uint32_t));
  std::size_t at = 0;
  for (DraftRequest& request : requests) {
    const std::size_t count = request.drafts.size();
    const auto probability = [&](std::size_t i) { return std::bit_cast<float>(answers_[wanted + at + i]); };
    request.failed = false;
    for (std::size_t i = 0; i < count; ++i) request.failed |= !std::isfinite(probability(i));
    for (std::size_t i = 0; i < count && !request.failed; ++i) {
      request.drafts[i] = std::bit_cast<std::int32_t>(answers_[at + i]);
      if (i < request.confidence.size()) request.confidence[i] = probability(i);
    }
    at += count;
  }
}

}  // namespace mimo
