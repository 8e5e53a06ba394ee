#include "chat/terminal.h"

#include <gtest/gtest.h>

namespace mimo {
namespace {

TEST(Terminal, ControlCharactersOfAModelAreLeftOut) {
  EXPECT_EQ(without_controls("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(without_controls("\x1b[2J\x1b]0;title\x07z\r\x7f"), "[2J]0;titlez");
  EXPECT_EQ(without_controls("\xC2\x9B"
                             "1m\xC2\xA0\xC3\xA9"),
            "1m\xC2\xA0\xC3\xA9");
  EXPECT_EQ(without_controls("\xC2"), "\xC2");
}

}  // namespace
}  // namespace mimo
