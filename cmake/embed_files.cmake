# cmake -DFOLDER=... -DOUTPUT=... -P embed_files.cmake: a C++ source that holds the files of FOLDER, and defines
# mimo::web_files() (src/server/web_page.h).
file(GLOB files RELATIVE ${FOLDER} ${FOLDER}/*)
list(SORT files)
set(bodies "")
set(table "")
set(number 0)
foreach(name ${files})
  file(READ ${FOLDER}/${name} hex HEX)
  file(SHA256 ${FOLDER}/${name} digest)
  string(LENGTH "${hex}" digits)
  math(EXPR bytes "${digits} / 2")
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," characters "${hex}")
  # Lines of a bearable length: 16 characters of 7 letters each.
  string(REGEX REPLACE "((.......)(.......)(.......)(.......)(.......)(.......)(.......)(.......))" "\\1\n" characters "${characters}")
  string(APPEND bodies "constexpr char kBody${number}[] = {\n${characters}};\n")
  string(APPEND table "    {\"${name}\", {kBody${number}, ${bytes}}, \"${digest}\"},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT}
"// Made by embed_files.cmake.
#include \"server/web_page.h\"

namespace mimo {
namespace {

${bodies}
constexpr WebFile kFiles[] = {
${table}};

}  // namespace

std::span<const WebFile> web_files() { return kFiles; }

}  // namespace mimo
")
