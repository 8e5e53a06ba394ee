#include "core/huge_buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <utility>

namespace mimo {
namespace {

TEST(HugeBuffer, ZeroFilledAlignedAndWholeAtAllSizes) {
  constexpr std::size_t kHuge = 2u << 20;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{64}, std::size_t{4096}, std::size_t{4097},
                                  kHuge - 1, kHuge, kHuge + 1, 3 * kHuge + 12345}) {
    HugeBuffer buffer(bytes);
    ASSERT_EQ(buffer.size(), bytes);
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
    EXPECT_EQ(address % 4096, 0u);
    if (bytes >= kHuge) {
      EXPECT_EQ(address % kHuge, 0u) << bytes;
    }
    for (std::size_t i = 0; i < bytes; i += bytes < 5000 ? 1 : 997) ASSERT_EQ(buffer.data()[i], 0);
    EXPECT_EQ(buffer.data()[bytes - 1], 0);
    std::memset(buffer.data(), 0xA5, bytes);
    EXPECT_EQ(buffer.as<std::uint8_t>()[bytes - 1], 0xA5);
  }
}

TEST(HugeBuffer, EmptyBufferHasNoMemory) {
  EXPECT_EQ(HugeBuffer().data(), nullptr);
  EXPECT_EQ(HugeBuffer(0).data(), nullptr);
  EXPECT_EQ(HugeBuffer(0).size(), 0u);
}

TEST(HugeBuffer, MovesKeepTheBytes) {
  HugeBuffer a(5000);
  a.data()[4999] = 7;
  const std::uint8_t* data = a.data();
  HugeBuffer b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(a.size(), 0u);
  HugeBuffer c(64);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.size(), 5000u);
  EXPECT_EQ(c.data()[4999], 7);
}

TEST(HugeBuffer, ImpossibleSizeThrows) { EXPECT_THROW(HugeBuffer(std::size_t{1} << 60), std::bad_alloc); }

}  // namespace
}  // namespace mimo
