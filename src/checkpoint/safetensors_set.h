// The safetensors files of a checkpoint directory as one name space: through model.safetensors.index.json,
// the single model.safetensors, or every *.safetensors of the directory when neither exists.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/result.h"

namespace mimo {

struct StoredTensor {
  const TensorInfo* info = nullptr;
  const SafetensorsFile* file = nullptr;

  const std::uint8_t* data() const { return file->data(*info); }
};

class SafetensorsSet {
 public:
  // Fails only when there is nothing to look at (no directory, no file, an index that is not an index);
  // everything else that is wrong with the files is listed in problems().
  static Result<SafetensorsSet> open(const std::string& directory);

  const StoredTensor* find(std::string_view name) const;
  const std::unordered_map<std::string_view, StoredTensor>& tensors() const { return tensors_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const std::vector<Error>& problems() const { return problems_; }
  const std::vector<std::string>& other_files() const {
    return other_files_;
  }  // *.safetensors that are not part of it
  bool indexed() const { return indexed_; }
  std::optional<std::int64_t> index_tp_size() const { return tp_size_; }  // metadata.tp_size of the index

 private:
  SafetensorsSet() = default;

  Status read_index(const std::string& path, std::vector<std::string>& names,
                    std::vector<std::pair<std::string, std::string>>& weight_map);
  void open_files(const std::string& directory, const std::vector<std::string>& names);
  void join_tensors();
  void check_index(const std::string& directory,
                   const std::vector<std::pair<std::string, std::string>>& weight_map);

  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string_view, StoredTensor> tensors_;  // keys point into the files' headers
  std::vector<Error> problems_;
  std::vector<std::string> other_files_;
  std::optional<std::int64_t> tp_size_;
  bool indexed_ = false;
};

}  // namespace mimo
