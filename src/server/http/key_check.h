// API keys: kept as digests, compared in constant time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "server/exchange.h"
#include "server/http/sha256.h"

namespace mimo::http {

// Each key becomes SHA-256(salt, key) with a salt of this process. A presented key is hashed likewise, and all bytes
// of all digests are compared without a branch: the time says nothing about how much of a key is right, nor which
// key of the list; and because of the salt nobody can choose digests either. It depends on the length of what was
// presented, which the client knows anyway.
class KeyCheck {
 public:
  // kInvalidArgument: an empty key, or one that no header can carry. Messages do not quote keys.
  static Result<KeyCheck> make(const std::vector<std::string>& keys);

  bool required() const { return !digests_.empty(); }
  bool matches(std::string_view presented) const;
  // `Authorization: Bearer KEY` or `x-api-key: KEY`; true if no key is required.
  bool allows(const HttpRequest& request) const;

 private:
  Sha256 digest(std::string_view key) const;

  std::string salt_;
  std::vector<Sha256> digests_;
};

}  // namespace mimo::http
