#include <gtest/gtest.h>

#include <cstring>

#include "cuda/expert_cases.h"
#include "ops/cuda/kernels/experts.h"
#include "ops/cuda/kernels/experts_prefill.h"
#include "ops/cuda/kernels/moe_bases.h"
#include "ops/cuda/kernels/moe_pack.h"
#include "ops/cuda/kernels/moe_plan.h"

namespace mimo::cuda::testing {
namespace {

struct PackedBank {
  DeviceArray<std::uint8_t> gate_up, down, bases;
  PackedExperts view;
  int wide_rows = 0;  // with scales too far apart for E4M3 weights
  explicit PackedBank(const HostBank& h)
      : gate_up(h.experts * moe_gate_up_bytes(h.hidden, h.inter)),
        down(h.experts * moe_down_bytes(h.hidden, h.inter)),
        bases(moe_bases_bytes(h.experts, h.hidden, h.inter)) {
    gate_up.fill(0xff), down.fill(0xff);
    const DeviceBank raw(h);
    const auto rows = [](const DeviceMatrix& m, const HostMatrix& host, int e) {
      return Mxfp4Rows{
          static_cast<const std::uint8_t*>(m.view.data) + e * m.view.expert_stride, host.cols / 2,
          static_cast<const std::uint8_t*>(m.view.scales) + e * m.view.scale_expert_stride, host.cols / 32};
    };
    for (int e = 0; e < h.experts; ++e) {
      ok(launch_pack_expert(rows(raw.gate, h.gate, e), rows(raw.up, h.up, e), rows(raw.down, h.down, e),
                            h.hidden, h.inter, gate_up.get() + e * moe_gate_up_bytes(h.hidden, h.inter),
                            down.get() + e * moe_down_bytes(h.hidden, h.inter), nullptr));
    }
    const DeviceArray<std::int32_t> wide(std::vector<std::int32_t>{0});
    ok(launch_moe_bases(gate_up.get(), down.get(), h.experts, h.hidden, h.inter, bases.get(), wide.get(),
                        nullptr));
    ok(cudaDeviceSynchronize());
    wide_rows = wide.download()[0];
    view = {gate_up.get(), down.get(), h.experts, h.hidden, h.inter, bases.get()};
  }
};

std::vector<float> run_experts(const PackedExperts& bank, const std::vector<float>& x, int rows, int top_k,
                               const Routing& routing, const std::vector<float>& y0, ExpertsTuning tuning) {
  const DeviceArray<std::uint8_t> dx(as_type(x, ActType::kBF16));
  const DeviceArray<std::int32_t> ids(routing.ids);
  const DeviceArray<float> weights(routing.weights), y(y0);
  DeviceArray<std::uint8_t> workspace(experts_workspace(rows, top_k, bank.hidden, bank.inter));
  DeviceArray<std::uint8_t> plan(moe_plan_bytes(rows, top_k, bank.experts, kExpertsGroupRows));
  workspace.fill(0xff), plan.fill(0xff);
  ExpertsArgs args;
  args.x = dx.get(), args.rows = rows, args.top_k = top_k, args.ids = ids.get(), args.weights = weights.get();
  args.bank = bank, args.y = y.get(), args.workspace = workspace.get(), args.tuning = tuning;
  args.plan = moe_plan_in(plan.get(), rows, top_k, bank.experts, kExpertsGroupRows);
  ok(launch_moe_plan({ids.get(), rows, top_k, bank.experts, kExpertsGroupRows, args.plan}, nullptr));
  ok(launch_experts(args, nullptr));
  ok(cudaDeviceSynchronize());
  return y.download();
}

std::vector<float> run_prefill(const PackedExperts& bank, ExpertActivations activations, int cut,
                               const std::vector<float>& x, int rows, int top_k, const Routing& routing,
                               const std::vector<float>& y0) {
  const int group = prefill_group_rows(activations, cut);
  const DeviceArray<std::uint8_t> dx(as_type(x, ActType::kBF16));
  const DeviceArray<std::int32_t> ids(routing.ids);
  const DeviceArray<float> weights(routing.weights), y(y0);
  DeviceArray<std::uint8_t> workspace(
      prefill_experts_workspace(activations, rows, top_k, bank.hidden, bank.inter));
  DeviceArray<std::uint8_t> plan(moe_plan_bytes(rows, top_k, bank.experts, group));
  workspace.fill(0xff), plan.fill(0xff);
  PrefillExpertsArgs args;
  args.x = dx.get(), args.rows = rows, args.top_k = top_k, args.ids = ids.get(), args.weights = weights.get();
  args.bank = bank, args.y = y.get(), args.workspace = workspace.get();
  args.activations = activations, args.cut = cut;
  args.plan = moe_plan_in(plan.get(), rows, top_k, bank.experts, group);
  ok(launch_moe_plan({ids.get(), rows, top_k, bank.experts, group, args.plan}, nullptr));
  ok(launch_prefill_experts(args, nullptr));
  ok(cudaDeviceSynchronize());
  return y.download();
}

struct Case {
  int experts, hidden, inter, rows, top_k;
  Spread spread;
};

void run(const Case& c, unsigned seed, int down_scale_shift = 0, bool prefill = false) {
  SCOPED_TRACE(::testing::Message() << "experts " << c.experts << " hidden " << c.hidden << " inter "
                                    << c.inter << " rows " << c.rows << " top_k " << c.top_k << " spread "
                                    << static_cast<int>(c.spread));
  if (small_cases() && (c.rows > 9 || c.hidden > 256 || c.inter > 256)) return;
  std::mt19937 rng(seed);
  HostBank bank(MlpFormat::kMxfp4, c.experts, c.hidden, c.inter, rng);
  for (std::uint8_t& s : bank.down.scales) s = static_cast<std::uint8_t>(s + down_scale_shift);
  for (float& v : bank.down.values) v = std::ldexp(v, down_scale_shift);
  const PackedBank packed(bank);
  Routing routing = random_routing(c.rows, c.experts, c.top_k, c.spread, rng);
  std::vector<float> x = random_values(static_cast<std::size_t>(c.rows) * c.hidden, 1.0f, true, rng);
  std::vector<float> y0 = random_values(x.size(), 1.0f, false, rng);
  for (float& v : y0) v = std::ldexp(v, down_scale_shift);
  if (c.rows > 2) {  // padding rows
    for (int k = 0; k < c.top_k; ++k) routing.ids[c.top_k + k] = k % 2 == 0 ? -1 : c.experts;
    for (int i = 0; i < c.hidden; ++i) x[c.hidden + i] = NAN;
  }
  Routing valid = routing;
  for (std::int32_t& id : valid.ids) id = id < c.experts ? id : -1;
  std::vector<double> y(y0.begin(), y0.end()), size(y.size());
  host_experts(bank, x, c.rows, c.top_k, valid, y, size);

  constexpr auto kBF16 = ExpertActivations::kBF16;
  const std::vector<float> got = prefill
                                     ? run_prefill(packed.view, kBF16, 0, x, c.rows, c.top_k, routing, y0)
                                     : run_experts(packed.view, x, c.rows, c.top_k, routing, y0, {2, 16, 0});
  // silu(gate) * up is rounded to bf16: 2^-9 of each term of down's sums at worst, and much less on average. Prefill
  // rounds each expert's output as well.
  int bad = 0;
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double tolerance = size[i] * ((prefill ? 2.0 : 1.0) / 512 + 1e-5) + 1e-6 * std::abs(y[i]);
    if (!(std::abs(got[i] - y[i]) <= tolerance) && ++bad < 4)
      ADD_FAILURE() << i << ": " << got[i] << " want " << y[i];
    if (size[i] > 0) error += (got[i] - y[i]) * (got[i] - y[i]), norm += (y[i] - y0[i]) * (y[i] - y0[i]);
  }
  EXPECT_EQ(bad, 0);
  EXPECT_LT(std::sqrt(error / norm), prefill ? 3.5e-3 : 2.5e-3);

  for (int cut = 1; prefill && cut < kPrefillCuts; ++cut) {
    const std::vector<float> other = run_prefill(packed.view, kBF16, cut, x, c.rows, c.top_k, routing, y0);
    EXPECT_EQ(std::memcmp(got.data(), other.data(), got.size() * 4), 0) << cut;
  }
  for (const ExpertsTuning& t : {ExpertsTuning{4, 8, 0}, {2, 16, 2}, {1, 16, 0}, {1, 16, 3}}) {
    if (prefill) break;
    const std::vector<float> other = run_experts(packed.view, x, c.rows, c.top_k, routing, y0, t);
    EXPECT_EQ(std::memcmp(got.data(), other.data(), got.size() * 4), 0)
        << t.tiles << ' ' << t.warps << ' ' << t.stages;
  }
  for (int r = 0; r < c.rows; r += std::max(1, c.rows / 3)) {
    const auto part = [&](const auto& v, int width) {
      return std::decay_t<decltype(v)>(v.begin() + static_cast<std::ptrdiff_t>(r) * width,
                                       v.begin() + static_cast<std::ptrdiff_t>(r + 1) * width);
    };
    const Routing one{part(routing.ids, c.top_k), part(routing.weights, c.top_k)};
    const std::vector<float> alone =
        prefill
            ? run_prefill(packed.view, kBF16, 2, part(x, c.hidden), 1, c.top_k, one, part(y0, c.hidden))
            : run_experts(packed.view, part(x, c.hidden), 1, c.top_k, one, part(y0, c.hidden), {2, 16, 0});
    EXPECT_EQ(
        std::memcmp(alone.data(), got.data() + static_cast<std::size_t>(r) * c.hidden, alone.size() * 4), 0)
        << r;
  }
}

TEST(Experts, Small) {
  unsigned seed = 1;
  for (int rows : {1, 2, 3, 8, 9, 17, 40}) {
    run({8, 128, 128, rows, 2, Spread::kRandom}, seed++);
    run({8, 256, 384, rows, 3, Spread::kOneSet}, seed++);
    run({5, 384, 256, rows, 2, Spread::kHalf}, seed++);
  }
}

TEST(Experts, Shapes) {
  unsigned seed = 100;
  run({8, 1024, 256, 20, 8, Spread::kRandom}, seed++);
  run({16, 512, 640, 33, 8, Spread::kHalf}, seed++);
  run({16, 1152, 512, 5, 4, Spread::kRandom}, seed++);
  run({12, 1024, 1024, 4, 3, Spread::kRandom}, seed++);
  run({8, 6144, 128, 9, 8, Spread::kRandom}, seed++);
  run({300, 128, 128, 130, 8, Spread::kRandom}, seed++);
  run({4, 2048, 2048, 3, 1, Spread::kRandom}, seed++);
}

TEST(Experts, ScalesFarFromOne) {
  run({4, 256, 128, 5, 2, Spread::kRandom}, 7, 60);
  run({4, 256, 128, 5, 2, Spread::kRandom}, 8, -48);
}

TEST(PrefillExperts, OneShape) { run({4, 256, 256, 40, 2, Spread::kRandom}, 199, 0, true); }

TEST(PrefillExperts, Shapes) {
  unsigned seed = 200;
  for (int rows : {1, 7, 40, 130}) {
    run({8, 128, 128, rows, 2, Spread::kRandom}, seed++, 0, true);
    run({8, 256, 384, rows, 3, Spread::kOneSet}, seed++, 0, true);
    run({5, 384, 256, rows, 2, Spread::kHalf}, seed++, 0, true);
  }
  run({4, 128, 256, 300, 2, Spread::kOneSet}, seed++, 0, true);
  run({8, 1024, 512, 60, 8, Spread::kRandom}, seed++, 0, true);
  run({16, 512, 640, 90, 8, Spread::kHalf}, seed++, 0, true);
  run({4, 2048, 2048, 3, 1, Spread::kRandom}, seed++, 0, true);
  run({4, 256, 128, 5, 2, Spread::kRandom}, seed++, 60, true);
}

// A row as E4M3 values times the row's scale.
std::vector<float> quantised(const std::vector<float>& v) {
  float largest = 1e-10f;
  for (float f : v) largest = std::max(largest, std::abs(f));
  const float inverse = 448.0f / largest, scale = largest / 448.0f;
  std::vector<float> out;
  for (float f : v) out.push_back(static_cast<float>(__nv_fp8_e4m3(f * inverse)) * scale);
  return out;
}

// host_experts with the quantised rows of the E4M3 kernels.
void host_fp8(const HostBank& bank, const std::vector<float>& x, int rows, int top_k, const Routing& routing,
              std::vector<double>& y) {
  const int hidden = bank.hidden, inter = bank.inter;
  for (int r = 0; r < rows; ++r) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(r) * hidden;
    const std::vector<float> xr = quantised({begin, begin + hidden});
    for (int k = 0; k < top_k; ++k) {
      const int e = routing.ids[r * top_k + k];
      if (e < 0) continue;
      std::vector<float> h(inter);
      for (int j = 0; j < inter; ++j) {
        const float* g = bank.gate.values.data() + (static_cast<std::size_t>(e) * inter + j) * hidden;
        const float* u = bank.up.values.data() + (static_cast<std::size_t>(e) * inter + j) * hidden;
        double gs = 0, us = 0;
        for (int c = 0; c < hidden; ++c)
          gs += static_cast<double>(g[c]) * xr[c], us += static_cast<double>(u[c]) * xr[c];
        h[j] = bf16_round(static_cast<float>(gs / (1 + std::exp(-gs)) * us));
      }
      h = quantised(h);
      for (int o = 0; o < hidden; ++o) {
        const float* d = bank.down.values.data() + (static_cast<std::size_t>(e) * hidden + o) * inter;
        double sum = 0;
        for (int j = 0; j < inter; ++j) sum += static_cast<double>(d[j]) * h[j];
        y[static_cast<std::size_t>(r) * hidden + o] += routing.weights[r * top_k + k] * sum;
      }
    }
  }
}

double difference(const std::vector<float>& got, const std::vector<double>& want,
                  const std::vector<float>& y0) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += (want[i] - y0[i]) * (want[i] - y0[i]);
  }
  return std::sqrt(error / norm);
}

// How the bank's scales are bent before packing.
enum class Bend { kNone, kSpan, kZeroBlocks, kTooWide };

void bend(HostMatrix& m, Bend how, std::mt19937& rng) {
  const std::size_t blocks = static_cast<std::size_t>(m.cols) / 32;
  for (std::size_t b = 0; b < m.scales.size(); ++b) {
    if (how == Bend::kNone) continue;
    const bool zero = how == Bend::kZeroBlocks && rng() % 4 == 0;
    int shift = static_cast<int>(rng() % (how == Bend::kTooWide ? 16u : 11u));  // they spread over 4 already
    if (b % blocks == 0) shift = how == Bend::kTooWide ? 19 : 10;
    m.scales[b] = static_cast<std::uint8_t>(zero ? rng() % 200 : m.scales[b] - shift);
    for (std::size_t i = b * 32; i < b * 32 + 32; ++i) {
      m.values[i] = zero ? 0 : std::ldexp(m.values[i], -shift);
      if (zero && i % 2 == 0) m.data[i / 2] = rng() % 2 == 0 ? 0x80 : 0;
    }
  }
}

// `sparse`: one value a row of x is not 0: then the first sums are single weights, which shows whether those are exact.
void run_fp8_case(const Case& c, unsigned seed, Bend how = Bend::kNone, int down_scale_shift = 0,
                  bool sparse = false) {
  SCOPED_TRACE(::testing::Message() << "experts " << c.experts << " hidden " << c.hidden << " inter "
                                    << c.inter << " rows " << c.rows << " top_k " << c.top_k << " spread "
                                    << static_cast<int>(c.spread) << " bend " << static_cast<int>(how));
  std::mt19937 rng(seed);
  HostBank bank(MlpFormat::kMxfp4, c.experts, c.hidden, c.inter, rng);
  for (HostMatrix* m : {&bank.gate, &bank.up, &bank.down}) bend(*m, how, rng);
  for (std::uint8_t& s : bank.down.scales) s = static_cast<std::uint8_t>(s + down_scale_shift);
  for (float& v : bank.down.values) v = std::ldexp(v, down_scale_shift);
  const PackedBank packed(bank);
  if (how == Bend::kTooWide) {
    EXPECT_GT(packed.wide_rows, 0);
    return;
  }
  EXPECT_EQ(packed.wide_rows, 0);
  Routing routing = random_routing(c.rows, c.experts, c.top_k, c.spread, rng);
  std::vector<float> x = random_values(static_cast<std::size_t>(c.rows) * c.hidden, 1.0f, true, rng);
  for (int r = 0; sparse && r < c.rows; ++r) {
    const int at = static_cast<int>(rng() % static_cast<unsigned>(c.hidden));
    for (int i = 0; i < c.hidden; ++i) x[static_cast<std::size_t>(r) * c.hidden + i] = i == at ? 64.0f : 0.0f;
  }
  std::vector<float> y0 = random_values(x.size(), 1.0f, false, rng);
  for (float& v : y0) v = std::ldexp(v, down_scale_shift);
  if (c.rows > 2) {  // padding rows
    for (int k = 0; k < c.top_k; ++k) routing.ids[c.top_k + k] = k % 2 == 0 ? -1 : c.experts;
    for (int i = 0; i < c.hidden; ++i) x[c.hidden + i] = NAN;
  }
  Routing valid = routing;
  for (std::int32_t& id : valid.ids) id = id < c.experts ? id : -1;
  std::vector<double> y(y0.begin(), y0.end()), size(y.size()), model = y;
  host_experts(bank, x, c.rows, c.top_k, valid, y, size);
  host_fp8(bank, x, c.rows, c.top_k, valid, model);
  std::vector<float> first;
  constexpr auto kFp8 = ExpertActivations::kFp8;
  for (int cut = 0; cut < kPrefillCuts; ++cut) {
    const std::vector<float> got = run_prefill(packed.view, kFp8, cut, x, c.rows, c.top_k, routing, y0);
    if (cut == 0) {
      first = got;
      const double exact = difference(got, y, y0), modelled = difference(got, model, y0);
      std::printf("E4M3 %d x %d: error %.2e, beyond quantisation %.2e\n", c.hidden, c.inter, exact, modelled);
      EXPECT_LT(exact, 6e-2);
      // What sums of less than fp32 turn into another E4M3 value of silu(gate) * up counts for a whole step of it.
      EXPECT_LT(modelled, sparse ? 3e-3 : how == Bend::kNone ? 1e-2 : 2.5e-2);
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_FALSE(std::isnan(got[i])) << i;
    }
    EXPECT_EQ(std::memcmp(got.data(), first.data(), got.size() * 4), 0) << cut;
  }
  for (int r = 0; r < c.rows; r += std::max(1, c.rows / 3)) {
    const auto part = [&](const auto& v, int width) {
      return std::decay_t<decltype(v)>(v.begin() + static_cast<std::ptrdiff_t>(r) * width,
                                       v.begin() + static_cast<std::ptrdiff_t>(r + 1) * width);
    };
    const Routing one{part(routing.ids, c.top_k), part(routing.weights, c.top_k)};
    const std::vector<float> alone =
        run_prefill(packed.view, kFp8, 1, part(x, c.hidden), 1, c.top_k, one, part(y0, c.hidden));
    EXPECT_EQ(
        std::memcmp(alone.data(), first.data() + static_cast<std::size_t>(r) * c.hidden, alone.size() * 4), 0)
        << r;
  }
}

TEST(Fp8Experts, Shapes) {
  unsigned seed = 300;
  for (int rows : {1, 7, 40, 130}) {
    run_fp8_case({8, 128, 128, rows, 2, Spread::kRandom}, seed++);
    run_fp8_case({8, 256, 384, rows, 3, Spread::kOneSet}, seed++);
    run_fp8_case({5, 384, 256, rows, 2, Spread::kHalf}, seed++);
  }
  run_fp8_case({4, 128, 256, 300, 2, Spread::kOneSet}, seed++);
  run_fp8_case({8, 1024, 512, 24, 8, Spread::kRandom}, seed++);
  run_fp8_case({16, 512, 640, 40, 8, Spread::kHalf}, seed++);
  run_fp8_case({4, 4096, 2048, 3, 1, Spread::kRandom}, seed++);
}

TEST(Fp8Experts, OneShape) { run_fp8_case({4, 256, 256, 40, 2, Spread::kRandom}, 299); }

TEST(Fp8Experts, Scales) {
  run_fp8_case({4, 256, 128, 5, 2, Spread::kRandom}, 7, Bend::kNone, 60);
  run_fp8_case({4, 256, 128, 5, 2, Spread::kRandom}, 8, Bend::kNone, -48);
  run_fp8_case({4, 512, 384, 9, 2, Spread::kRandom}, 9, Bend::kSpan);
  run_fp8_case({4, 512, 384, 9, 2, Spread::kRandom}, 10, Bend::kZeroBlocks);
  run_fp8_case({4, 512, 384, 9, 2, Spread::kRandom}, 11, Bend::kTooWide);
  run_fp8_case({4, 512, 384, 50, 2, Spread::kRandom}, 12, Bend::kNone, 0, true);
  run_fp8_case({4, 512, 384, 50, 2, Spread::kRandom}, 13, Bend::kSpan, 0, true);
  run_fp8_case({4, 512, 384, 50, 2, Spread::kRandom}, 14, Bend::kZeroBlocks, 0, true);
}

TEST(Experts, RefusesOtherShapes) {
  ExpertsArgs args;
  args.rows = 1, args.bank.hidden = 96, args.bank.inter = 128;
  EXPECT_EQ(launch_experts(args, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace mimo::cuda::testing
