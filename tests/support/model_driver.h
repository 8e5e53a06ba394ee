// Runs a target model the way a test wants it: any chunking, any page size, poisoned pages.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/sequence_pages.h"
#include "model/target.h"

namespace mimo {

struct DriverOptions {
  KvDType kv = KvDType::kBF16;
  int page_size = 16;
  bool poison = true;          // NaN in every page before use and after it left the window
  std::int64_t tokens = 4096;  // capacity
};

class ModelDriver {
 public:
  ModelDriver(const std::string& directory, std::unique_ptr<Ops> ops, const DriverOptions& options);

  // A new empty sequence; its number.
  int add_sequence();

  // One ragged step: tokens[i] go to sequences[i]. Logits of every row, [rows, vocab].
  std::vector<float> step(const std::vector<int>& sequences,
                          const std::vector<std::vector<std::int32_t>>& tokens, const TapRows& taps = {});

  // Greedy continuation of a prompt prefilled in chunks.
  std::vector<std::int32_t> greedy(std::span<const std::int32_t> prompt, int count, int chunk);

  const TargetModel& model() const { return *model_; }
  int vocab() const { return model_->config().vocab; }
  std::int64_t free_pages() const { return full_.free_pages() + window_.free_pages(); }

 private:
  DriverOptions options_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<TargetModel> model_;
  std::unique_ptr<ModelKv> kv_;
  PagePool full_;
  PagePool window_;
  std::vector<std::unique_ptr<SequencePages>> sequences_;
};

// Index of the largest value; the lowest on ties.
std::int32_t argmax(std::span<const float> row);

}  // namespace mimo
