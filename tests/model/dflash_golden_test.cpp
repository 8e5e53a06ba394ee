// The drafter against outputs of the DFlash authors' public implementation (a plain drafter: full attention, all
// dims rotated, no sinks, no value scale), on the small golden target.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/dflash_rig.h"
#include "ops/backends.h"
#include "ops/reference/reference_ops.h"
#include "support/model_driver.h"

namespace mimo {
namespace {

using namespace mimo::testing;

template <class T>
std::vector<T> tensor(const std::string& name) {
  const SafetensorsFile file =
      unwrap(SafetensorsFile::open(golden_directory("v26_tiny") + "/dflash/golden_dflash.safetensors"));
  const TensorInfo* info = file.find(name);
  if (info == nullptr) throw std::runtime_error("no tensor " + name);
  std::vector<T> out(info->bytes / sizeof(T));
  std::memcpy(out.data(), file.data(*info), info->bytes);
  return out;
}

double relative(std::span<const float> got, const std::vector<float>& expected) {
  double error = 0;
  double total = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - expected[i], 2);
    total += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(error / total);
}

// One target and the golden drafter on it, run together.
class Speculation {
 public:
  Speculation(const std::function<std::unique_ptr<Ops>()>& make, KvDType kv)
      : driver_(golden_directory("v26_tiny"), make(), {.kv = kv}),
        rig_(make(), golden_directory("v26_tiny") + "/dflash", {.page_size = 16, .kv = kv, .poison = true}),
        state_(rig_.open(2048)),
        sequence_(driver_.add_sequence()) {}

  // Runs tokens at the end of the sequence and returns their logits; taps are kept for commit().
  std::vector<float> step(const std::vector<std::int32_t>& tokens) {
    taps_.resize(tokens.size() * rig_.tap_width());
    return driver_.step({sequence_}, {tokens}, {.indices = rig_.drafter().taps(), .out = taps_});
  }
  void commit(int rows) {
    const DraftObservation seen{state_.get(), 0, rows, length_, {}};
    rig_.drafter().observe({&seen, 1}, taps_);
    length_ += rows;
  }
  std::vector<std::int32_t> draft(std::int32_t anchor) {
    std::vector<std::int32_t> ids(7);
    std::vector<float> confidence(7);
    DraftRequest request{state_.get(), anchor, length_, ids, confidence};
    rig_.drafter().draft({&request, 1});
    EXPECT_FALSE(request.failed);
    return ids;
  }
  std::vector<float> block(std::int32_t anchor) { return rig_.block(*state_, anchor, length_); }
  DFlashRig& rig() { return rig_; }

 private:
  ModelDriver driver_;
  DFlashRig rig_;
  std::unique_ptr<DraftState> state_;
  int sequence_;
  std::vector<float> taps_;
  std::int64_t length_ = 0;
};

void check_block(const std::function<std::unique_ptr<Ops>()>& make, double hidden_bound, double logit_bound) {
  Speculation run(make, KvDType::kF32);
  const Golden golden = unwrap(load_golden(golden_directory("v26_tiny")));
  const auto length = static_cast<std::ptrdiff_t>(tensor<std::int32_t>("context_len").at(0));
  const std::int32_t anchor = tensor<std::int32_t>("anchor").at(0);
  run.step({golden.input_ids.begin(), golden.input_ids.begin() + length});
  run.commit(static_cast<int>(length));
  const std::vector<float> hidden = run.block(anchor);
  EXPECT_LT(relative(hidden, tensor<float>("draft_hidden")), hidden_bound);
  std::vector<float> logits(7 * 1024);
  run.rig().target().lm_head(reinterpret_cast<const Act*>(hidden.data()), 7, logits.data());
  EXPECT_LT(relative(logits, tensor<float>("draft_logits")), logit_bound);
  EXPECT_EQ(run.draft(anchor), tensor<std::int32_t>("draft_ids"));
}

std::unique_ptr<Ops> exact_cpu() {
  return unwrap(make_cpu_ops({.threads = 2, .pin = false, .precision = ActivationPrecision::kExact}));
}

TEST(DFlashGolden, ReferenceReproducesTheBlock) {
  check_block([] { return make_reference_ops(); }, 2e-6, 2e-6);
}
TEST(DFlashGolden, CpuExactReproducesTheBlock) { check_block(exact_cpu, 3e-5, 3e-5); }

// The authors' own speculative run: draft, verify, keep what the target would have said.
TEST(DFlashGolden, ReproducesTheSpeculativeRun) {
  Speculation run(exact_cpu, KvDType::kF32);
  const std::vector<std::int32_t> expected = tensor<std::int32_t>("generate_ids");
  const std::vector<std::int32_t> lengths = tensor<std::int32_t>("accept_lengths");
  const auto prompt = static_cast<std::ptrdiff_t>(tensor<std::int32_t>("generate_prompt_len").at(0));
  std::vector<float> logits = run.step({expected.begin(), expected.begin() + prompt});
  run.commit(static_cast<int>(prompt));
  std::vector<std::int32_t> ids(expected.begin(), expected.begin() + prompt);
  ids.push_back(argmax(std::span(logits).last(1024)));
  std::vector<std::int32_t> accepted;
  // The random drafter is never right, so that every step commits one row: a second sequence position for the
  // rejected ones would need the target's rollback, which is the engine's matter.
  while (ids.size() < expected.size() && accepted.size() < lengths.size()) {
    const std::vector<std::int32_t> drafts = run.draft(ids.back());
    logits = run.step({ids.back()});
    const std::int32_t next = argmax(std::span(logits).first(1024));
    ASSERT_NE(drafts[0], next);
    run.commit(1);
    ids.push_back(next);
    accepted.push_back(1);
  }
  EXPECT_EQ(ids, (std::vector<std::int32_t>(expected.begin(),
                                            expected.begin() + static_cast<std::ptrdiff_t>(ids.size()))));
  EXPECT_EQ(accepted, (std::vector<std::int32_t>(
                          lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(accepted.size()))));
  EXPECT_GE(accepted.size(), 40u);
}

}  // namespace
}  // namespace mimo
