#include "server/http/key_check.h"

#include <algorithm>
#include <random>

#include "server/http/ascii.h"

namespace mimo::http {
namespace {

// "bearer KEY" -> KEY; other schemes: nothing.
std::string_view bearer_token(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size() ||
      !equal_ignoring_case(authorization.substr(0, kScheme.size()), kScheme))
    return {};
  return trim(authorization.substr(kScheme.size()));
}

}  // namespace

Result<KeyCheck> KeyCheck::make(const std::vector<std::string>& keys) {
  KeyCheck check;
  std::random_device random;
  for (int i = 0; i < 8; ++i) {
    const unsigned word = random();
    check.salt_.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  for (const std::string& key : keys) {
    if (key.empty()) return fail(ErrorCode::kInvalidArgument, "API key: it is empty");
    if (!std::all_of(key.begin(), key.end(), [](char c) { return c > 0x20 && c < 0x7f; })) {
      return fail(
          ErrorCode::kInvalidArgument,
          "API key: expected printable ASCII characters without spaces, which is what a header can carry");
    }
    check.digests_.push_back(check.digest(key));
  }
  return check;
}

Sha256 KeyCheck::digest(std::string_view key) const {
  std::string salted;
  salted.reserve(salt_.size() + key.size());
  salted.append(salt_).append(key);
  return sha256(salted);
}

bool KeyCheck::matches(std::string_view presented) const {
  const Sha256 have = digest(presented);
  unsigned matched = 0;
  for (const Sha256& want : digests_) {
    unsigned different = 0;
    for (std::size_t i = 0; i < want.size(); ++i) different |= unsigned{want[i]} ^ unsigned { have[i] };
    // 1 if no bit differs: the subtraction borrows only from 0.
    matched |= (different - 1) >> 31;
  }
  return matched != 0;
}

bool KeyCheck::allows(const HttpRequest& request) const {
  if (!required()) return true;
  const bool bearer = matches(bearer_token(request.header("authorization")));
  const bool plain = matches(request.header("x-api-key"));
  return bearer || plain;
}

}  // namespace mimo::http
