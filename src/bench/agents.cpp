#include "bench/agents.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace mimo {
namespace {

constexpr std::int64_t kFewestNew = 1;

class AgentsRun {
 public:
  AgentsRun(LoadTarget& target, const RequestStyle& style, const AgentsOptions& options,
            const std::function<void(const SentRequest&)>& ended)
      : target_(target),
        style_(style),
        options_(options),
        ended_(ended),
        with_ids_(style.endpoint == Endpoint::kCompletions),
        random_(options.seed * 0x9E3779B97F4A7C15 + options.run) {
    style_.return_token_ids = with_ids_;
  }

  LoadResult run() {
    const std::int64_t own = std::max(options_.first_tokens - options_.shared_tokens, kFewestNew);
    std::vector<LoadPrompt> first(static_cast<std::size_t>(options_.agents));
    if (with_ids_) {
      const std::vector<std::int32_t> shared = target_.maker->ids(random_, options_.shared_tokens);
      for (LoadPrompt& prompt : first) {
        prompt.ids = shared;
        const std::vector<std::int32_t> rest = target_.maker->ids(random_, own);
        prompt.ids.insert(prompt.ids.end(), rest.begin(), rest.end());
      }
    } else {
      const std::string shared = target_.maker->text(random_, options_.shared_tokens);
      for (LoadPrompt& prompt : first) {
        const std::int64_t rest = std::max(own - options_.overhead, kFewestNew);
        add_message(prompt, "user", shared + "\n\n" + target_.maker->text(random_, rest));
      }
    }
    prompts_ = std::move(first);
    records_.resize(prompts_.size() * static_cast<std::size_t>(options_.turns));
    for (std::size_t i = 0; i < records_.size(); ++i) {
      records_[i].id = fmt::format("{}.{}", i / static_cast<std::size_t>(options_.turns),
                                   i % static_cast<std::size_t>(options_.turns));
      records_[i].wanted_out = options_.output_tokens;
      records_[i].error = "not sent: an earlier turn failed";
    }
    LoadClient& client = *target_.client;
    client.open(options_.agents);
    client.at(client.now(), [this] {
      for (int agent = 0; agent < options_.agents; ++agent) send(agent, 0);
    });
    client.take_cost();
    client.run();
    return {std::move(records_), client.take_cost()};
  }

 private:
  static void add_message(LoadPrompt& prompt, const char* role, const std::string& text) {
    prompt.messages.push_back(json::object{{"role", role}, {"content", text}});
  }

  void send(int agent, int turn) {
    LoadPrompt& prompt = prompts_[static_cast<std::size_t>(agent)];
    prompt.output_tokens = options_.output_tokens;
    prompt.prompt_tokens = std::ssize(prompt.ids);
    const std::size_t place = static_cast<std::size_t>(agent) * static_cast<std::size_t>(options_.turns) +
                              static_cast<std::size_t>(turn);
    SentRequest record = records_[place];
    record.error.clear();
    record.due = target_.client->now();
    record.wanted_in = prompt.prompt_tokens;
    target_.client->send(style_.endpoint, style_.stream, request_body(style_, prompt), std::move(record),
                         [this, agent, turn, place](SentRequest done) {
                           records_[place] = std::move(done);
                           if (ended_) ended_(records_[place]);
                           if (records_[place].failed() || turn + 1 == options_.turns) return;
                           grow(agent, turn, records_[place]);
                           send(agent, turn + 1);
                         });
  }

  // The answer and new text.
  void grow(int agent, int turn, const SentRequest& answer) {
    LoadPrompt& prompt = prompts_[static_cast<std::size_t>(agent)];
    if (!with_ids_) {
      // Templates may refuse an empty turn.
      add_message(prompt, "assistant", answer.text.empty() ? "." : answer.text);
      add_message(prompt, "user",
                  target_.maker->text(random_, std::max(options_.growth_tokens - answer.n_out, kFewestNew)));
      return;
    }
    const std::vector<std::int32_t> said =
        std::ssize(answer.ids) == answer.n_out ? answer.ids : target_.tokenizer->encode(answer.text, {});
    prompt.ids.insert(prompt.ids.end(), said.begin(), said.end());
    const std::int64_t wanted = options_.first_tokens + (turn + 1) * options_.growth_tokens;
    const std::vector<std::int32_t> more =
        target_.maker->ids(random_, std::max(wanted - std::ssize(prompt.ids), kFewestNew));
    prompt.ids.insert(prompt.ids.end(), more.begin(), more.end());
  }

  LoadTarget& target_;
  RequestStyle style_;
  const AgentsOptions& options_;
  const std::function<void(const SentRequest&)>& ended_;
  bool with_ids_;
  std::mt19937_64 random_;
  std::vector<LoadPrompt> prompts_;  // of each agent, the turn under way
  std::vector<SentRequest> records_;
};

}  // namespace

std::int64_t ideal_prefill(const AgentsOptions& options) {
  return options.shared_tokens + options.agents * (options.first_tokens - options.shared_tokens) +
         std::int64_t{options.agents} * (options.turns - 1) * options.growth_tokens;
}

LoadResult run_agents(LoadTarget& target, const RequestStyle& style, const AgentsOptions& options,
                      const std::function<void(const SentRequest&)>& ended) {
  return AgentsRun(target, style, options, ended).run();
}

}  // namespace mimo
