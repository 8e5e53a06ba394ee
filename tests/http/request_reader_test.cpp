#include "server/http/request_reader.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace mimo::http {
namespace {

using Event = RequestReader::Event;

struct Read {
  RequestReader::Head head;
  std::string body;
};

// All whole requests in the text, given in pieces of `step` bytes.
std::vector<Read> read_all(std::string_view text, std::size_t step, RequestReader& reader) {
  std::vector<Read> out;
  Read current;
  for (std::size_t at = 0; at < text.size(); at += step) {
    reader.append(text.substr(at, step));
    for (Event event = reader.next(); event != Event::kNeedMore; event = reader.next()) {
      if (event == Event::kError) return out;
      if (event == Event::kHead) current.head = reader.head();
      if (event == Event::kDone) {
        current.body = reader.take_body();
        out.push_back(std::move(current));
        current = {};
        reader.begin();
      }
    }
  }
  return out;
}

TEST(RequestReader, AnySplitGivesTheSame) {
  const std::string text =
      "GET /a?b HTTP/1.1\r\nHost: h\r\nX-Two:  v w \r\n\r\n"
      "\r\n"
      "POST /b HTTP/1.1\r\nhost: h\r\nContent-Length: 5\r\n\r\nhello"
      "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;ext=1\r\nabc\r\n0A\r\n0123456789\r\n0\r\nX-Trailer: t\r\n\r\n"
      "POST /d HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"
      "POST /e HTTP/1.1\r\nHost: h\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: "
      "2\r\n\r\nxy";
  for (std::size_t step = 1; step <= text.size(); step += step < 60 ? 1 : 37) {
    RequestReader reader({});
    const std::vector<Read> requests = read_all(text, step, reader);
    ASSERT_EQ(requests.size(), 5u) << "step " << step << ": " << reader.failure().message;
    EXPECT_EQ(requests[0].head.method, "GET");
    EXPECT_EQ(requests[0].head.target, "/a?b");
    EXPECT_EQ(requests[0].head.headers[1], (std::pair<std::string, std::string>("x-two", "v w")));
    EXPECT_EQ(requests[0].body, "");
    EXPECT_EQ(requests[1].body, "hello");
    EXPECT_EQ(requests[2].body, "abc0123456789");
    EXPECT_EQ(requests[2].head.headers.size(), 2u);  // trailers are no headers
    EXPECT_TRUE(requests[3].head.http10);
    EXPECT_TRUE(requests[3].head.keep_alive);
    EXPECT_FALSE(requests[4].head.keep_alive);
    EXPECT_TRUE(requests[4].head.wants_continue);
    EXPECT_EQ(requests[4].body, "xy");
  }
}

// Status of what is wrong, 0 if nothing is.
int failure_of(std::string_view text, std::size_t step, RequestReader::Limits limits = {}) {
  RequestReader reader(limits);
  read_all(text, step, reader);
  return reader.failure().message.empty() ? 0 : reader.failure().status;
}

struct BadCase {
  const char* text;
  int status;
};

TEST(RequestReader, Refused) {
  const BadCase cases[] = {
      {"GARBAGE\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"G@T / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505},
      {"GET / HTTP/1.2\r\nHost: h\r\n\r\n", 505},
      {"GET / HTTP/1.1\r\nHost : h\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n: v\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nA\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nA: \x01\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},  // no Host
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1 2\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, gzip\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", 413},
      {"POST / HTTP/1.1\r\nHost: h\r\nExpect: magic\r\nContent-Length: 1\r\n\r\nx", 417},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400},  // TLS
  };
  for (const auto& [text, status] : cases) {
    EXPECT_EQ(failure_of(text, 1), status) << text;
    EXPECT_EQ(failure_of(text, 10'000), status) << text;
  }
  EXPECT_EQ(failure_of("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1, 1\r\n\r\nx", 10'000),
            0);  // the same twice
}

// A request of `size` bytes with many short lines and one long.
std::string padded_request(std::size_t size, std::size_t short_bytes) {
  std::string text = "GET / HTTP/1.1\r\nHost: h\r\n";
  while (text.size() < short_bytes) text += "Line: 0123456789\r\n";
  text += "P: ";
  return text.append(size - text.size() - 4, 'p') + "\r\n\r\n";
}

TEST(RequestReader, HeaderLimit) {
  const RequestReader::Limits limits{.header = 2048, .body = 100};
  for (const std::size_t step : {1u, 7u, 512u, 100'000u}) {
    for (const std::size_t short_bytes : {0u, 1900u}) {
      EXPECT_EQ(failure_of(padded_request(2048, short_bytes), step, limits), 0) << step;
      EXPECT_EQ(failure_of(padded_request(2049, short_bytes), step, limits), 431) << step;
      EXPECT_EQ(failure_of(padded_request(60'000, short_bytes), step, limits), 431) << step;
    }
    EXPECT_EQ(failure_of(padded_request(60'000, 59'000), step, limits), 431) << step;
    EXPECT_EQ(failure_of("GET /" + std::string(5000, 'a'), step, limits), 431) << step;
    EXPECT_EQ(failure_of("GET / HTTP/1.1\r\nA: " + std::string(5000, 'a'), step, limits), 431) << step;
  }
}

TEST(RequestReader, BodyLimit) {
  const RequestReader::Limits limits{.header = 2048, .body = 100};
  const auto sized = [](std::size_t n) {
    return "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(n) + "\r\n\r\n" +
           std::string(n, 'b');
  };
  EXPECT_EQ(failure_of(sized(100), 13, limits), 0);
  EXPECT_EQ(failure_of(sized(101), 13, limits), 413);
  const std::string chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n32\r\n" +
                              std::string(50, 'b') + "\r\n32\r\n" + std::string(50, 'b') + "\r\n";
  EXPECT_EQ(failure_of(chunked + "0\r\n\r\n", 13, limits), 0);
  EXPECT_EQ(failure_of(chunked + "1\r\nb\r\n", 13, limits), 413);
}

TEST(RequestReader, EndlessChunkLines) {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(failure_of(head + "1;" + std::string(20'000, 'x'), 1000), 400);
  EXPECT_EQ(failure_of(head + "0\r\nT: " + std::string(20'000, 'x'), 1000), 400);
}

TEST(RequestReader, LinesEndWithCrLf) {
  for (const std::size_t step : {1u, 1000u}) {
    RequestReader reader({});
    EXPECT_TRUE(read_all("GET / HTTP/1.1\nHost: h\n\nGET / HTTP/1.1\r\nHost: h\n\r\n", step, reader).empty());
  }
}

// The head comes first, so that a request that may not be asked at all is refused for that.
TEST(RequestReader, HeadBeforeItsFault) {
  RequestReader reader({.header = 2048, .body = 100});
  reader.append("POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n");
  EXPECT_EQ(reader.next(), Event::kHead);
  EXPECT_EQ(reader.head().target, "/p");
  EXPECT_EQ(reader.next(), Event::kError);
  EXPECT_EQ(reader.failure().status, 413);
}

TEST(RequestReader, KnowsWhereItIs) {
  RequestReader reader({});
  EXPECT_FALSE(reader.started());
  reader.append("P");
  EXPECT_EQ(reader.next(), Event::kNeedMore);
  EXPECT_TRUE(reader.started());
  EXPECT_FALSE(reader.in_body());
  reader.append("OST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nab");
  EXPECT_EQ(reader.next(), Event::kHead);
  EXPECT_EQ(reader.next(), Event::kNeedMore);
  EXPECT_TRUE(reader.in_body());
  EXPECT_EQ(reader.body_bytes(), 2u);
  reader.append("cdGET");
  EXPECT_EQ(reader.next(), Event::kDone);
  EXPECT_EQ(reader.unread(), 3u);
  EXPECT_EQ(reader.take_body(), "abcd");
  reader.begin();
  EXPECT_TRUE(reader.started());
  EXPECT_FALSE(reader.in_body());
}

}  // namespace
}  // namespace mimo::http
