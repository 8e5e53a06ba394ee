// What speculation did, for one request or pooled over many (spec dflash 4.5).
#pragma once

#include <cstdint>
#include <vector>

namespace mimo {

struct SpeculationStats {
  std::int64_t verify_steps = 0;  // decoding steps that verified at least one draft
  std::int64_t plain_steps = 0;   // decoding steps without a draft
  std::int64_t proposed = 0;      // drafts verified
  // Drafts that were the target's own tokens. Those after a token that ended the answer are not looked at.
  std::int64_t accepted = 0;
  std::int64_t emitted = 0;   // tokens delivered by verify steps; never more than accepted + verify_steps
  std::int64_t pauses = 0;    // times that low acceptance stopped the drafting of a request
  std::int64_t failures = 0;  // requests whose drafting was switched off by an error
  std::vector<std::int64_t> accepted_histogram;  // [n]: verify steps with n drafts accepted
  std::vector<std::int64_t> proposed_histogram;  // [m]: verify steps with m drafts, entry 0 unused

  // One decoding step: `proposed` drafts verified, `emitted` tokens delivered.
  void record(int proposed, int accepted, int emitted);
  // Pools: counters are added, never ratios averaged.
  void add(const SpeculationStats& other);

  // Mean of (accepted + 1) over verify steps, the bonus token included: 1 is no draft accepted. 1 without a
  // step.
  double accept_length() const;
  // Accepted of proposed drafts; 0 without a proposal.
  double accept_rate() const;
  // Of the steps that verified an i-th draft (from 1), the part that accepted it.
  double survival(int i) const;
};

}  // namespace mimo
