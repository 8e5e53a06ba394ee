#include "server/http/key_check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace mimo::http {
namespace {

std::string hex(const Sha256& digest) {
  std::string out;
  for (const std::uint8_t byte : digest) out += fmt::format("{:02x}", byte);
  return out;
}

// FIPS 180-4 examples, and what sha256sum says about the rest.
TEST(Sha256, KnownDigests) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Around the block border, where the padding takes one block or two.
TEST(Sha256, Lengths) {
  EXPECT_EQ(hex(sha256(std::string(55, 'x'))),
            "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
  EXPECT_EQ(hex(sha256(std::string(56, 'x'))),
            "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
  EXPECT_EQ(hex(sha256(std::string(64, 'x'))),
            "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
}

HttpRequest with(std::string name, std::string value) {
  HttpRequest request;
  request.headers.emplace_back(std::move(name), std::move(value));
  return request;
}

TEST(KeyCheck, Accepts) {
  const auto check = KeyCheck::make({"first-key", "second-key"});
  ASSERT_TRUE(check);
  EXPECT_TRUE(check->required());
  for (const char* good :
       {"Bearer first-key", "bearer second-key", "BEARER  first-key ", "Bearer second-key"})
    EXPECT_TRUE(check->allows(with("authorization", good))) << good;
  EXPECT_TRUE(check->allows(with("x-api-key", "second-key")));
  HttpRequest both = with("authorization", "Basic abc");
  both.headers.emplace_back("x-api-key", "first-key");
  EXPECT_TRUE(check->allows(both));
}

TEST(KeyCheck, Refuses) {
  const auto check = KeyCheck::make({"first-key", "second-key"});
  EXPECT_FALSE(check->allows({}));
  for (const char* bad :
       {"first-key", "Basic first-key", "Bearerfirst-key", "Bearer", "Bearer ", "Bearer first-keY",
        "Bearer first-key2", "Bearer first-ke", "Bearer first-key,second-key", "Token first-key", ""})
    EXPECT_FALSE(check->allows(with("authorization", bad))) << bad;
  for (const char* bad : {"", "Bearer first-key", "first", "FIRST-KEY"})
    EXPECT_FALSE(check->allows(with("x-api-key", bad))) << bad;
  EXPECT_FALSE(check->allows(with("api-key", "first-key")));
}

TEST(KeyCheck, NoKeysNoCheck) {
  const auto check = KeyCheck::make({});
  EXPECT_FALSE(check->required());
  EXPECT_TRUE(check->allows({}));
  EXPECT_FALSE(check->matches(""));
}

TEST(KeyCheck, BadKeysAreNotQuoted) {
  for (const char* bad : {"", "two words", "tab\tkey", "k\xc3\xbc", "line\n"}) {
    const auto check = KeyCheck::make({"good", bad});
    ASSERT_FALSE(check);
    EXPECT_TRUE(*bad == 0 || check.error().message.find(bad) == std::string::npos);
  }
}

// Nanoseconds a call of each function: the median over rounds in which they take turns, so that what else the machine
// does hits all alike.
std::vector<double> medians(const std::vector<std::function<bool()>>& functions, int rounds, int calls) {
  std::vector<std::vector<double>> times(functions.size());
  bool sink = false;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t f = 0; f < functions.size(); ++f) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) sink ^= functions[f]();
      const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
      times[f].push_back(spent.count() / calls);
    }
  }
  volatile bool keep = sink;
  static_cast<void>(keep);
  std::vector<double> out;
  for (auto& list : times) {
    std::nth_element(list.begin(), list.begin() + list.size() / 2, list.end());
    out.push_back(list[list.size() / 2]);
  }
  return out;
}

double spread(const std::vector<double>& times) {
  return *std::max_element(times.begin(), times.end()) / *std::min_element(times.begin(), times.end()) - 1;
}

// 10^5 comparisons for each kind of presented key: nothing right, half, all but the last byte, the first key of the
// list, the last one. A comparison that stops early must be seen by the same ruler.
TEST(KeyCheck, C92SlowTimeSaysNothingAboutTheKey) {
  constexpr int kKeys = 256;
  constexpr std::size_t kLength = 48;
  std::vector<std::string> keys;
  for (int i = 0; i < kKeys; ++i) keys.push_back(fmt::format("{:03}", i) + std::string(kLength - 3, 'k'));
  const auto check = KeyCheck::make(keys);
  ASSERT_TRUE(check);
  const std::string none(kLength, 'z');
  const std::string half = keys[0].substr(0, kLength / 2) + std::string(kLength / 2, 'z');
  const std::string almost = keys[0].substr(0, kLength - 1) + "z";
  const std::vector<std::string> presented = {none, half, almost, keys.front(), keys.back()};

  const auto early_exit = [&](const std::string& key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  std::vector<std::function<bool()>> ours, leaky;
  for (const std::string& key : presented) {
    ours.emplace_back([&check, &key] { return check->matches(key); });
    leaky.emplace_back([&early_exit, &key] { return early_exit(key); });
  }
  constexpr double kNoise = 0.1;
  EXPECT_GT(spread(medians(leaky, 100, 100)), kNoise) << "the ruler is blind";
  // Noise can only make it look worse; a leak would be there each time.
  double best = 1e9;
  for (int attempt = 0; attempt < 5 && best > kNoise; ++attempt)
    best = std::min(best, spread(medians(ours, 1000, 100)));
  EXPECT_LT(best, kNoise);
}

}  // namespace
}  // namespace mimo::http
