#include "cli/bench_options.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <utility>

#include "cli/bundled_model.h"
#include "cli/validators.h"
#include "core/cpu_features.h"

namespace mimo {
namespace {

const std::map<std::string, Endpoint>& endpoints() {
  static const std::map<std::string, Endpoint> table = {
      {"completions", Endpoint::kCompletions}, {"chat", Endpoint::kChat}, {"messages", Endpoint::kMessages}};
  return table;
}

const std::map<std::string, Dataset>& datasets() {
  static const std::map<std::string, Dataset> table = {{"random", Dataset::kRandom},
                                                       {"random-ids", Dataset::kRandomIds},
                                                       {"sharegpt", Dataset::kShareGpt},
                                                       {"file", Dataset::kFile},
                                                       {"generated-shared-prefix", Dataset::kSharedPrefix},
                                                       {"agents", Dataset::kAgents}};
  return table;
}

template <class T>
std::vector<std::string> names(const std::map<std::string, T>& table) {
  std::vector<std::string> list;
  for (const auto& [name, value] : table) list.push_back(name);
  return list;
}

// Of this process, without keys.
json::array command_line() {
  json::array list;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  bool secret = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\0', at), text.size());
    std::string word = text.substr(at, end - at);
    at = end + 1;
    if (std::exchange(secret, word == "--api-key")) word = "***";
    if (word.starts_with("--api-key=")) word = "--api-key=***";
    list.emplace_back(word);
  }
  return list;
}

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

void add_load_options(CLI::App& command, BenchLoadOptions& options) {
  const char* group = "Server";
  command.add_option("--base-url,--url", options.target.url, "Server at http://HOST[:PORT][/v1]")
      ->required()
      ->check(check_not_empty)
      ->group(group);
  command
      .add_option("--model", options.target.model, "The model's name there; default: the first that it lists")
      ->check(check_not_empty)
      ->group(group);
  command.add_option("--api-key", options.target.api_key, "Bearer token; default: $MIMO_API_KEY")
      ->group(group);
  command
      .add_option("--timeout", options.target.request_seconds,
                  "Seconds an answer may take; longer is a failure")
      ->check(check_not_nan)
      ->check(CLI::Range(0.01, 1e6))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--tokenizer", options.tokenizer,
                  "Directory with the server's tokenizer.json; default: the bundled model's")
      ->check(check_not_empty)
      ->group(group);

  group = "Requests";
  command.add_option("--endpoint", options.endpoint, "completions takes token ids, the others text")
      ->check(CLI::IsMember(names(endpoints())))
      ->capture_default_str()
      ->group(group);
  command.add_option("--temperature", options.style.temperature, "0: greedy")
      ->check(check_not_nan)
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str()
      ->group(group);
  command.add_flag("--return-token-ids", options.style.return_token_ids, "Ask for the ids of the answers")
      ->group(group);
  command.add_option("--extra-body", options.extra_body, "JSON object: further members of each request")
      ->check(check_not_empty)
      ->group(group);
  command.add_option("--seed", options.seed, "Of lengths, order and arrivals")
      ->check(check_unsigned_integer)
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--warm", options.warm,
                "The seed decides the text too, and prompts are sent before they are measured. Otherwise "
                "every run has "
                "prompts of its own, which no cache knows")
      ->group(group);

  group = "Output";
  command
      .add_option("--output-file", options.output_file,
                  "JSON lines: the run, each request, each result (see docs)")
      ->check(check_not_empty)
      ->group(group);
  command
      .add_flag("--save-outputs", options.save_outputs, "With --output-file: texts and ids of the answers")
      ->group(group);
  command.add_flag("--json", options.json, "One JSON object as the last line of stdout")->group(group);
}

Result<LoadTarget> begin_load(BenchLoadOptions& options, bool with_tokenizer) {
  options.style.endpoint = endpoints().at(options.endpoint);
  if (options.save_outputs && options.output_file.empty())
    return fail(ErrorCode::kInvalidArgument, "--save-outputs: only with --output-file");
  if (!options.extra_body.empty()) {
    Result<json::value> extra = parse_json(options.extra_body, "--extra-body");
    if (!extra) return forward_error(extra);
    if (!extra->is_object()) return fail(ErrorCode::kInvalidArgument, "--extra-body: expected a JSON object");
    options.style.extra = std::move(extra->get_object());
  }
  if (options.target.api_key.empty()) {
    if (const char* key = std::getenv("MIMO_API_KEY"); key != nullptr) options.target.api_key = key;
  }
  if (!options.warm) {
    std::random_device device;
    options.run = std::uint64_t{device()} << 32 | device();
  }
  if (with_tokenizer) {
    std::string directory = options.tokenizer;
    if (directory.empty()) {
      Result<std::string> bundled = bundled_model();
      if (!bundled) return tl::unexpected(bundled.error().within("--tokenizer"));
      directory = std::move(*bundled);
    }
    options.target.tokenizer_file = directory + "/tokenizer.json";
  }
  Result<LoadTarget> target = open_target(options.target);
  if (target) options.style.model = target->model;
  return target;
}

void add_dataset_options(CLI::App& command, DatasetChoice& choice) {
  const char* const group = "Prompts";
  DatasetOptions& options = choice.options;
  const auto count = [&](const char* name, auto& value, const char* text, std::int64_t least = 1) {
    return command.add_option(name, value, text)
        ->check(CLI::Range(least, std::int64_t{1} << 40))
        ->group(group);
  };
  command
      .add_option(
          "--dataset", choice.name,
          "random: words; random-ids: ids of the whole vocabulary (both meaningless to a drafter); sharegpt: "
          "first turns; file: JSON lines with prompt, token_ids or messages, and output_tokens; "
          "generated-shared-prefix; agents")
      ->check(CLI::IsMember(names(datasets())))
      ->capture_default_str()
      ->group(group);
  command.add_option("--dataset-path", options.path, "File of sharegpt and file")
      ->check(check_not_empty)
      ->group(group);
  count("--num-prompts", options.count, "Prompts of a round; default: 100, of a file all");
  count("--random-input-len,--input-len", options.input_tokens, "Tokens of a random prompt")
      ->capture_default_str();
  count("--random-output-len,--output-len", options.output_tokens,
        "Most tokens of an answer; default: 128, of files what they say");
  command
      .add_option("--random-range-ratio", choice.ratio,
                  "Random lengths are uniform between 1 - R and 1 + R times those given")
      ->check(check_not_nan)
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  count("--gsp-num-groups", options.groups, "generated-shared-prefix: groups")->capture_default_str();
  count("--gsp-prompts-per-group", options.prompts_per_group, "Prompts of each")->capture_default_str();
  count("--gsp-system-prompt-len", options.system_tokens, "Tokens with which a group's prompts begin")
      ->capture_default_str();
  count("--gsp-question-len", options.question_tokens, "Tokens of each prompt's own")->capture_default_str();
}

Result<DatasetOptions> chosen_dataset(const DatasetChoice& choice, const BenchLoadOptions& load) {
  DatasetOptions options = choice.options;
  options.dataset = datasets().at(choice.name);
  options.range_ratio = choice.ratio;
  options.seed = load.seed;
  options.run = load.run;
  options.endpoint = endpoints().at(load.endpoint);
  const bool from_file = options.dataset == Dataset::kFile || options.dataset == Dataset::kShareGpt;
  if (from_file && options.path.empty())
    return fail(ErrorCode::kInvalidArgument, "--dataset {}: --dataset-path is missing", choice.name);
  if (!from_file && !options.path.empty())
    return fail(ErrorCode::kInvalidArgument, "--dataset {}: takes no --dataset-path", choice.name);
  if (options.dataset == Dataset::kRandomIds && options.endpoint != Endpoint::kCompletions)
    return fail(ErrorCode::kInvalidArgument, "--dataset random-ids: only with --endpoint completions");
  return options;
}

Result<BenchOutput> BenchOutput::open(const BenchLoadOptions& options, const LoadTarget& target,
                                      const char* command) {
  BenchOutput output(options.save_outputs);
  json::object& header = output.header_;
  header["type"] = "run";
  header["benchmark"] = command;
  header["date"] = utc_now();
  header["version"] = MIMO_VERSION;
  header["command"] = command_line();
  header["url"] = options.target.url;
  header["model"] = target.model;
  header["endpoint"] = options.endpoint;
  header["seed"] = options.seed;
  header["prompts"] = options.warm ? "warm" : "own";
  header["run"] = options.run;
  header["client_cpu"] = cpu_description();
  double load[3] = {};
  if (::getloadavg(load, 3) == 3) header["client_load_average"] = json::array{load[0], load[1], load[2]};
  header["server"] = target.server;
  if (options.output_file.empty()) return output;
  Result<JsonlWriter> file = JsonlWriter::create(options.output_file);
  if (!file) return tl::unexpected(file.error().within("--output-file"));
  output.file_.emplace(std::move(*file));
  output.file_->write(header);
  return output;
}

void BenchOutput::records(std::span<const SentRequest> records, const std::string& arm) {
  if (!file_) return;
  for (const SentRequest& record : records) {
    json::object line = record_json(record, with_text_);
    line["arm"] = arm;
    file_->write(line);
  }
}

void BenchOutput::result(json::object line) {
  if (!file_) return;
  line["type"] = "result";
  file_->write(line);
}

Status BenchOutput::close() {
  if (!file_) return {};
  const Status closed = file_->close();
  if (!closed) return tl::unexpected(closed.error().within("--output-file"));
  return {};
}

}  // namespace mimo
