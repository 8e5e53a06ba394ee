#include "engine/sampling_params.h"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>

namespace mimo {
namespace {

using testing::HasSubstr;

constexpr int kVocab = 100;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

SamplingParams with(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  return params;
}

TEST(SamplingParams, DefaultsAreValid) { EXPECT_TRUE(validate({}, kVocab)); }

TEST(SamplingParams, EndsOfEachRangeAreValid) {
  using P = SamplingParams;
  for (const auto& change : std::vector<std::function<void(P&)>>{
           [](P& p) { p.temperature = 0; },
           [](P& p) { p.temperature = 2; },
           [](P& p) { p.top_k = -1; },
           [](P& p) { p.top_k = 0; },
           [](P& p) { p.top_k = std::int64_t{1} << 40; },
           [](P& p) { p.top_p = 1e-300; },
           [](P& p) { p.min_p = 1; },
           [](P& p) { p.repetition_penalty = 1e-9; },
           [](P& p) { p.repetition_penalty = 2; },
           [](P& p) { p.presence_penalty = p.frequency_penalty = -2; },
           [](P& p) { p.presence_penalty = p.frequency_penalty = 2; },
           [](P& p) {
             p.logit_bias = {{0, -100}, {kVocab - 1, 100}};
           },
           [](P& p) { p.max_tokens = 1; },
           [](P& p) { p.max_tokens = std::int64_t{1} << 31; },
           [](P& p) { p.max_tokens = p.min_tokens = 5; },
           [](P& p) { p.min_tokens = 5; },
           [](P& p) { p.stop = std::vector<std::string>(16, std::string(4096, 'x')); },
           [](P& p) {
             p.stop_token_ids = {0, kVocab - 1, 0};
           },
           [](P& p) { p.logprobs = 0; },
           [](P& p) { p.logprobs = 20; },
           [](P& p) { p.seed = ~std::uint64_t{0}; },
       }) {
    const Status status = validate(with(change), kVocab);
    EXPECT_TRUE(status) << status.error().message;
  }
}

TEST(SamplingParams, RefusalsNameFieldValueAndRange) {
  using P = SamplingParams;
  const struct {
    std::function<void(P&)> change;
    std::vector<const char*> parts;
  } cases[] = {
      {[](P& p) { p.temperature = -0.1; }, {"temperature", "-0.1", "from 0 to 2"}},
      {[](P& p) { p.temperature = 2.01; }, {"temperature", "2.01"}},
      {[](P& p) { p.temperature = kNan; }, {"temperature", "nan"}},
      {[](P& p) { p.temperature = kInf; }, {"temperature", "inf"}},
      {[](P& p) { p.top_k = -2; }, {"top_k", "-2", "off"}},
      {[](P& p) { p.top_p = 0; }, {"top_p", "got 0", "above 0 and at most 1"}},
      {[](P& p) { p.top_p = 1.5; }, {"top_p", "1.5"}},
      {[](P& p) { p.top_p = kNan; }, {"top_p", "nan"}},
      {[](P& p) { p.min_p = -1e-9; }, {"min_p", "-1e-09", "from 0 to 1"}},
      {[](P& p) { p.min_p = 1.1; }, {"min_p", "1.1"}},
      {[](P& p) { p.repetition_penalty = 0; }, {"repetition_penalty", "got 0"}},
      {[](P& p) { p.repetition_penalty = -kInf; }, {"repetition_penalty", "-inf"}},
      {[](P& p) { p.repetition_penalty = 2.5; }, {"repetition_penalty", "2.5", "at most 2"}},
      {[](P& p) { p.presence_penalty = 2.5; }, {"presence_penalty", "2.5", "from -2 to 2"}},
      {[](P& p) { p.frequency_penalty = kNan; }, {"frequency_penalty", "nan"}},
      {[](P& p) {
         p.logit_bias = {{-1, 1}};
       },
       {"logit_bias", "-1", "0 to 99"}},
      {[](P& p) {
         p.logit_bias = {{kVocab, 1}};
       },
       {"logit_bias", "100", "0 to 99"}},
      {[](P& p) {
         p.logit_bias = {{std::int64_t{1} << 31, 1}};
       },
       {"logit_bias", "2147483648"}},
      {[](P& p) {
         p.logit_bias = {{3, 1e9}};
       },
       {"logit_bias[3]", "1000000000", "-100 to 100"}},
      {[](P& p) {
         p.logit_bias = {{3, kNan}};
       },
       {"logit_bias[3]", "nan"}},
      {[](P& p) { p.max_tokens = 0; }, {"max_tokens", "got 0", "at least 1"}},
      {[](P& p) { p.max_tokens = -1; }, {"max_tokens", "-1"}},
      {[](P& p) { p.min_tokens = -1; }, {"min_tokens", "-1"}},
      {[](P& p) { p.max_tokens = 4, p.min_tokens = 5; }, {"min_tokens", "got 5", "max_tokens", "4"}},
      {[](P& p) {
         p.stop = {"a", ""};
       },
       {"stop[1]", "0 bytes"}},
      {[](P& p) { p.stop = {std::string(4097, 'x')}; }, {"stop[0]", "4097", "4096"}},
      {[](P& p) { p.stop = std::vector<std::string>(17, "x"); }, {"stop", "17", "16"}},
      {[](P& p) {
         p.stop_token_ids = {1, -1};
       },
       {"stop_token_ids", "-1", "0 to 99"}},
      {[](P& p) { p.stop_token_ids = {kVocab}; }, {"stop_token_ids", "100"}},
      {[](P& p) { p.stop_token_ids = std::vector<std::int64_t>(1025, 1); },
       {"stop_token_ids", "1025", "1024"}},
      {[](P& p) { p.logprobs = 21; }, {"logprobs", "21", "0 to 20"}},
      {[](P& p) { p.logprobs = -1; }, {"logprobs", "-1"}},
  };
  for (const auto& c : cases) {
    const Status status = validate(with(c.change), kVocab);
    ASSERT_FALSE(status) << c.parts[0] << " " << c.parts[1];
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    for (const char* part : c.parts) EXPECT_THAT(status.error().message, HasSubstr(part));
  }
}

}  // namespace
}  // namespace mimo
