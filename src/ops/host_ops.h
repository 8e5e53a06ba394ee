// What the backends share whose memory is the CPU's own: activations are fp32 there, and every operation is done
// when it returns.
#pragma once

#include <vector>

#include "ops/ops.h"

namespace mimo {

inline float* f32(Act* x) { return reinterpret_cast<float*>(x); }
inline const float* f32(const Act* x) { return reinterpret_cast<const float*>(x); }

inline std::span<const float> values(const Vector& vector) { return {vector.data(), vector.size()}; }
inline std::span<const float> values(const Vector* vector) {
  return vector == nullptr ? std::span<const float>() : values(*vector);
}

class HostSequences final : public SequenceBatch {
 public:
  explicit HostSequences(const RopeSpec& rope) : rope_(rope) {}
  void set(std::span<const SequenceRows> sequences) override;
  void add_key(std::vector<std::int64_t>& /*key*/) const override {}

  std::span<const SequenceRows> sequences() const { return sequences_; }
  const RopeSpec& rope() const { return rope_; }
  // cos and sin of a row's angles [dims / 2].
  const float* cos(std::size_t row) const { return cos_.data() + row * half(); }
  const float* sin(std::size_t row) const { return sin_.data() + row * half(); }

 private:
  std::size_t half() const { return static_cast<std::size_t>(rope_.dims / 2); }

  RopeSpec rope_;
  std::vector<SequenceRows> sequences_;
  std::vector<float> cos_, sin_;
};

const HostSequences& host(const SequenceBatch& sequences);

class HostOps : public Ops {
 public:
  Result<std::unique_ptr<Buffer>> allocate(std::size_t bytes) override;
  std::size_t act_bytes() const override { return sizeof(float); }
  bool host_memory() const override { return true; }
  // What processes can have without swapping.
  std::uint64_t free_memory() const override;
  void upload(void* to, const void* from, std::size_t bytes) override;
  void download(void* to, const void* from, std::size_t bytes) override;
  void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride,
                 std::size_t bytes, std::size_t count) override;
  void gather_rows(void* to, const void* from, std::size_t bytes, const std::int32_t* index,
                   int count) override;
  void to_act(const float* x, std::size_t count, Act* out) override;
  std::unique_ptr<SequenceBatch> make_sequences(const RopeSpec& rope) override;
  bool draws_tokens(int /*count*/) const override { return true; }
  void draw_tokens(const float* logits, std::size_t row_width, int rows, int count, const TokenDraw* draws,
                   std::int32_t* ids) override;
};

// A token of this row, as Ops::draw_tokens: the rule, written plainly.
std::int32_t draw_token(std::span<const float> logits, const TokenDraw& draw);

}  // namespace mimo
