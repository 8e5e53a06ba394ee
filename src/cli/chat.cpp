#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chat/chat_history.h"
#include "chat/chat_server.h"
#include "chat/chat_session.h"
#include "chat/local_server.h"
#include "chat/terminal.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "core/http_url.h"

namespace mimo {
namespace {

struct ChatOptions {
  std::string directory;
  std::string url;
  std::string api_key;
  std::string model;
  std::string system;
  std::string thinking;
  std::vector<std::pair<std::string_view, std::string>> settings;
};

int run(const ChatOptions& options) {
  ChatHistory history;
  history.system = options.system;
  if (!options.thinking.empty()) history.thinking = options.thinking == "on";
  for (const auto& [name, value] : options.settings) {
    if (const Status ok = history.set(name, value); !ok) return report_error(ok.error());
  }
  if (options.api_key.find_first_of("\r\n") != std::string::npos)
    return report_error({ErrorCode::kInvalidArgument, "--api-key: a key has no line break"});

  static const Interrupts interrupts;
  const auto stop = [] { return interrupts.take(); };
  Terminal terminal(interrupts);
  std::unique_ptr<LocalServer> local;
  std::string url = options.url;
  std::string key = options.api_key;
  if (url.empty()) {
    if (terminal.interactive()) terminal.note("Loading the model ...");
    Result<std::unique_ptr<LocalServer>> started = LocalServer::start(options.directory, stop);
    if (!started) return report_error(started.error());
    local = std::move(*started);
    url = local->url();
    key = local->api_key();
  }
  Result<HttpUrl> parsed = parse_http_url(url);
  if (!parsed) return report_error(parsed.error().within("--url"));
  const ChatServer server(std::move(*parsed), key);
  std::string model = options.model;
  if (model.empty()) {
    Result<std::string> first = server.model(stop);
    if (!first) return report_error(first.error());
    model = std::move(*first);
  }
  if (terminal.interactive()) terminal.note(model + ". /help shows the commands, Ctrl-D leaves.");
  return ChatSession(server, model, history, interrupts, terminal).run();
}

}  // namespace

CommandBody add_chat_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "chat", "Talk to a model in the terminal: to a checkpoint, or to a server with OpenAI's chat API");
  auto options = std::make_shared<ChatOptions>();
  CLI::Option* directory = command->add_option("DIR", options->directory,
                                               "Checkpoint, served for as long as the chat lasts (for other "
                                               "options than mimo serve's defaults: start that, "
                                               "and --url); default: the bundled model");
  command->add_option("--url", options->url, "http://HOST[:PORT][/PATH] of a running server")
      ->excludes(directory);
  command
      ->add_option("--api-key", options->api_key,
                   "Key for --url; others see command lines: better MIMO_API_KEY")
      ->envname("MIMO_API_KEY");
  command->add_option("--model", options->model,
                      "Name in requests; default: the first that the server offers");
  command->add_option("--system", options->system, "System prompt");
  command->add_option("--thinking", options->thinking, "Default: as the server has it")
      ->check(CLI::IsMember({"on", "off"}));
  for (const std::string_view name : ChatHistory::settings()) {
    std::string flag = "--" + std::string(name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    command
        ->add_option_function<std::string>(
            flag, [options, name](const std::string& value) { options->settings.emplace_back(name, value); },
            "Default: the server's")
        ->group("Sampling");
  }
  return [options] { return run(*options); };
}

}  // namespace mimo
