// How often each token occurred in one request: what penalties and min_tokens look at.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace mimo {

// Sparse, because a request uses a small part of the vocabulary. Adding is O(1); reading visits distinct
// tokens.
class TokenHistory {
 public:
  struct Entry {
    int id;
    std::int32_t generated;  // occurrences in the answer; 0: in the prompt only
  };

  // May be left out when uses_penalties() is false.
  void add_prompt(std::span<const int> ids);

  // Every token of the answer, in order. Rows of one verification are sampled one after the other with the
  // accepted tokens added in between.
  void add_generated(int id);

  std::span<const Entry> entries() const {
    return entries_;
  }                                                      // distinct tokens, in order of first occurrence
  std::int64_t generated() const { return generated_; }  // length of the answer so far

 private:
  Entry& entry(int id);

  std::vector<Entry> entries_;
  std::unordered_map<int, std::size_t> index_;  // id -> place in entries_
  std::int64_t generated_ = 0;
};

}  // namespace mimo
