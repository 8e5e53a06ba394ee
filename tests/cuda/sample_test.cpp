// sample_tokens against the sampler of the engine, with the same logits and uniforms.
#include "ops/cuda/kernels/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/philox.h"
#include "cuda/device_array.h"
#include "engine/sampler.h"
#include "ops/cuda/cuda_check.h"

namespace mimo::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kVocab = 152064;

SamplingParams sampled(double temperature, std::int64_t top_k, double top_p, double min_p) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  return params;
}

SampleRow row_of(const SamplingParams& params, double uniform) {
  SampleRow row;
  if (is_greedy(params)) return row;
  row.inverse_temperature = static_cast<float>(1.0 / params.temperature);
  row.top_k = static_cast<std::int32_t>(params.top_k);
  if (params.min_p > 0) row.min_p_distance = params.temperature * std::log(params.min_p);
  row.top_p = params.top_p;
  row.uniform = uniform;
  return row;
}

// Rows of logits with NaN behind `count` of each.
class Batch {
 public:
  Batch(int count, std::size_t stride) : count_(count), stride_(stride) {}

  void add(const std::vector<float>& logits, const SampleRow& params) {
    ASSERT_EQ(logits.size(), static_cast<std::size_t>(count_));
    logits_.insert(logits_.end(), logits.begin(), logits.end());
    logits_.resize(stride_ * (params_.size() + 1), kNan);
    params_.push_back(params);
  }

  std::vector<std::int32_t> run(int cluster = 0) const {
    const DeviceArray<float> logits(logits_);
    const DeviceArray<SampleRow> params(params_);
    const DeviceArray<std::int32_t> ids(std::vector<std::int32_t>(params_.size(), -77));
    SampleArgs all = args(logits, params, ids);
    all.cluster = cluster;
    sample_tokens(all, nullptr);
    MIMO_CUDA(cudaDeviceSynchronize());
    return ids.download();
  }

  SampleArgs args(const DeviceArray<float>& logits, const DeviceArray<SampleRow>& params,
                  const DeviceArray<std::int32_t>& ids) const {
    SampleArgs args;
    args.logits = logits.get();
    args.row_stride = stride_;
    args.rows = static_cast<int>(params_.size());
    args.count = count_;
    args.params = params.get();
    args.ids = ids.get();
    return args;
  }
  const std::vector<float>& logits() const { return logits_; }
  std::vector<SampleRow>& params() { return params_; }

 private:
  int count_;
  std::size_t stride_;
  std::vector<float> logits_;
  std::vector<SampleRow> params_;
};

// The kinds of distribution: near normal, wide as of a trained model, nearly flat, few distinct values, mostly masked.
enum class Kind { kNormal, kWide, kFlat, kTied, kMasked };
constexpr Kind kKinds[] = {Kind::kNormal, Kind::kWide, Kind::kFlat, Kind::kTied, Kind::kMasked};

std::vector<float> random_logits(int count, Kind kind, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& v : x) {
    v = normal(random);
    if (kind == Kind::kWide) v = 3.0f * v + (v > 3.5f ? 4.0f * (v - 3.5f) : 0.0f);
    if (kind == Kind::kFlat) v = 0.5f + 0.002f * v;
    if (kind == Kind::kTied) v = std::round(v);
    if (kind == Kind::kMasked && random() % 64 != 0) v = -kInfinity;
  }
  x[random() % x.size()] = 2.0f;
  return x;
}

std::string name(const SamplingParams& p) {
  return "temperature " + std::to_string(p.temperature) + " top_k " + std::to_string(p.top_k) + " top_p " +
         std::to_string(p.top_p) + " min_p " + std::to_string(p.min_p);
}

Sampler make_sampler(int count, std::size_t stride) {
  Sampler::Options options;
  options.vocab = static_cast<int>(stride);
  options.allowed_vocab = count;
  return Sampler(options);
}

std::vector<float> padded(const std::vector<float>& logits, std::size_t stride) {
  std::vector<float> row = logits;
  row.resize(stride, kNan);
  return row;
}

// An independent twin, for what the two disagree in: whether `id` may be drawn with this uniform if every sum may be off
// by `slack` of itself, and top_p may keep one token more or fewer where its sum is that near its target.
bool near_draw(const std::vector<float>& logits, const SamplingParams& params, double uniform, int id,
               double slack) {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  std::vector<int> order;
  const double lowest = params.min_p > 0 ? maximum + params.temperature * std::log(params.min_p) : -kInfinity;
  for (int i = 0; i < static_cast<int>(logits.size()); ++i) {
    const float x = logits[static_cast<std::size_t>(i)];
    if (x > -kInfinity && x >= static_cast<float>(lowest)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  if (params.top_k > 0 && order.size() > static_cast<std::size_t>(params.top_k)) {
    order.resize(static_cast<std::size_t>(params.top_k));
  }
  const auto weight = [&](int i) {
    return std::exp((static_cast<double>(logits[static_cast<std::size_t>(i)]) - maximum) /
                    params.temperature);
  };
  double total = 0;
  for (const int i : order) total += weight(i);
  std::vector<std::size_t> sizes;
  if (params.top_p < 1) {
    double sum = 0;
    for (std::size_t n = 1; n <= order.size(); ++n) {
      sum += weight(order[n - 1]);
      if (sum >= params.top_p * total * (1 - slack)) sizes.push_back(n);
      if (sum >= params.top_p * total * (1 + slack)) break;
    }
  } else {
    sizes.push_back(order.size());
  }
  for (const std::size_t size : sizes) {
    std::vector<int> kept(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(size));
    std::sort(kept.begin(), kept.end());
    double sum = 0;
    for (const int i : kept) sum += weight(i);
    double below = 0;
    for (const int i : kept) {
      if (i == id) {
        const double w = weight(i);
        return uniform * sum >= below - slack * sum && uniform * sum < below + w + slack * sum;
      }
      below += weight(i);
    }
  }
  return false;
}

struct Agreement {
  int draws = 0;
  int different = 0;  // but allowed by near_draw
};

// Draws one token a row of `rows` on both sides. Row i has logits[i] and params[i % params.size()].
void compare(const std::vector<std::vector<float>>& logits, const std::vector<SamplingParams>& params,
             int count, std::size_t stride, std::uint64_t seed, Agreement* agreement) {
  Batch batch(count, stride);
  std::vector<double> uniforms;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    uniforms.push_back(philox_uniform(seed, static_cast<std::int64_t>(i)));
    batch.add(logits[i], row_of(params[i % params.size()], uniforms.back()));
  }
  const std::vector<std::int32_t> got = batch.run();
  std::vector<int> expected(logits.size(), -2);
  std::vector<std::thread> threads;
  const std::size_t workers = std::max(1u, std::thread::hardware_concurrency());
  for (std::size_t w = 0; w < workers; ++w) {
    threads.emplace_back([&, w] {
      Sampler sampler = make_sampler(count, stride);
      for (std::size_t i = w; i < logits.size(); i += workers) {
        const auto token = sampler.sample(padded(logits[i], stride), params[i % params.size()],
                                          TokenHistory(), seed, static_cast<std::int64_t>(i));
        expected[i] = token ? token->id : -1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    ++agreement->draws;
    if (got[i] == expected[i]) continue;
    ++agreement->different;
    ASSERT_GE(expected[i], 0) << name(params[i % params.size()]) << " row " << i << " got " << got[i];
    EXPECT_TRUE(near_draw(logits[i], params[i % params.size()], uniforms[i], got[i], 3e-7))
        << name(params[i % params.size()]) << " row " << i << " of " << logits.size() << ": got " << got[i]
        << ", expected " << expected[i] << ", uniform " << uniforms[i];
  }
}

std::vector<SamplingParams> all_params() {
  std::vector<SamplingParams> all;
  for (const double temperature : {0.0, 0.3, 1.0, 2.0}) {
    for (const int top_k : {0, 1, 20, 700, 5000}) {
      for (const double top_p : {1.0, 0.95, 0.3, 1e-9}) {
        for (const double min_p : {0.0, 0.02}) {
          if (temperature == 0 && (top_k > 1 || top_p < 1 || min_p > 0)) continue;
          all.push_back(sampled(temperature, top_k, top_p, min_p));
        }
      }
    }
  }
  return all;
}

TEST(SampleTest, AgreesWithTheEnginesSamplerAtFullVocabulary) {
  std::mt19937 random(1);
  Agreement agreement;
  const std::vector<SamplingParams> params = all_params();
  for (const Kind kind : kKinds) {
    std::vector<std::vector<float>> logits;
    for (std::size_t i = 0; i < params.size(); ++i) logits.push_back(random_logits(kVocab, kind, random));
    SCOPED_TRACE(static_cast<int>(kind));
    compare(logits, params, kVocab, kVocab, 11, &agreement);
    if (HasFatalFailure()) return;
  }
  std::printf("%d draws, %d differ within rounding\n", agreement.draws, agreement.different);
  EXPECT_LE(agreement.different, 1);
}

TEST(SampleTest, AgreesOnManyUniforms) {
  constexpr int kDraws = 3000;
  std::mt19937 random(2);
  int draws = 0;
  int different = 0;
  for (const Kind kind : {Kind::kNormal, Kind::kWide}) {
    const std::vector<float> x = random_logits(kVocab, kind, random);
    const DeviceArray<float> logits(x);
    for (const SamplingParams& params :
         {sampled(1, 0, 1, 0), sampled(1, 0, 0.95, 0), sampled(0.6, 20, 0.95, 0), sampled(1, 0, 1, 0.05)}) {
      std::vector<SampleRow> rows;
      for (int i = 0; i < kDraws; ++i) rows.push_back(row_of(params, philox_uniform(17, i)));
      const DeviceArray<SampleRow> device_rows(rows);
      const DeviceArray<std::int32_t> ids(std::vector<std::int32_t>(kDraws, -77));
      SampleArgs args;
      args.logits = logits.get();
      args.row_stride = 0;  // all rows are one
      args.rows = kDraws;
      args.count = kVocab;
      args.params = device_rows.get();
      args.ids = ids.get();
      sample_tokens(args, nullptr);
      std::vector<int> expected(kDraws);
      std::vector<std::thread> threads;
      const int workers = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
      for (int w = 0; w < workers; ++w) {
        threads.emplace_back([&, w] {
          Sampler sampler = make_sampler(kVocab, kVocab);
          for (int i = w; i < kDraws; i += workers) {
            expected[static_cast<std::size_t>(i)] = sampler.sample(x, params, TokenHistory(), 17, i)->id;
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      MIMO_CUDA(cudaDeviceSynchronize());
      const std::vector<std::int32_t> got = ids.download();
      for (std::size_t i = 0; i < got.size(); ++i) {
        ++draws;
        if (got[i] == expected[i]) continue;
        ++different;
        ASSERT_LE(different, 10);
        EXPECT_TRUE(near_draw(x, params, rows[i].uniform, got[i], 3e-7))
            << name(params) << ": got " << got[i] << ", expected " << expected[i] << ", uniform "
            << rows[i].uniform;
      }
    }
  }
  std::printf("%d draws, %d differ within rounding\n", draws, different);
  EXPECT_LE(different, draws / 10000);
}

TEST(SampleTest, AgreesAtOddSizes) {
  std::mt19937 random(3);
  Agreement agreement;
  const std::vector<SamplingParams> params = all_params();
  for (const int count : {1, 2, 3, 5, 31, 64, 100, 1023, 1025, 4097, 20011}) {
    for (const std::size_t pad : {0, 1, 5}) {
      std::vector<std::vector<float>> logits;
      for (std::size_t i = 0; i < params.size(); ++i) {
        logits.push_back(random_logits(count, kKinds[random() % 5], random));
      }
      SCOPED_TRACE(count);
      compare(logits, params, count, static_cast<std::size_t>(count) + pad, 7, &agreement);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_LE(agreement.different, 1);
}

TEST(SampleTest, TheLargestCount) {
  std::mt19937 random(4);
  Agreement agreement;
  std::vector<std::vector<float>> logits;
  const std::vector<SamplingParams> params = {sampled(1, 0, 1, 0), sampled(1, 0, 0.9, 0),
                                              sampled(1, 40, 0.9, 0), sampled(0, 0, 1, 0)};
  for (const Kind kind : kKinds) {
    for (int i = 0; i < 4; ++i) logits.push_back(random_logits(kSampleMaxCount, kind, random));
  }
  logits.push_back(std::vector<float>(kSampleMaxCount, 1.0f));  // the largest sum of weights there is
  compare(logits, params, kSampleMaxCount, kSampleMaxCount, 3, &agreement);
  EXPECT_LE(agreement.different, 1);
  EXPECT_THROW(
      {
        SampleArgs args;
        args.rows = 1;
        args.count = kSampleMaxCount + 1;
        sample_tokens(args, nullptr);
      },
      std::invalid_argument);
}

TEST(SampleTest, Greedy) {
  std::vector<float> x(1000, 1.0f);
  Batch batch(1000, 1001);
  batch.add(x, {});
  x[999] = 2;
  batch.add(x, {});
  x[400] = x[500] = 2;
  batch.add(x, {});
  x.assign(1000, -0.0f);
  x[300] = 0.0f;  // equal to -0
  batch.add(x, {});
  x.assign(1000, -kInfinity);
  x[700] = -3e38f;
  batch.add(x, {});
  EXPECT_EQ(batch.run(), (std::vector<std::int32_t>{0, 999, 400, 0, 700}));
}

TEST(SampleTest, RowsThatCannotBeSampled) {
  const SampleRow rows[] = {row_of(sampled(0, 0, 1, 0), 0), row_of(sampled(1, 0, 1, 0), 0.5),
                            row_of(sampled(1, 20, 0.9, 0.1), 0.5)};
  Batch batch(5000, 5003);
  std::vector<std::int32_t> expected;
  for (const SampleRow& row : rows) {
    for (const std::size_t place : {0u, 2500u, 4999u}) {
      for (const float bad : {kNan, kInfinity, -kNan}) {
        std::vector<float> x(5000, 0.0f);
        x[place] = bad;
        batch.add(x, row);
        expected.push_back(-1);
      }
    }
    batch.add(std::vector<float>(5000, -kInfinity), row);
    expected.push_back(-1);
    std::vector<float> one(5000, -kInfinity);  // nothing is wrong with this one
    one[4998] = -7;
    batch.add(one, row);
    expected.push_back(4998);
  }
  EXPECT_EQ(batch.run(), expected);
}

TEST(SampleTest, CutsBetweenTies) {
  // All logits equal: top_k and top_p keep the lowest ids, exactly as many as asked for.
  const std::vector<float> x(kVocab, 3.0f);
  const double last = std::nextafter(1.0, 0.0);
  Batch batch(kVocab, kVocab);
  std::vector<std::int32_t> expected;
  for (const int keep : {1, 2, 1000, 1024, 1025, 5000, 100000, kVocab - 1}) {
    batch.add(x, row_of(sampled(1, keep, 1, 0), last));
    expected.push_back(keep - 1);
    batch.add(x, row_of(sampled(1, 0, static_cast<double>(keep) / kVocab * (1 - 1e-9), 0), last));
    expected.push_back(keep - 1);
    batch.add(x, row_of(sampled(1, keep, 0.5, 0), last));
    expected.push_back((keep + 1) / 2 - 1);
    batch.add(x, row_of(sampled(1, keep, 1, 0), 0));
    expected.push_back(0);
  }
  EXPECT_EQ(batch.run(), expected);
}

TEST(SampleTest, DrawsInProportion) {
  std::mt19937 random(5);
  constexpr int kDraws = 40000;
  for (const SamplingParams& params :
       {sampled(1, 0, 1, 0), sampled(0.7, 0, 0.9, 0), sampled(1.5, 12, 1, 0), sampled(1, 30, 0.8, 0.01)}) {
    const std::vector<float> x = random_logits(50, Kind::kNormal, random);
    Batch batch(50, 50);
    for (int i = 0; i < kDraws; ++i) batch.add(x, row_of(params, philox_uniform(99, i)));
    std::map<int, int> seen;
    for (const std::int32_t id : batch.run()) ++seen[id];
    Sampler sampler = make_sampler(50, 50);
    const auto distribution = sampler.distribution(x, params, TokenHistory(), 0);
    ASSERT_TRUE(distribution.has_value());
    double chi = 0;
    int total = 0;
    for (const auto& [id, probability] : *distribution) {
      const double expected = probability * kDraws;
      chi += (seen[id] - expected) * (seen[id] - expected) / expected;
      total += seen[id];
    }
    EXPECT_EQ(total, kDraws);  // nothing else was drawn
    const double freedom = static_cast<double>(distribution->size()) - 1;
    EXPECT_LT(chi, freedom + 4 * std::sqrt(2 * freedom) + 8) << name(params);
  }
}

TEST(SampleTest, ARowDoesNotDependOnOthers) {
  std::mt19937 random(6);
  const std::vector<SamplingParams> params = {sampled(1, 0, 1, 0), sampled(1, 0, 0.9, 0), sampled(0, 0, 1, 0),
                                              sampled(1, 50, 0.9, 0)};
  std::vector<std::vector<float>> logits;
  for (int i = 0; i < 67; ++i) logits.push_back(random_logits(30000, kKinds[random() % 5], random));
  const auto draw = [&](int first, int rows, int cluster = 0) {
    Batch batch(30000, 30004);
    for (int i = first; i < first + rows; ++i) {
      batch.add(logits[static_cast<std::size_t>(i)],
                row_of(params[static_cast<std::size_t>(i) % params.size()], philox_uniform(1, i)));
    }
    return batch.run(cluster);
  };
  const std::vector<std::int32_t> all = draw(0, 67);
  EXPECT_EQ(draw(0, 67, 8), all);
  EXPECT_EQ(draw(0, 67, 16), all);
  for (const int rows : {1, 2, 7, 33}) {
    for (int first = 0; first + rows <= 67; first += rows) {
      const std::vector<std::int32_t> part = draw(first, rows);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + first)) << rows << " from " << first;
    }
  }
}

TEST(SampleTest, ReplaysInAGraph) {
  std::mt19937 random(7);
  const std::vector<float> x = random_logits(kVocab, Kind::kNormal, random);
  const SamplingParams filtered = sampled(0.8, 0, 0.9, 0);
  Batch batch(kVocab, kVocab);
  for (int i = 0; i < 4; ++i) batch.add(x, row_of(filtered, philox_uniform(0, i)));
  const DeviceArray<float> logits(batch.logits());
  DeviceArray<SampleRow> params(batch.params());
  const DeviceArray<std::int32_t> ids(std::vector<std::int32_t>(4, -77));
  SampleArgs args = batch.args(logits, params, ids);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  MIMO_CUDA(cudaStreamCreate(&stream));
  MIMO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (const bool overlap : {false, true, true}) {
    args.overlap = overlap;
    sample_tokens(args, stream);
  }
  MIMO_CUDA(cudaStreamEndCapture(stream, &graph));
  MIMO_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (int replay = 0; replay < 5; ++replay) {
    for (int i = 0; i < 4; ++i) {
      batch.params()[static_cast<std::size_t>(i)] =
          i == replay ? SampleRow{}
                      : row_of(sampled(1, replay * 30, 0.9, 0), philox_uniform(5, 9 * replay + i));
    }
    params.upload(batch.params());
    MIMO_CUDA(cudaGraphLaunch(exec, stream));
    MIMO_CUDA(cudaStreamSynchronize(stream));
    EXPECT_EQ(ids.download(), batch.run()) << replay;
  }
  MIMO_CUDA(cudaGraphExecDestroy(exec));
  MIMO_CUDA(cudaGraphDestroy(graph));
  MIMO_CUDA(cudaStreamDestroy(stream));
}

TEST(SampleTest, BestTokensInClusters) {
  std::mt19937 random(8);
  for (const int count : {1, 900, 1500, 20000, kVocab}) {
    const std::size_t stride = static_cast<std::size_t>(count) + 3;
    std::vector<std::vector<float>> rows;
    for (const Kind kind : {Kind::kNormal, Kind::kWide, Kind::kFlat, Kind::kTied}) {
      rows.push_back(random_logits(count, kind, random));
    }
    rows.push_back(std::vector<float>(static_cast<std::size_t>(count), -3e38f));
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      rows.push_back(rows[0]);
      rows.back()[random() % rows.back().size()] = bad;
    }
    Batch batch(count, stride);
    for (const std::vector<float>& row : rows) batch.add(row, {});
    const DeviceArray<float> logits(batch.logits());
    const DeviceArray<std::int32_t> ids(std::vector<std::int32_t>(rows.size(), -77));
    const DeviceArray<float> shares(std::vector<float>(rows.size(), -77));
    for (float* const wanted : {shares.get(), static_cast<float*>(nullptr)}) {
      best_tokens_in_clusters(logits.get(), stride, static_cast<int>(rows.size()), count, ids.get(), wanted,
                              false, nullptr);
      MIMO_CUDA(cudaDeviceSynchronize());
      const std::vector<std::int32_t> got = ids.download();
      const std::vector<float> share = shares.download();
      for (std::size_t r = 0; r < rows.size(); ++r) {
        if (r >= 5) {
          EXPECT_EQ(got[r], -1) << r;
          EXPECT_TRUE(std::isnan(share[r])) << r;
          continue;
        }
        const auto best = std::max_element(rows[r].begin(), rows[r].end());
        double sum = 0;
        for (const float x : rows[r]) sum += std::exp(static_cast<double>(x) - *best);
        EXPECT_EQ(got[r], best - rows[r].begin()) << r << " of " << count;
        EXPECT_NEAR(share[r] * sum, 1, 1e-6) << r << " of " << count;
      }
    }
  }
}

TEST(SampleTest, NoRows) { sample_tokens(SampleArgs{}, nullptr); }

}  // namespace
}  // namespace mimo::cuda
