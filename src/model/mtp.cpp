#include "model/mtp.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "core/ring_runs.h"
#include "model/attention_shape.h"

namespace mimo {

// The newest hidden states before a position, and their tokens. The heads' keys and values are made again from
// these, as at the end of a prompt.
class MtpDrafter::Tail final : public DraftTail {
 public:
  std::size_t bytes() const override {
    return hidden.size() * sizeof(float) + tokens.size() * sizeof(std::int32_t);
  }

  std::int64_t begin = 0;
  std::vector<float> hidden;         // [rows, hidden]
  std::vector<std::int32_t> tokens;  // [rows]
};

// The newest hidden states and tokens of one request, and its ring of pages.
class MtpDrafter::State final : public DraftState {
 public:
  State(MtpDrafter& owner, std::vector<std::int32_t> pages)
      : owner_(owner), ring_(std::move(pages)), done_(owner.heads_.size(), 0) {
    hidden_.reserve(owner.ops_, static_cast<std::size_t>(owner.window_) * width());
    tokens_.resize(static_cast<std::size_t>(owner.window_) + 1);
  }
  ~State() override { owner_.free_pages_.insert(owner_.free_pages_.end(), ring_.begin(), ring_.end()); }

  // Rows [rows, hidden] at positions [position, position + rows), and the tokens of these and of the next. Of more
  // rows than a window the newest are kept.
  void add(std::int64_t position, const float* rows, std::span<const std::int32_t> tokens) {
    MIMO_CHECK(position >= next_, "observed position {} after {}", position, next_ - 1);
    if (next_ < 0 || position > next_) {
      first_ = position;
      std::fill(done_.begin(), done_.end(), position);
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens_[token_slot(position + static_cast<std::int64_t>(i))] = tokens[i];
    }
    next_ = position + std::ssize(tokens) - 1;
    const std::size_t bytes = width() * sizeof(float);
    for_ring_runs(std::max(position, next_ - owner_.window_), next_, owner_.window_,
                  [&](std::int64_t at, std::int64_t count) {
                    owner_.ops_.copy_rows(row(at), bytes,
                                          rows + static_cast<std::size_t>(at - position) * width(), bytes,
                                          bytes, static_cast<std::size_t>(count));
                  });
    const auto page = static_cast<std::size_t>(owner_.options_.page_size);
    while (table_.size() * page < static_cast<std::size_t>(next_)) {
      table_.push_back(ring_[table_.size() % ring_.size()]);
    }
  }

  std::int64_t next() const { return next_; }    // position of the anchor
  std::int64_t first() const { return first_; }  // oldest position from which on all were observed
  std::span<const std::int32_t> pages() const { return table_; }

  // The first row that head `index` has to run for a draft at the anchor, the last one being next() - 1.
  std::int64_t begin(int index) const {
    const std::int64_t oldest = std::max(first_, next_ - owner_.window_);
    return std::min(std::max(oldest, done_[static_cast<std::size_t>(index)]), next_ - 1);
  }
  std::shared_ptr<const Tail> tail(std::int64_t position) const {
    const std::int64_t begin = std::max(first_, next_ - owner_.window_);
    if (next_ < 0 || position > next_ || position <= begin) return nullptr;
    auto tail = std::make_shared<Tail>();
    tail->begin = begin;
    tail->hidden.resize(static_cast<std::size_t>(position - begin) * width());
    for_ring_runs(begin, position, owner_.window_, [&](std::int64_t at, std::int64_t count) {
      owner_.ops_.download(tail->hidden.data() + static_cast<std::size_t>(at - begin) * width(), row(at),
                           static_cast<std::size_t>(count) * width() * sizeof(float));
    });
    for (std::int64_t at = begin; at < position; ++at) tail->tokens.push_back(token(at));
    return tail;
  }
  // A new state begins with the rows of a tail; the token behind them comes with the next observation.
  void begin_with(const Tail& tail) {
    std::vector<std::int32_t> tokens = tail.tokens;
    tokens.push_back(0);
    BackendArray<float> rows;
    add(tail.begin, rows.upload(owner_.ops_, tail.hidden), tokens);
  }

  // Head `index` has run up to the anchor: its newest `index` rows had drafts for tokens.
  void ran(int index) { done_[static_cast<std::size_t>(index)] = std::max(first_, next_ - index); }

  // Copies the rows at [begin, end) to `out` [end - begin, hidden].
  void copy(std::int64_t begin, std::int64_t end, float* out) const {
    const std::size_t bytes = width() * sizeof(float);
    for_ring_runs(begin, end, owner_.window_, [&](std::int64_t at, std::int64_t count) {
      owner_.ops_.copy_rows(out + static_cast<std::size_t>(at - begin) * width(), bytes, row(at), bytes,
                            bytes, static_cast<std::size_t>(count));
    });
  }
  std::int32_t token(std::int64_t position) const { return tokens_[token_slot(position)]; }

 private:
  std::size_t width() const { return static_cast<std::size_t>(owner_.target_.config().hidden); }
  float* row(std::int64_t position) const {
    return hidden_.data() + static_cast<std::size_t>(position % owner_.window_) * width();
  }
  std::size_t token_slot(std::int64_t position) const {
    return static_cast<std::size_t>(position) % tokens_.size();
  }

  MtpDrafter& owner_;
  std::vector<std::int32_t> ring_;
  std::vector<std::int32_t> table_;   // page of positions [p * page_size, (p + 1) * page_size)
  BackendArray<float> hidden_;        // [window, hidden], position p in row p % window
  std::vector<std::int32_t> tokens_;  // [window + 1], position p in entry p % (window + 1)
  std::vector<std::int64_t> done_;    // [heads]: rows before it have their final K and V
  std::int64_t first_ = 0;
  std::int64_t next_ = -1;
};

MtpDrafter::MtpDrafter(const TargetModel& target, Ops& ops, const Options& options)
    : target_(target),
      ops_(ops),
      options_(options),
      tap_(target.config().layers + 1),
      window_(target.config().window.window),
      batch_(ops.make_sequences({target.config().window.rope_theta, target.config().window.rotary_dims})) {}

MtpDrafter::~MtpDrafter() = default;

Result<std::unique_ptr<MtpDrafter>> MtpDrafter::load(WeightSource& source, const TargetModel& target,
                                                     Ops& ops, const Options& options) {
  const int stored = source.mtp_heads();
  if (stored == 0) {
    return fail(ErrorCode::kNotFound, "MTP: the checkpoint has no MTP heads (model.mtp.layers.*)");
  }
  if (options.heads < 0 || options.heads > stored) {
    return fail(ErrorCode::kInvalidArgument,
                "MTP: got {} drafts a step, expected 1 to {}: one for each MTP head of the checkpoint",
                options.heads, stored);
  }
  if (target.config().window.window < 1) {
    return fail(ErrorCode::kUnsupported,
                "MTP: sliding_window {}, expected at least 1: the heads attend to a window",
                target.config().window.window);
  }
  std::unique_ptr<MtpDrafter> drafter(new MtpDrafter(target, ops, options));
  const int heads = options.heads > 0 ? options.heads : stored;
  for (int i = 0; i < heads; ++i) {
    if (const Status ok = drafter->load_head(source, i); !ok) {
      return tl::unexpected(ok.error().within(fmt::format("MTP head {}", i)));
    }
    source.release_mtp(i);
  }
  if (const Status ok = drafter->make_pages(); !ok) return forward_error(ok);
  return drafter;
}

Status MtpDrafter::load_head(WeightSource& source, int index) {
  Result<MtpWeights> weights = source.mtp(index, {});
  if (!weights) return forward_error(weights);
  Head head;
  for (const auto& [from, to] : {std::pair{&weights->embed_norm, &head.embed_norm},
                                 std::pair{&weights->hidden_norm, &head.hidden_norm},
                                 std::pair{&weights->input_norm, &head.input_norm},
                                 std::pair{&weights->pre_mlp_norm, &head.pre_mlp_norm},
                                 std::pair{&weights->final_norm, &head.final_norm},
                                 std::pair{&weights->attention.sinks, &head.sinks}}) {
    Result<Vector> packed = ops_.pack_vector(*from);
    if (!packed) return forward_error(packed);
    *to = std::move(*packed);
  }
  for (const auto& [view, matrix] : {std::pair{&weights->eh_proj, &head.eh_proj},
                                     {&weights->attention.qkv, &head.qkv},
                                     {&weights->attention.o_proj, &head.o_proj}}) {
    Result<std::unique_ptr<Matrix>> packed = ops_.pack_matrix(*view, MatrixUse::kProjection);
    if (!packed) return forward_error(packed);
    *matrix = std::move(*packed);
  }
  const MlpViews views{&weights->mlp.gate, &weights->mlp.up, &weights->mlp.down};
  Result<std::unique_ptr<MlpBank>> mlp = ops_.pack_mlps({&views, 1});
  if (!mlp) return forward_error(mlp);
  head.mlp = std::move(*mlp);
  heads_.push_back(std::move(head));
  return {};
}

Status MtpDrafter::make_pages() {
  const int page = options_.page_size;
  // No two positions of a window share a slot, though its first and last may share a page.
  ring_pages_ = (window_ + page - 1) / page;
  const AttentionShape& shape = target_.config().window;
  KvSpec spec;
  spec.kv_heads = shape.kv_heads;
  spec.qk_dim = shape.qk_dim;
  spec.v_dim = shape.v_dim;
  spec.page_size = page;
  spec.pages = ring_pages_ * options_.max_requests;
  spec.dtype = options_.kv;
  for (Head& head : heads_) {
    Result<std::unique_ptr<KvStore>> kv = ops_.make_kv(spec);
    if (!kv) return tl::unexpected(kv.error().within("KV cache of an MTP head"));
    head.kv = std::move(*kv);
  }
  for (std::int64_t p = spec.pages; p-- > 0;) free_pages_.push_back(static_cast<std::int32_t>(p));
  return {};
}

std::size_t MtpDrafter::weight_bytes() const {
  std::size_t total = 0;
  for (const Head& head : heads_) {
    total += head.eh_proj->bytes() + head.qkv->bytes() + head.o_proj->bytes() + head.mlp->bytes();
  }
  return total;
}

std::size_t MtpDrafter::state_bytes() const {
  std::size_t total = static_cast<std::size_t>(window_ * target_.config().hidden) * sizeof(float);
  for (const Head& head : heads_) total += head.kv->bytes() / static_cast<std::size_t>(options_.max_requests);
  return total;
}

// The first draft is made from the last row of the prompt, which sees `window` rows.
std::int64_t MtpDrafter::first_needed(std::int64_t prompt_tokens) const {
  return std::max<std::int64_t>(0, prompt_tokens - window_);
}

Result<std::unique_ptr<DraftState>> MtpDrafter::open(std::int64_t /*max_tokens*/) {
  if (std::ssize(free_pages_) < ring_pages_) {
    return fail(ErrorCode::kLimit, "MTP: {} requests have a draft cache already, which is the most",
                options_.max_requests);
  }
  std::vector<std::int32_t> pages(free_pages_.end() - ring_pages_, free_pages_.end());
  free_pages_.resize(free_pages_.size() - pages.size());
  if (options_.poison) {
    for (const Head& head : heads_) {
      for (const std::int32_t page : pages) head.kv->poison_page(page);
    }
  }
  return std::make_unique<State>(*this, std::move(pages));
}

std::size_t MtpDrafter::tail_bytes() const {
  const auto row = static_cast<std::size_t>(target_.config().hidden) * sizeof(float) + sizeof(std::int32_t);
  return static_cast<std::size_t>(window_) * row;
}

std::shared_ptr<const DraftTail> MtpDrafter::save(const DraftState& state, std::int64_t position) const {
  return dynamic_cast<const State&>(state).tail(position);
}

void MtpDrafter::restore(DraftState& state, const DraftTail& tail) {
  dynamic_cast<State&>(state).begin_with(dynamic_cast<const Tail&>(tail));
}

void MtpDrafter::observe(std::span<const DraftObservation> observations, std::span<const float> taps) {
  const auto width = static_cast<std::size_t>(target_.config().hidden);
  for (const DraftObservation& seen : observations) {
    static_cast<State&>(*seen.state)
        .add(seen.position,
             taps.subspan(static_cast<std::size_t>(seen.row_begin) * width,
                          static_cast<std::size_t>(seen.rows) * width)
                 .data(),
             seen.tokens);
  }
}

void MtpDrafter::draft(std::span<DraftRequest> requests) {
  active_.clear();
  for (DraftRequest& request : requests) {
    const auto& state = static_cast<const State&>(*request.state);
    MIMO_CHECK(request.position == state.next(), "draft at {}, observed up to {}", request.position,
               state.next() - 1);
    active_.push_back(&request);
  }
  for (int k = 0; k < max_drafts(); ++k) {
    std::erase_if(active_, [k](const DraftRequest* request) {
      return request->failed || std::ssize(request->drafts) <= k;
    });
    if (active_.empty()) return;
    run_head(k, active_);
  }
}

void MtpDrafter::run_head(int index, std::span<DraftRequest* const> requests) {
  const Head& head = heads_[static_cast<std::size_t>(index)];
  const ModelConfig& config = target_.config();
  const AttentionShape& shape = config.window;
  const AttentionSpec spec = attention_spec(shape, head.sinks);
  const float eps = config.norm_eps;
  const std::size_t width = qkv_width(shape);
  const auto hidden = static_cast<std::size_t>(config.hidden);

  gather_rows(index, requests);
  const auto rows = static_cast<int>(ids_.size());
  target_.embed(token_ids_.upload(ops_, ids_), rows, embedded_.data());
  ops_.rms_norm(embedded_.data(), rows, head.embed_norm, eps, joined_.data(), 2 * hidden);
  ops_.rms_norm(states_.data(), rows, head.hidden_norm, eps, act_at(ops_, joined_.data(), hidden),
                2 * hidden);
  ops_.linear(joined_.data(), rows, *head.eh_proj, all_hidden_.data(), Store::kOverwrite);
  ops_.rms_norm(all_hidden_.data(), rows, head.input_norm, eps, normed_.data(), hidden);
  ops_.linear(normed_.data(), rows, *head.qkv, all_qkv_.data());
  batch_->set(sequences_);
  ops_.rope_and_store_kv(all_qkv_.data(), width, *batch_, spec, config.value_scale, *head.kv);

  keep_last_rows(width);
  const auto count = static_cast<int>(requests.size());
  ops_.attention(qkv_.data(), width, *batch_, spec, *head.kv, attended_.data());
  ops_.linear(attended_.data(), count, *head.o_proj, hidden_.data(), Store::kAdd);
  ops_.rms_norm(hidden_.data(), count, head.pre_mlp_norm, eps, normed_.data(), hidden);
  ops_.mlp(normed_.data(), count, *head.mlp, hidden_.data());
  ops_.rms_norm(hidden_.data(), count, head.final_norm, eps, normed_.data(), hidden);
  target_.best_of_head(normed_.data(), count, options_.vocab > 0 ? options_.vocab : config.vocab, logits_,
                       best_ids_.reserve(ops_, best_.size()), shares_.reserve(ops_, best_.size()));
  ops_.download(best_.data(), best_ids_.data(), best_.size() * sizeof(std::int32_t));
  ops_.download(probabilities_.data(), shares_.data(), best_.size() * sizeof(float));

  for (std::size_t i = 0; i < requests.size(); ++i) {
    static_cast<State&>(*requests[i]->state).ran(index);
    if (!std::isfinite(probabilities_[i])) {
      requests[i]->failed = true;
      continue;
    }
    requests[i]->drafts[static_cast<std::size_t>(index)] = best_[i];
    requests[i]->confidence[static_cast<std::size_t>(index)] = probabilities_[i];
  }
}

// Tokens, target states and places of the rows that head `index` runs, and room for what it computes.
void MtpDrafter::gather_rows(int index, std::span<DraftRequest* const> requests) {
  const ModelConfig& config = target_.config();
  const auto hidden = static_cast<std::size_t>(config.hidden);
  ids_.clear();
  sequences_.clear();
  for (const DraftRequest* request : requests) {
    const auto& state = static_cast<const State&>(*request->state);
    const std::int64_t anchor = state.next();
    SequenceRows rows;
    rows.row_begin = static_cast<int>(ids_.size());
    rows.position = state.begin(index);
    rows.rows = static_cast<int>(anchor - rows.position);
    rows.pages = state.pages();
    rows.first_key = state.first();
    sequences_.push_back(rows);
    for (std::int64_t i = rows.position; i < anchor; ++i) {
      const std::int64_t at = i + 1 + index;
      ids_.push_back(at <= anchor ? state.token(at)
                                  : request->drafts[static_cast<std::size_t>(at - anchor - 1)]);
    }
  }
  const std::size_t rows = ids_.size();
  const std::size_t width = qkv_width(config.window);
  states_.reserve(ops_, rows * hidden);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const SequenceRows& part = sequences_[i];
    static_cast<const State&>(*requests[i]->state)
        .copy(part.position, part.position + part.rows,
              states_.data() + static_cast<std::size_t>(part.row_begin) * hidden);
  }
  embedded_.reserve(ops_, rows * hidden);
  joined_.reserve(ops_, rows * 2 * hidden);
  all_hidden_.reserve(ops_, rows * hidden);
  all_qkv_.reserve(ops_, rows * width);
  hidden_.reserve(ops_, requests.size() * hidden);
  qkv_.reserve(ops_, requests.size() * width);
  normed_.reserve(ops_, rows * hidden);
  attended_.reserve(ops_,
                    requests.size() * static_cast<std::size_t>(config.window.q_heads * config.window.v_dim));
  logits_.reserve(ops_, requests.size() * static_cast<std::size_t>(config.vocab));
  best_.resize(requests.size());
  probabilities_.resize(requests.size());
}

// Takes the last row of every request, of the residual stream and of Q, K and V.
void MtpDrafter::keep_last_rows(std::size_t width) {
  const auto hidden = static_cast<std::size_t>(target_.config().hidden);
  last_rows_.clear();
  for (SequenceRows& rows : sequences_) {
    last_rows_.push_back(rows.row_begin + rows.rows - 1);
    rows.row_begin = static_cast<int>(last_rows_.size()) - 1;
    rows.position += rows.rows - 1;
    rows.rows = 1;
  }
  batch_->set(sequences_);
  const std::int32_t* index = last_index_.upload(ops_, last_rows_);
  const auto count = static_cast<int>(last_rows_.size());
  ops_.gather_rows(hidden_.data(), all_hidden_.data(), hidden * sizeof(float), index, count);
  ops_.gather_rows(qkv_.data(), all_qkv_.data(), width * ops_.act_bytes(), index, count);
}

}  // namespace mimo
