#include "cli/bundled_model.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "core/file.h"

namespace mimo {

Result<std::string> bundled_model() {
  if (const char* named = std::getenv("MIMO_MODEL"); named != nullptr && *named != '\0') {
    if (file_exists(std::string(named) + "/config.json")) return std::string(named);
    return fail(ErrorCode::kNotFound, "MIMO_MODEL={}: no config.json in that directory", named);
  }
  std::error_code error;
  const std::filesystem::path executable = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    for (const char* place :
         {"models/nano", "../models/nano", "../../models/nano", "../share/mimo/models/nano"}) {
      const std::string directory = (executable.parent_path() / place).lexically_normal().string();
      if (file_exists(directory + "/config.json")) return directory;
    }
  }
  return fail(
      ErrorCode::kNotFound,
      "no checkpoint given, and the bundled one (models/nano beside or above {}) is not there: name a "
      "checkpoint directory, or set MIMO_MODEL",
      error ? std::string("the executable") : executable.string());
}

}  // namespace mimo
