// Any bytes as a connection: requests with heads and bodies, whole or chunked, one after the other. However the bytes
// are cut, the same requests come out, and limits hold.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/request_reader.h"

namespace {

using mimo::http::RequestReader;

constexpr RequestReader::Limits kLimits = {.header = 512, .body = 256};

struct Outcome {
  struct Request {
    std::string method, target, body;
    mimo::HttpHeaders headers;
    bool operator==(const Request&) const = default;
  };
  std::vector<Request> requests;
  bool failed = false;
  bool operator==(const Outcome&) const = default;
};

void require(bool condition) {
  if (!condition) std::abort();
}

Outcome read_all(std::string_view bytes, std::size_t step) {
  using Event = RequestReader::Event;
  RequestReader reader(kLimits);
  Outcome out;
  Outcome::Request current;
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    reader.append(bytes.substr(at, step));
    for (Event event = reader.next(); event != Event::kNeedMore; event = reader.next()) {
      if (event == Event::kError) {
        require(reader.failure().status >= 400 && !reader.failure().message.empty());
        out.failed = true;
        return out;
      }
      if (event == Event::kHead) {
        const RequestReader::Head& head = reader.head();
        current = {head.method, head.target, {}, head.headers};
        require(!head.method.empty() && !head.target.empty());
        std::size_t size = head.method.size() + head.target.size();
        for (const auto& [name, value] : head.headers) size += name.size() + value.size();
        require(size <= kLimits.header);
      } else {
        current.body = reader.take_body();
        require(current.body.size() <= kLimits.body);
        out.requests.push_back(std::exchange(current, {}));
        reader.begin();
      }
    }
  }
  return out;
}

}  // namespace

// The first byte chooses the cut.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = read_all(bytes, bytes.size());
  const Outcome cut = read_all(bytes, 1 + data[0] % 32);
  // A limit may be noticed sooner in one of them; what came out before is the same.
  const std::size_t common = std::min(whole.requests.size(), cut.requests.size());
  for (std::size_t i = 0; i < common; ++i) require(whole.requests[i] == cut.requests[i]);
  if (!whole.failed && !cut.failed) require(whole == cut);
  return 0;
}
