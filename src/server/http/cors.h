// Cross-origin requests from browsers. Off unless origins are given.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "server/exchange.h"

namespace mimo::http {

class Cors {
 public:
  // "*" or "scheme://host[:port]". kInvalidArgument names the origin.
  static Result<Cors> make(const std::vector<std::string>& origins);

  // What every answer to this request carries, errors and streams too; empty when CORS is off or the origin is not
  // in the list.
  HttpHeaders answer_headers(const HttpRequest& request) const;

  // A browser asking, without a key, what it may send. Only while CORS is on.
  bool is_preflight(const HttpRequest& request) const;
  // 204 with what is allowed, or 403 for a foreign origin.
  HttpResponse preflight(const HttpRequest& request) const;

 private:
  bool allowed(std::string_view origin) const;

  bool any_ = false;
  std::vector<std::string> origins_;  // lower case
};

}  // namespace mimo::http
