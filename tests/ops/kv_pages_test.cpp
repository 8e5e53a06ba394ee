// Pages as bytes: what leaves a store and comes back, into any page of any store of its kind, is the same page.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/attention_case.h"
#include "ops/backends.h"
#include "ops/reference/reference_ops.h"

namespace mimo {
namespace {

using namespace mimo::testing;

constexpr KvDType kDTypes[] = {KvDType::kF32, KvDType::kBF16, KvDType::kFp8};

struct NamedOps {
  std::string name;
  Ops* ops;
};

std::vector<NamedOps> all_backends() {
  static const std::unique_ptr<Ops> reference = make_reference_ops();
  std::vector<NamedOps> all = {{"reference", reference.get()}};
  for (const Backend& backend : cpu_backends(2)) all.push_back({backend.name(), backend.ops});
  return all;
}

std::vector<std::byte> bytes_of(const KvStore& kv, std::int32_t page) {
  std::vector<std::byte> bytes(kv.page_bytes());
  kv.read_page(page, bytes);
  return bytes;
}

TEST(KvPages, AttentionOverMovedPagesIsTheSameToTheBit) {
  Random random(31);
  for (const NamedOps& backend : all_backends()) {
    for (const KvDType dtype : kDTypes) {
      for (const int page_size : {1, 7, 16, 64, 128}) {
        SCOPED_TRACE(fmt::format("{} {} page {}", backend.name, kv_dtype_name(dtype), page_size));
        const AttentionCase c{.q_heads = 8,
                              .kv_heads = 2,
                              .window = 40,
                              .page_size = page_size,
                              .dtype = dtype,
                              .spans = {{150, 3}, {33, 33}, {1, 1}}};
        const AttentionData data(c, random);
        FilledCache cache(*backend.ops, data);
        const std::vector<float> before = cache.attend();
        // A larger store, other pages, poison wherever nothing was written.
        KvSpec spec = cache.kv->spec();
        spec.pages = 2 * spec.pages + 5;
        std::unique_ptr<KvStore> other = std::move(*backend.ops->make_kv(spec));
        ASSERT_EQ(other->page_bytes(), cache.kv->page_bytes());
        for (std::int32_t page = 0; page < spec.pages; ++page) other->poison_page(page);
        auto next = static_cast<std::int32_t>(spec.pages - 1);
        for (auto& table : cache.tables) {
          for (auto& page : table) {
            if (page < 0) continue;
            other->write_page(next, bytes_of(*cache.kv, page));
            page = next--;
          }
        }
        cache.kv = std::move(other);
        const std::vector<float> after = cache.attend();
        ASSERT_EQ(before.size(), after.size());
        EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)), 0);
        EXPECT_FALSE(std::any_of(after.begin(), after.end(), [](float x) { return std::isnan(x); }));
      }
    }
  }
}

TEST(KvPages, WritingAPageTouchesNoOther) {
  for (const NamedOps& backend : all_backends()) {
    for (const KvDType dtype : kDTypes) {
      SCOPED_TRACE(fmt::format("{} {}", backend.name, kv_dtype_name(dtype)));
      const std::unique_ptr<KvStore> kv = std::move(*backend.ops->make_kv({3, 192, 128, 16, 5, dtype}));
      const std::size_t size = kv->page_bytes();
      EXPECT_EQ(size * 5, kv->bytes());
      const auto pattern = [size](int page) {
        std::vector<std::byte> bytes(size);
        for (std::size_t i = 0; i < size; ++i)
          bytes[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(page) * 31);
        return bytes;
      };
      for (const int page : {4, 0, 2, 1, 3}) kv->write_page(page, pattern(page));
      for (int page = 0; page < 5; ++page) EXPECT_EQ(bytes_of(*kv, page), pattern(page)) << page;
      kv->poison_page(2);
      for (const int page : {0, 1, 3, 4}) EXPECT_EQ(bytes_of(*kv, page), pattern(page)) << page;
      EXPECT_NE(bytes_of(*kv, 2), pattern(2));
    }
  }
}

TEST(KvPagesDeathTest, WrongPagesAndSizesEndTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::unique_ptr<Ops> ops = make_reference_ops();
  const std::unique_ptr<KvStore> kv = std::move(*ops->make_kv({1, 192, 128, 16, 5, KvDType::kBF16}));
  std::vector<std::byte> bytes(kv->page_bytes());
  EXPECT_DEATH(kv->read_page(5, bytes), "page 5 of 5");
  EXPECT_DEATH(kv->write_page(-1, bytes), "page -1 of 5");
  bytes.pop_back();
  EXPECT_DEATH(kv->read_page(0, bytes), "as .* bytes of");
  EXPECT_DEATH(kv->write_page(0, bytes), "as .* bytes of");
}

}  // namespace
}  // namespace mimo
