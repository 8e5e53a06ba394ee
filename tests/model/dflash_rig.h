// A small random drafter beside the small golden target, fed with made-up taps: what a drafter computes depends
// on its taps and anchors only, so no forward pass of the target is needed.
#pragma once

#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "checkpoint/weight_source.h"
#include "model/dflash.h"
#include "model/target.h"
#include "support/checkpoint_writer.h"
#include "support/golden.h"
#include "support/tiny_drafter.h"

namespace mimo::testing {

template <class T>
T unwrap(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

class DFlashRig {
 public:
  DFlashRig(std::unique_ptr<Ops> ops, const TinyDrafter& drafter, const DFlashDrafter::Options& options)
      : DFlashRig(std::move(ops)) {
    drafter.write(dir_.path());
    load(dir_.path(), options);
  }
  DFlashRig(std::unique_ptr<Ops> ops, const std::string& directory, const DFlashDrafter::Options& options)
      : DFlashRig(std::move(ops)) {
    load(directory, options);
  }

  DFlashDrafter& drafter() { return *drafter_; }
  const TargetModel& target() const { return *target_; }
  Ops& ops() { return *ops_; }
  std::size_t tap_width() const {
    return drafter_->taps().size() * static_cast<std::size_t>(target_->config().hidden);
  }

  std::unique_ptr<DraftState> open(std::int64_t max_tokens = 4096) {
    return unwrap(drafter_->open(max_tokens));
  }
  // Observes rows of `taps` [positions, tap_width] as positions [begin, end), at most `chunk` a call.
  void observe(DraftState& state, const std::vector<float>& taps, std::int64_t begin, std::int64_t end,
               std::int64_t chunk = 1 << 30) {
    for (std::int64_t at = begin; at < end; at += chunk) {
      const auto rows = static_cast<int>(std::min(chunk, end - at));
      const std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows) + 1, 0);
      const DraftObservation seen{&state, 0, rows, at, tokens};
      drafter_->observe({&seen, 1}, std::span(taps).subspan(static_cast<std::size_t>(at) * tap_width()));
    }
  }
  // Hidden rows 1 .. block - 1 of a draft, flat.
  std::vector<float> block(DraftState& state, std::int32_t anchor, std::int64_t position) {
    std::vector<std::int32_t> drafts(static_cast<std::size_t>(drafter_->max_drafts()));
    const DraftRequest request{&state, anchor, position, drafts, {}, false};
    // The CPU's activations are fp32.
    const auto* rows = reinterpret_cast<const float*>(drafter_->run_blocks({&request, 1}));
    return {rows, rows + drafts.size() * static_cast<std::size_t>(target_->config().hidden)};
  }
  std::vector<float> embedding(std::int32_t id) const {
    std::vector<float> row(static_cast<std::size_t>(target_->config().hidden));
    target_->embed(&id, 1, row.data());
    return row;
  }

 private:
  explicit DFlashRig(std::unique_ptr<Ops> ops) : ops_(std::move(ops)) {
    const auto source = unwrap(open_checkpoint(golden_directory("v26_tiny"), {}));
    target_ = std::make_unique<TargetModel>(unwrap(TargetModel::load(*source, *ops_, {})));
  }
  void load(const std::string& directory, const DFlashDrafter::Options& options) {
    drafter_ = unwrap(DFlashDrafter::load(directory, *target_, *ops_, options));
  }

  TempDir dir_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<TargetModel> target_;
  std::unique_ptr<DFlashDrafter> drafter_;
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace mimo::testing
