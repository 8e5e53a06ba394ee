// Sequences side by side for timing steps of a model: positions are chosen freely, and nothing is ever evicted.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "model/target.h"

namespace mimo {

class BenchSequences {
 public:
  struct Shape {
    int page_size = 64;
    int count = 1;              // sequences
    std::int64_t capacity = 0;  // positions of each
    std::int64_t ring = 0;      // pages of window layers of each
  };

  // Each sequence has its own pages of full layers; of window layers a ring, since nobody looks further back. `model`,
  // `ops` and `kv` must outlive it.
  BenchSequences(TargetModel& model, Ops& ops, ModelKv& kv, const Shape& shape);

  // Rows of random tokens at positions [positions[s], positions[s] + rows) of sequence s; the best token after the last
  // one, as a server needs, or after every row of a block. Ends when the result is there.
  void step(std::span<const std::int64_t> positions, int rows, bool every_row, const TapRows& taps = {});
  // The same position for the first `count` sequences.
  void step(std::int64_t position, int rows, int count, bool every_row);

  void prefill(int length, int chunk);

  // Fills the context of all sequences with copies of the first page of the first one: what stands in it costs no time.
  void fill_context();

  // Of the last step, [sequences * rows].
  std::span<const std::int32_t> tokens() const { return tokens_; }
  std::int32_t random_token();

 private:
  TargetModel& model_;
  ModelKv& kv_;
  int page_size_;
  bool on_backend_;
  std::vector<std::vector<std::int32_t>> full_;
  std::vector<std::vector<std::int32_t>> window_;
  std::vector<std::int64_t> positions_;
  std::vector<SequenceRows> full_rows_;
  std::vector<SequenceRows> window_rows_;
  std::vector<std::int32_t> wanted_;
  std::vector<std::int32_t> tokens_;
  std::vector<float> logits_;
  std::vector<std::int32_t> best_;
  std::mt19937 random_{42};
  std::uniform_int_distribution<std::int32_t> pick_{0, 1 << 30};
};

}  // namespace mimo
