#include "checkpoint/safetensors_set.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "core/json.h"

namespace mimo {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";
constexpr std::size_t kMaxIndexBytes = 256u << 20;
constexpr std::size_t kMaxFiles = 10'000;       // the largest release has 65
constexpr std::size_t kMaxListedProblems = 64;  // of one kind; a message needs only the first few
constexpr std::size_t kMaxOpenThreads = 8;  // header parsing is short; more threads cost more than they save

// Names from an index may only point into the checkpoint's own folder.
bool is_plain_file_name(std::string_view name) {
  return name.size() > std::string_view(".safetensors").size() && name.ends_with(".safetensors") &&
         name.find('/') == std::string_view::npos && name.find('\\') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

std::vector<std::string> list_safetensors(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code ec;
  for (std::filesystem::directory_iterator it(directory, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code type_error;
    if (it->path().extension() == ".safetensors" && it->is_regular_file(type_error)) {
      names.push_back(it->path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

const StoredTensor* SafetensorsSet::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

Status SafetensorsSet::read_index(const std::string& path, std::vector<std::string>& names,
                                  std::vector<std::pair<std::string, std::string>>& weight_map) {
  JsonLimits limits;
  limits.max_bytes = kMaxIndexBytes;
  const Result<json::value> index = parse_json_file(path, limits);
  if (!index) return forward_error(index);
  const json::object* fields = index->if_object();
  const json::value* map = fields != nullptr ? fields->if_contains("weight_map") : nullptr;
  if (map == nullptr || !map->is_object()) return fail(ErrorCode::kCorrupt, "{}: no weight_map object", path);
  std::set<std::string, std::less<>> unique;
  for (const auto& [key, value] : map->get_object()) {
    const std::string_view tensor(key.data(), key.size());
    if (!value.is_string()) {
      return fail(ErrorCode::kCorrupt, "{}: weight_map[\"{}\"] is {}, expected a file name", path, tensor,
                  json::serialize(value));
    }
    const std::string_view file(value.get_string().data(), value.get_string().size());
    if (!is_plain_file_name(file)) {
      return fail(ErrorCode::kCorrupt,
                  "{}: weight_map[\"{}\"] is {}, expected the name of a .safetensors file in the "
                  "same folder",
                  path, tensor, json::serialize(value));
    }
    if (!unique.contains(file)) unique.emplace(file);
    weight_map.emplace_back(tensor, file);
  }
  if (unique.empty()) return fail(ErrorCode::kCorrupt, "{}: weight_map is empty", path);
  if (unique.size() > kMaxFiles) {
    return fail(ErrorCode::kLimit, "{}: {} files, at most {} are allowed", path, unique.size(), kMaxFiles);
  }
  names.assign(unique.begin(), unique.end());
  if (const json::value* metadata = fields->if_contains("metadata");
      metadata != nullptr && metadata->is_object()) {
    const json::value* tp_size = metadata->get_object().if_contains("tp_size");
    if (tp_size != nullptr && !tp_size->is_null()) {
      if (!tp_size->is_int64() || tp_size->get_int64() < 1) {
        return fail(ErrorCode::kCorrupt, "{}: metadata.tp_size is {}, expected a positive integer", path,
                    json::serialize(*tp_size));
      }
      tp_size_ = tp_size->get_int64();
    }
  }
  return {};
}

void SafetensorsSet::open_files(const std::string& directory, const std::vector<std::string>& names) {
  std::vector<std::optional<Result<SafetensorsFile>>> opened(names.size());
  const std::size_t threads = std::min<std::size_t>(
      {names.size(), kMaxOpenThreads, std::max<std::size_t>(1, std::thread::hardware_concurrency())});
  std::vector<std::thread> pool;
  for (std::size_t t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      for (std::size_t i = t; i < names.size(); i += threads) {
        opened[i].emplace(SafetensorsFile::open(directory + "/" + names[i]));
      }
    });
  }
  for (std::thread& thread : pool) thread.join();

  files_.reserve(names.size());
  for (std::optional<Result<SafetensorsFile>>& file : opened) {
    if (*file) {
      files_.push_back(std::move(**file));
    } else {
      problems_.push_back(file->error());
    }
  }
}

void SafetensorsSet::join_tensors() {
  std::size_t total = 0;
  for (const SafetensorsFile& file : files_) total += file.header().tensors.size();
  tensors_.reserve(total);
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& info : file.header().tensors) {
      const auto [it, added] = tensors_.emplace(info.name, StoredTensor{&info, &file});
      if (!added && problems_.size() < kMaxListedProblems) {
        problems_.push_back(
            {ErrorCode::kCorrupt, fmt::format("tensor \"{}\" is in two files: {} and {}", info.name,
                                              it->second.file->path(), file.path())});
      }
    }
  }
}

void SafetensorsSet::check_index(const std::string& directory,
                                 const std::vector<std::pair<std::string, std::string>>& weight_map) {
  // Tensors of a file that could not be opened are covered by that file's own problem.
  std::set<std::string, std::less<>> open;
  for (const SafetensorsFile& file : files_) open.insert(file.path());
  std::size_t matched = 0;
  std::size_t listed = 0;
  std::string path;
  for (const auto& [tensor, file] : weight_map) {
    path = directory;
    path += '/';
    path += file;
    const StoredTensor* stored = find(tensor);
    if (stored != nullptr && stored->file->path() == path) {
      ++matched;
    } else if (open.contains(path) && ++listed <= kMaxListedProblems) {
      problems_.push_back(
          {ErrorCode::kNotFound,
           stored == nullptr
               ? fmt::format("{}: tensor \"{}\" is not in the file that the index names", path, tensor)
               : fmt::format("{}: tensor \"{}\" is not here but in {}", path, tensor, stored->file->path())});
    }
  }
  if (matched == tensors_.size()) return;
  std::set<std::string_view> named;
  for (const auto& entry : weight_map) named.insert(entry.first);
  listed = 0;
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& info : file.header().tensors) {
      if (!named.contains(info.name) && ++listed <= kMaxListedProblems) {
        problems_.push_back({ErrorCode::kCorrupt,
                             fmt::format("{}: tensor \"{}\" is not in the index", file.path(), info.name)});
      }
    }
  }
}

Result<SafetensorsSet> SafetensorsSet::open(const std::string& directory) {
  std::error_code ec;
  if (!std::filesystem::is_directory(directory, ec)) {
    return fail(ErrorCode::kNotFound, "{}: not a directory", directory);
  }
  SafetensorsSet set;
  std::vector<std::string> present = list_safetensors(directory);
  std::vector<std::string> names;
  std::vector<std::pair<std::string, std::string>> weight_map;
  const std::string index_path = directory + "/" + kIndexName;
  if (file_exists(index_path)) {
    set.indexed_ = true;
    if (const Status status = set.read_index(index_path, names, weight_map); !status)
      return forward_error(status);
  } else if (std::find(present.begin(), present.end(), kSingleName) != present.end()) {
    names = {kSingleName};
  } else {
    names = present;
  }
  if (names.empty()) {
    return fail(ErrorCode::kNotFound, "{}: no {} and no .safetensors file", directory, kIndexName);
  }
  std::set_difference(present.begin(), present.end(), names.begin(), names.end(),
                      std::back_inserter(set.other_files_));
  set.open_files(directory, names);
  set.join_tensors();
  if (set.indexed_) set.check_index(directory, weight_map);
  return set;
}

}  // namespace mimo
