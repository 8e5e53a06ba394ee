// Reads golden files: one JSON value a line, compressed with xz.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace mimo::test {

inline std::vector<json::value> golden_lines(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(("xz -dc '" + path + "'").c_str(), "r"), pclose);
  std::string text;
  char buffer[65536];
  for (std::size_t got; pipe && (got = fread(buffer, 1, sizeof buffer, pipe.get())) > 0;)
    text.append(buffer, got);
  std::vector<json::value> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    auto line = parse_json(std::string_view(text).substr(begin, end - begin), path);
    EXPECT_TRUE(line.has_value()) << (line ? "" : line.error().message);
    if (line) lines.push_back(std::move(*line));
    begin = end + 1;
  }
  EXPECT_FALSE(lines.empty()) << path << ": nothing read; is the xz tool there?";
  return lines;
}

// How golden files hold a text: itself, or "#" and its FNV-1a 64 when longer than 200 bytes.
inline std::string packed(std::string_view text) {
  if (text.size() <= 200) return std::string(text);
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const unsigned char byte : text) hash = (hash ^ byte) * 0x100000001B3u;
  return fmt::format("#{:016x}", hash);
}

}  // namespace mimo::test
