#include <gtest/gtest.h>

#include "cuda/expert_cases.h"

namespace mimo::cuda::testing {
namespace {

struct Case {
  MlpFormat format;
  ActType type;
  int experts, hidden, inter, rows, top_k;
};

// Sums of fp32 products, then a sum of products of those: a few roundings of 2^-24 for each of sqrt(n) terms.
void run(const Case& c, unsigned seed) {
  if (small_cases() && c.hidden > 128) return;
  SCOPED_TRACE(::testing::Message() << "format " << static_cast<int>(c.format) << " type "
                                    << static_cast<int>(c.type) << " experts " << c.experts << " hidden "
                                    << c.hidden << " inter " << c.inter << " rows " << c.rows << " top_k "
                                    << c.top_k);
  std::mt19937 rng(seed);
  const HostBank bank(c.format, c.experts, c.hidden, c.inter, rng);
  const DeviceBank device(bank);
  Routing routing = random_routing(c.rows, c.experts, c.top_k, Spread::kRandom, rng);
  const bool dense = c.experts == 1;
  if (dense) std::fill(routing.weights.begin(), routing.weights.end(), 1.0f);
  std::vector<float> x =
      random_values(static_cast<std::size_t>(c.rows) * c.hidden, 1.0f, c.type == ActType::kBF16, rng);
  const std::vector<float> y0 = random_values(x.size(), 1.0f, false, rng);
  if (!dense) {  // a padding row
    for (int k = 0; k < c.top_k; ++k) routing.ids[(c.rows - 1) * c.top_k + k] = -1;
    for (int i = 0; i < c.hidden; ++i) x[static_cast<std::size_t>(c.rows - 1) * c.hidden + i] = NAN;
  }
  std::vector<double> y(y0.begin(), y0.end()), size(y.size());
  host_experts(bank, x, c.rows, c.top_k, routing, y, size);

  const DeviceArray<std::uint8_t> dx(as_type(x, c.type));
  const DeviceArray<std::int32_t> ids(routing.ids);
  const DeviceArray<float> weights(routing.weights), dy(y0);
  DeviceArray<std::uint8_t> workspace(plain_experts_workspace(c.rows, c.top_k, c.inter));
  workspace.fill(0xff);
  PlainExpertsArgs args;
  args.x = dx.get(), args.type = c.type;
  args.rows = c.rows, args.hidden = c.hidden, args.inter = c.inter, args.experts = c.experts,
  args.top_k = c.top_k;
  args.ids = dense ? nullptr : ids.get(), args.weights = dense ? nullptr : weights.get();
  args.gate = device.gate.view, args.up = device.up.view, args.down = device.down.view;
  args.y = dy.get(), args.workspace = reinterpret_cast<float*>(workspace.get());
  ok(launch_plain_experts(args, nullptr));
  ok(cudaDeviceSynchronize());
  const std::vector<float> got = dy.download();
  int bad = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double tolerance = 4e-6 * (size[i] + std::abs(y[i]));
    if (!(std::abs(got[i] - y[i]) <= tolerance) && ++bad < 4)
      ADD_FAILURE() << i << ": " << got[i] << " want " << y[i];
  }
  EXPECT_EQ(bad, 0);
}

TEST(ExpertsPlain, MatchesDouble) {
  unsigned seed = 1;
  for (MlpFormat f : {MlpFormat::kF32, MlpFormat::kBF16, MlpFormat::kFp8, MlpFormat::kMxfp4}) {
    for (ActType t : {ActType::kF32, ActType::kBF16}) {
      run({f, t, 8, 128, 64, 5, 2}, seed++);
      run({f, t, 8, 32, 96, 3, 3}, seed++);
      run({f, t, 5, 288, 160, 2, 5}, seed++);
      run({f, t, 1, 384, 544, 4, 1}, seed++);
    }
  }
}

TEST(ExpertsPlain, RefusesMixedFormats) {
  PlainExpertsArgs args;
  args.rows = 1, args.hidden = args.inter = 32;
  args.up.format = MlpFormat::kFp8;
  EXPECT_EQ(launch_plain_experts(args, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace mimo::cuda::testing
