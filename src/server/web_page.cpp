#include "server/web_page.h"

#include <fmt/format.h>

#include <memory>
#include <string>

#include "core/check.h"

namespace mimo {
namespace {

// Scripts and styles of this server only, no inline ones, no form that leads anywhere, no frame around the page, and
// no text that is parsed as HTML.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

constexpr const char* content_type(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return nullptr;
}

// Browsers ask each time, and get the file only if it is another one than theirs.
void serve(const WebFile& file, Exchange& exchange) {
  const std::string tag = fmt::format("\"{}\"", file.sha256.substr(0, 16));
  HttpResponse response;
  response.content_type = content_type(file.name);
  response.headers = {{"Cache-Control", "no-cache"},
                      {"ETag", tag},
                      {"Content-Security-Policy", kPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"}};
  if (exchange.request().header("if-none-match").find(tag) != std::string_view::npos) {
    response.status = 304;
  } else {
    response.body = file.body;
  }
  exchange.respond(std::move(response));
}

}  // namespace

std::vector<HttpRoute> web_page_routes() {
  std::vector<HttpRoute> routes;
  for (const WebFile& file : web_files()) {
    MIMO_CHECK(content_type(file.name) != nullptr, "src/server/web/{}: no content type", file.name);
    routes.push_back({"GET", file.name == "index.html" ? "/" : fmt::format("/web/{}", file.name),
                      [&file](const std::shared_ptr<Exchange>& exchange) { serve(file, *exchange); },
                      Access::kOpen, true});
  }
  return routes;
}

}  // namespace mimo
