// The operations a forward pass is made of. The model is written once over this interface; a backend
// implements it. `reference` is plain fp32 and the oracle for every other backend.
//
// Conventions: rows of activations are row-major and contiguous unless a width is given; a row is one token. The
// residual stream and logits are fp32 (float*); what goes into a matrix or an attention is in the backend's own
// type (Act*: fp32 on the CPU, BF16 or fp32 on a GPU). All these pointers are into the backend's own memory
// (Buffer). Matrices are [out, in], y = x W^T. What a backend rounds activations to inside an operation is its own,
// documented business (docs/architecture.md, "Number formats"), with one rule for all: the result of a row depends
// on that row and its own sequence only, never on the other rows of the batch.
//
// A backend may still be at work when an operation returns; it does them in order, and download() waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/result.h"
#include "core/weight_view.h"

namespace mimo {

// One element of an activation, of a type that only its backend knows: Ops::act_bytes() long.
struct Act;

// Memory of a backend. On the CPU plain memory.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  virtual ~Buffer() = default;
  virtual void* data() const = 0;
  virtual std::size_t bytes() const = 0;
};

// A vector of fp32 weights (gains of a norm, sinks, biases) in a backend's memory.
class Vector {
 public:
  Vector() = default;
  Vector(std::unique_ptr<Buffer> memory, std::size_t size) : memory_(std::move(memory)), size_(size) {}
  const float* data() const { return size_ == 0 ? nullptr : static_cast<const float*>(memory_->data()); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  std::unique_ptr<Buffer> memory_;
  std::size_t size_ = 0;
};

// What a matrix is for: backends may hold the two differently.
enum class MatrixUse : std::uint8_t {
  kProjection,  // multiplied by the rows of a step (the output head: by those that are sampled)
  kVocabulary,  // rows are looked up, and must be exact
  kDrafter,     // of a drafter: drafts are verified, so that rounding costs acceptance at most
};

// A weight matrix packed for one backend.
class Matrix {
 public:
  virtual ~Matrix() = default;
  virtual std::int64_t rows() const = 0;
  virtual std::int64_t cols() const = 0;
  virtual std::size_t bytes() const = 0;  // memory held, which is also what one pass over it reads
};

// Gated MLPs of one shape (all experts of a layer, or one dense MLP) packed for one backend.
class MlpBank {
 public:
  virtual ~MlpBank() = default;
  virtual int experts() const = 0;
  virtual std::size_t bytes() const = 0;         // of all experts
  virtual std::size_t expert_bytes() const = 0;  // of one
};

struct MlpViews {
  const WeightView* gate = nullptr;  // [intermediate, hidden]
  const WeightView* up = nullptr;    // [intermediate, hidden]
  const WeightView* down = nullptr;  // [hidden, intermediate]
};

enum class KvDType : std::uint8_t { kF32, kBF16, kFp8 };
const char* kv_dtype_name(KvDType dtype);

// Paged key/value memory of one layer.
struct KvSpec {
  int kv_heads = 0;
  int qk_dim = 0;
  int v_dim = 0;
  int page_size = 0;  // tokens a page
  std::int64_t pages = 0;
  KvDType dtype = KvDType::kBF16;
};

class KvStore {
 public:
  explicit KvStore(const KvSpec& spec) : spec_(spec) {}
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;
  virtual ~KvStore() = default;
  const KvSpec& spec() const { return spec_; }
  virtual std::size_t bytes() const = 0;
  // Fills a page with NaN: tests and the poison mode show that nothing reads what was freed.
  virtual void poison_page(std::int32_t page) = 0;

  // A page as bytes, [page_bytes()], to keep it elsewhere and bring it back into any page of a store of the same
  // spec and backend. Exact: attention over the copy gives the same bits. Safe beside operations that do not
  // write (read_page), or do not touch (write_page), this page.
  virtual std::size_t page_bytes() const = 0;
  virtual void read_page(std::int32_t page, std::span<std::byte> out) const = 0;
  virtual void write_page(std::int32_t page, std::span<const std::byte> in) = 0;

 protected:
  // Ends the program if there is no such page or `bytes` is not page_bytes().
  void check_page(std::int32_t page, std::size_t bytes) const;

 private:
  KvSpec spec_;
};

// The rows of one sequence inside a ragged batch: tokens at absolute positions [position, position + rows),
// whose keys and values live (or are about to) in `pages`; entry p holds positions [p * page_size, (p + 1) *
// page_size). Entries of pages that left a window are -1 and are never touched.
struct SequenceRows {
  int row_begin = 0;
  int rows = 0;
  std::int64_t position = 0;
  std::span<const std::int32_t> pages;
  std::int64_t first_key = 0;  // positions before it were never stored: no row sees them
};

// Rotation of the leading `dims` of queries and keys, half-split pairs (i, i + dims / 2); 0: none.
struct RopeSpec {
  float theta = 0;
  int dims = 0;
};

// The sequences of a step as one kind of layer sees them, with the rotation of their rows. Set once a step and read
// by every layer of that kind.
class SequenceBatch {
 public:
  SequenceBatch() = default;
  SequenceBatch(const SequenceBatch&) = delete;
  SequenceBatch& operator=(const SequenceBatch&) = delete;
  virtual ~SequenceBatch() = default;
  // Rows of sequences follow each other from row 0 on. The page tables are read until the step is over.
  virtual void set(std::span<const SequenceRows> sequences) = 0;
  // What of them the arguments of operations depend on, for the key of Ops::run.
  virtual void add_key(std::vector<std::int64_t>& key) const = 0;
};

// Which keys at or after its own position a row sees.
enum class MaskKind : std::uint8_t {
  kCausal,         // its own only
  kBidirectional,  // all rows of its sequence in this step
};

// The oldest key that a window of W lets a row at position p see.
enum class WindowStart : std::uint8_t {
  kRow,     // p - (W - 1): W keys, the row's own included
  kAnchor,  // W keys before the sequence's first row of the step, the same ones for all its rows
};

// How one layer attends.
struct AttentionSpec {
  int q_heads = 0;
  int kv_heads = 0;
  int qk_dim = 0;
  int v_dim = 0;
  int window = 0;                 // keys a query sees, itself included; 0: all earlier ones
  float scale = 0;                // multiplies q.k: qk_dim^-1/2
  const Vector* sinks = nullptr;  // [q_heads] or null; joins the softmax as a logit without a value, unscaled
  MaskKind mask = MaskKind::kCausal;
  WindowStart window_start = WindowStart::kRow;
};

// Keys [first, last) that row `row` of a sequence sees.
struct KeyRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
KeyRange visible_keys(const AttentionSpec& spec, const SequenceRows& sequence, int row);

// Routing rule of spec model 2.8: sigmoid scores; the bias joins the choice, not the weight.
struct RouteSpec {
  int experts = 0;
  int top_k = 0;
  const Vector* bias = nullptr;  // [experts] or null, fp32
  bool normalize = true;         // weights divided by (sum + 1e-20)
  float scale = 1.0f;
};

// The rule itself, on one row of router logits [experts]: writes top_k = ids.size() expert ids (ascending)
// and their weights. Ties go to the lower id. `bias`: spec.bias where the CPU can read it. Shared by the backends.
void choose_experts(std::span<const float> logits, const RouteSpec& spec, std::span<const float> bias,
                    std::span<std::int32_t> ids, std::span<float> weights);

enum class Store : std::uint8_t { kOverwrite, kAdd };

// How a token is drawn from a row of logits: engine/sampler.h has the rule. Filters keep a prefix of the tokens in
// order of falling logits (lower id first among equal ones): first min_p, then top_k, then top_p. The draw inverts the
// cumulative distribution of what is kept in the order of ids.
struct TokenDraw {
  float inverse_temperature = 0;  // 0: the best token, and nothing else matters
  std::int32_t top_k = 0;         // 0 or less: off
  // Tokens whose logit is further than this from the largest one are left out: temperature * log(min_p).
  double min_p_distance = -std::numeric_limits<double>::infinity();
  double top_p = 1;    // 1: off
  double uniform = 0;  // in [0, 1)
};

class Ops {
 public:
  virtual ~Ops() = default;
  virtual const char* name() const = 0;
  // What was chosen and why, for the start-up log: one "operation: choice" line each.
  virtual std::vector<std::string> describe() const = 0;

  // Memory. allocate() fails where there is not enough; what it returns holds anything.
  virtual Result<std::unique_ptr<Buffer>> allocate(std::size_t bytes) = 0;
  virtual std::size_t act_bytes() const = 0;
  virtual bool host_memory() const = 0;           // its memory is the CPU's own
  virtual std::uint64_t free_memory() const = 0;  // bytes that can be allocated now; 0: not known
  // `from` and `to` are the CPU's memory; both calls return when the copy is done.
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  // Row r of `count` rows of `bytes` from one place to another, rows a stride of bytes apart.
  virtual void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                         std::size_t bytes, std::size_t count) = 0;
  // Row i of `to` is row index[i] of `from`; rows of `bytes` (a multiple of 4), which do not overlap `to`.
  virtual void gather_rows(void* to, const void* from, std::size_t bytes, const std::int32_t* index,
                           int count) = 0;
  // Rounds to activations.
  virtual void to_act(const float* x, std::size_t count, Act* out) = 0;
  virtual std::unique_ptr<SequenceBatch> make_sequences(const RopeSpec& rope) = 0;

  // Packing. The views' bytes are not needed afterwards. A format or shape the backend cannot run is refused.
  virtual Result<std::unique_ptr<Matrix>> pack_matrix(const WeightView& view, MatrixUse use) = 0;
  // A router: kept and computed in fp32 arithmetic whatever its stored format.
  virtual Result<std::unique_ptr<Matrix>> pack_router(const WeightView& view) = 0;
  virtual Result<std::unique_ptr<MlpBank>> pack_mlps(std::span<const MlpViews> experts,
                                                     MatrixUse use = MatrixUse::kProjection) = 0;
  virtual Result<std::unique_ptr<KvStore>> make_kv(const KvSpec& spec) = 0;
  Result<Vector> pack_vector(std::span<const float> values);

  // out[i] = table[ids[i]], `count` rows; ids are in range.
  virtual void embed(const Matrix& table, const std::int32_t* ids, int count, float* out) = 0;

  // out = x / sqrt(mean(x^2) + eps) * weight, statistics in fp32. x and out may be the same. Rows of x follow each
  // other; those of the Act result are out_width elements apart.
  virtual void rms_norm(const float* x, int rows, const Vector& weight, float eps, float* out) = 0;
  virtual void rms_norm(const float* x, int rows, const Vector& weight, float eps, Act* out,
                        std::size_t out_width) = 0;

  // The same for each of `heads` consecutive heads of weight.size() elements in a row, in place; `x` is the first
  // head of row 0 and rows are `row_width` elements apart.
  virtual void rms_norm_heads(Act* x, std::size_t row_width, int rows, int heads, const Vector& weight,
                              float eps) = 0;

  // y (+)= x W^T; x [rows, W.cols], y [rows, W.rows].
  virtual void linear(const Act* x, int rows, const Matrix& weight, float* y, Store store) = 0;
  virtual void linear(const Act* x, int rows, const Matrix& weight, Act* y) = 0;

  // Rows of qkv are [q_heads * qk | kv_heads * qk | kv_heads * v], row_width elements apart; spec.q_heads may be
  // 0. Rotates q and k in place, and writes k and v * value_scale of every row to its place in the store.
  virtual void rope_and_store_kv(Act* qkv, std::size_t row_width, const SequenceBatch& sequences,
                                 const AttentionSpec& spec, float value_scale, KvStore& kv) = 0;

  // Attention of every row over the keys of its sequence that visible_keys names (those of the step are
  // stored already). What other slots of the pages hold never matters, not even NaN. Reads the q part of qkv
  // rows (row_width elements apart); out [rows, q_heads * v_dim].
  virtual void attention(const Act* qkv, std::size_t row_width, const SequenceBatch& sequences,
                         const AttentionSpec& spec, const KvStore& kv, Act* out) = 0;

  // Chooses experts: ids and weights [rows, top_k], ids ascending within a row. Non-finite scores never win
  // against finite ones.
  virtual void route(const Act* x, int rows, const Matrix& router, const RouteSpec& spec, std::int32_t* ids,
                     float* weights) = 0;

  // y += sum_k weights[k] * mlp[ids[k]](x); ids and weights [rows, top_k] as route writes them.
  virtual void experts(const Act* x, int rows, const MlpBank& bank, int top_k, const std::int32_t* ids,
                       const float* weights, float* y) = 0;

  // y += mlp(x) of a bank with one expert.
  virtual void mlp(const Act* x, int rows, const MlpBank& bank, float* y) = 0;

  // The best of the first `count` logits of every row (rows `row_width` floats apart), the lowest id on ties,
  // and, unless that is null, its softmax probability among them; a row with a logit that is not finite gets the id
  // -1 and the probability NaN.
  virtual void best_tokens(const float* logits, std::size_t row_width, int rows, int count, std::int32_t* ids,
                           float* probabilities) = 0;

  // linear() by `head` and best_tokens() of the first `count` results in one, without the results in memory. False:
  // nothing was done, the backend has no such operation for these rows and this matrix. Sums may be taken in another
  // order than in linear().
  virtual bool best_linear(const Act* x, int rows, const Matrix& head, int count, std::int32_t* ids,
                           float* probabilities);

  // Whether draw_tokens() is there for so many tokens.
  virtual bool draws_tokens(int /*count*/) const { return false; }
  // One of the first `count` tokens of every row of logits (rows `row_width` floats apart), drawn as draws[row] says
  // (backend memory); -1 for a row with a NaN or +inf, or without a finite logit. Rows may differ in kind.
  virtual void draw_tokens(const float* logits, std::size_t row_width, int rows, int count,
                           const TokenDraw* draws, std::int32_t* ids);

  // Runs `body`, which only calls operations, with the same arguments whenever the key is the same: what differs from
  // one time to the next lies in memory that was uploaded before (tokens, indices, SequenceBatch). A backend may
  // record it and replay the record; the key must hold every number and address that the arguments depend on.
  virtual void run(std::span<const std::int64_t> key, const std::function<void()>& body);
};

}  // namespace mimo
