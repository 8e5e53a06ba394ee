// The whole loop with a drafter that computes: MTP heads with random weights on a random model.

#include <gtest/gtest.h>

#include "engine/generator_fixture.h"
#include "model/mtp.h"

namespace mimo {
namespace {

using mimo::testing::expect_counted;
using mimo::testing::expect_same_answers;
using mimo::testing::ids_of;
using mimo::testing::make_request;
using mimo::testing::random_prompt;
using mimo::testing::value_or_throw;
using mimo::testing::vary_sampling;

// A vocabulary so small that random drafts are accepted now and then.
constexpr int kVocab = 16;

class GeneratorMtp : public ::testing::Test {
 protected:
  GeneratorMtp() {
    ModelConfig config = value_or_throw(load_config(std::string(MIMO_SOURCE_DIR) + "/models/tiny"));
    config.vocab = kVocab;
    config.mtp_heads = 3;
    config.eos_token_ids = {0};
    ops_ = value_or_throw(make_cpu_ops({.threads = 1, .pin = false}));
    source_ = value_or_throw(open_random(config, 11));
    model_ = std::make_unique<TargetModel>(value_or_throw(TargetModel::load(*source_, *ops_, {})));
  }
  std::unique_ptr<MtpDrafter> drafter(int heads = 3, int requests = 16) {
    return value_or_throw(
        MtpDrafter::load(*source_, *model_, *ops_,
                         {.heads = heads, .max_requests = requests, .page_size = 16, .poison = true}));
  }
  std::vector<GenerateResult> run(const std::vector<GenerateRequest>& requests, GeneratorOptions options) {
    options.log = [this](std::string_view line) { log_.emplace_back(line); };
    Generator generator(*model_, *ops_, options);
    return value_or_throw(generator.run(requests, {}));
  }
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<WeightSource> source_;
  std::unique_ptr<TargetModel> model_;
  std::vector<std::string> log_;
};

TEST_F(GeneratorMtp, SameAnswersAsWithout) {
  std::vector<GenerateRequest> requests;
  for (unsigned i = 0; i < 16; ++i) {
    requests.push_back(make_request(random_prompt(3 + 17 * i, i, kVocab), 20 + 2 * i));
    vary_sampling(requests.back(), i);
    requests.back().params.logit_bias.clear();
  }
  const std::vector<GenerateResult> plain = run(requests, {});
  for (const int heads : {1, 3}) {
    for (const int running : {1, 16}) {
      const std::unique_ptr<MtpDrafter> mtp = drafter(heads, running);
      const std::vector<GenerateResult> got = run(requests, {.page_size = 16,
                                                             .chunk = running == 1 ? 512 : 90,
                                                             .max_running = running,
                                                             .drafter = mtp.get(),
                                                             .speculation = {.min_accept_length = 0},
                                                             .poison = true});
      expect_same_answers(got, plain);
      SpeculationStats pooled;
      for (const GenerateResult& result : got) {
        expect_counted(result);
        pooled.add(result.speculation);
      }
      EXPECT_GT(pooled.accepted, 0) << "some drafts must be right for this test to mean anything";
      EXPECT_LT(pooled.accepted, pooled.proposed);
      EXPECT_EQ(pooled.failures, 0);
    }
  }
}

// C32: long A, then short B in its slot; answers and counters of B are those of B alone.
TEST_F(GeneratorMtp, TheSlotOfAnotherRequest) {
  const GenerateRequest a = make_request(random_prompt(300, 1, kVocab), 60);
  const GenerateRequest b = make_request(random_prompt(20, 2, kVocab), 40);
  const std::unique_ptr<MtpDrafter> used = drafter(3, 1);
  const GeneratorOptions options{.max_running = 1, .speculation = {.min_accept_length = 0}};
  GeneratorOptions with = options;
  with.drafter = used.get();
  const GenerateResult after_a = run({a, b}, with)[1];
  const std::unique_ptr<MtpDrafter> fresh = drafter(3, 1);
  with.drafter = fresh.get();
  const GenerateResult alone = run({b}, with)[0];
  EXPECT_EQ(ids_of(after_a), ids_of(alone));
  EXPECT_EQ(after_a.speculation.accepted_histogram, alone.speculation.accepted_histogram);
  EXPECT_EQ(after_a.speculation.proposed, alone.speculation.proposed);
}

// More requests at once than the drafter has room for: the others run without it, and say so.
TEST_F(GeneratorMtp, MoreRequestsThanStates) {
  std::vector<GenerateRequest> requests;
  for (unsigned i = 0; i < 3; ++i) requests.push_back(make_request(random_prompt(9, i, kVocab), 15));
  const std::vector<GenerateResult> plain = run(requests, {});
  const std::unique_ptr<MtpDrafter> mtp = drafter(3, 2);
  const std::vector<GenerateResult> got = run(requests, {.drafter = mtp.get()});
  expect_same_answers(got, plain);
  EXPECT_EQ(got[2].speculation.failures, 1);
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_NE(log_[0].find("request 2 goes on without MTP"), std::string::npos) << log_[0];
}

}  // namespace
}  // namespace mimo
