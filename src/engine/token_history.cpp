#include "engine/token_history.h"

namespace mimo {

void TokenHistory::add_prompt(std::span<const int> ids) {
  for (const int id : ids) entry(id);
}

void TokenHistory::add_generated(int id) {
  ++entry(id).generated;
  ++generated_;
}

TokenHistory::Entry& TokenHistory::entry(int id) {
  const auto [found, inserted] = index_.try_emplace(id, entries_.size());
  if (inserted) entries_.push_back({id, 0});
  return entries_[found->second];
}

}  // namespace mimo
