// The chat page at "/": the files of src/server/web, which the build puts into the program.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "server/http/http_options.h"

namespace mimo {

struct WebFile {
  std::string_view name;  // "chat.js"
  std::string_view body;
  std::string_view sha256;  // of the body, in hexadecimal
};

// Sorted by name. Defined by the source that cmake/embed_files.cmake writes.
std::span<const WebFile> web_files();

// "/" leads to index.html, "/web/NAME" to every other file. No key is needed: the page asks for it where the API does.
// They are served while the model loads, too.
std::vector<HttpRoute> web_page_routes();

}  // namespace mimo
