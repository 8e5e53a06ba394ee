#include "support/golden.h"

#include <cstdlib>
#include <cstring>

#include "checkpoint/safetensors.h"

namespace mimo {
namespace {

template <class T>
Status read_tensor(const SafetensorsFile& file, const std::string& name, std::vector<T>& out) {
  for (const TensorInfo& tensor : file.header().tensors) {
    if (tensor.name != name) continue;
    out.resize(tensor.bytes / sizeof(T));
    std::memcpy(out.data(), file.data(tensor), tensor.bytes);
    return {};
  }
  return fail(ErrorCode::kNotFound, "{}: no tensor {}", file.path(), name);
}

}  // namespace

std::string golden_directory(const std::string& name) {
  // A binary may run on another machine than the one that built it.
  const char* root = std::getenv("MIMO_SOURCE");
  return (root == nullptr ? std::string(MIMO_SOURCE_DIR) : std::string(root)) + "/tests/golden/" + name;
}

Result<Golden> load_golden(const std::string& directory) {
  const Result<SafetensorsFile> file = SafetensorsFile::open(directory + "/golden.safetensors");
  if (!file) return forward_error(file);
  Golden golden;
  std::vector<std::int32_t> prompt_len;
  for (const Status& status :
       {read_tensor(*file, "input_ids", golden.input_ids), read_tensor(*file, "logits", golden.logits),
        read_tensor(*file, "hidden_positions", golden.hidden_positions),
        read_tensor(*file, "hidden_states", golden.hidden_states),
        read_tensor(*file, "greedy_ids", golden.greedy_ids),
        read_tensor(*file, "greedy_prompt_len", prompt_len)}) {
    if (!status) return forward_error(status);
  }
  golden.greedy_prompt_len = prompt_len.at(0);
  return golden;
}

}  // namespace mimo
