#include "text/constraint_compiler.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <list>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/grammar/grammar_constraint.h"
#include "text/grammar/spec_grammar.h"

namespace mimo {
namespace {

// Time spent on looking tokens up before the first mask is asked for.
constexpr std::chrono::milliseconds kPrepareTime{150};

using CompileResult = ConstraintCompiler::CompileResult;

std::shared_ptr<const grammar::Vocabulary> read_vocabulary(const Tokenizer& tokenizer,
                                                           std::span<const std::int32_t> end_tokens) {
  std::vector<std::string_view> bytes(tokenizer.vocab_size());
  for (std::size_t id = 0; id < bytes.size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    if (tokenizer.is_added(token)) continue;
    bytes[id] = tokenizer.token_bytes(token).value_or(std::string_view());
  }
  for (const std::int32_t token : end_tokens) {
    if (token >= 0 && static_cast<std::size_t>(token) < bytes.size())
      bytes[static_cast<std::size_t>(token)] = {};
  }
  return std::make_shared<const grammar::Vocabulary>(
      bytes, std::vector<std::int32_t>(end_tokens.begin(), end_tokens.end()));
}

std::int32_t added_token(const Tokenizer& tokenizer, std::string_view spelling) {
  const std::optional<TokenId> id = tokenizer.token_id(spelling);
  return id && tokenizer.is_added(*id) ? *id : -1;
}

std::size_t bytes_of(const grammar::CompiledGrammar& grammar) {
  // A state is a row of some 40 cells; what is kept for states grows while the grammar is used.
  return grammar.automaton().states() * 200 + grammar.cached_bytes();
}

}  // namespace

class ConstraintCompiler::Pool {
 public:
  Pool(const Tokenizer& tokenizer, std::span<const std::int32_t> end_tokens, const ConstraintLimits& limits)
      : limits_(limits),
        vocabulary_(read_vocabulary(tokenizer, end_tokens)),
        call_tokens_{.open = added_token(tokenizer, "<tool_call>"),
                     .close = added_token(tokenizer, "</tool_call>")} {
    for (int i = 0; i < limits.workers; ++i) workers_.emplace_back([this] { work(); });
  }

  ~Pool() {
    std::deque<std::shared_ptr<Job>> waiting;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      waiting.swap(queue_);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    for (const auto& job : waiting) {
      answer(*job, fail(ErrorCode::kCancelled, "the server is shutting down"));
    }
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void submit(ConstraintSpec spec, Callback done) {
    if (const Status size = grammar::check_spec_size(spec); !size) return done(forward_error(size));
    std::string key = grammar::spec_key(spec);
    CompileResult known =
        fail(ErrorCode::kBusy, "{} grammars are waiting to be compiled; try again later", limits_.queue);
    {
      const std::lock_guard lock(mutex_);
      if (const auto at = cache_index_.find(key); at != cache_index_.end()) {
        cache_.splice(cache_.begin(), cache_, at->second);
        known = cache_.front().result;
      } else if (const auto open = open_.find(key); open != open_.end()) {
        // Somebody waits for the same.
        open->second->callbacks.push_back(std::move(done));
        return;
      } else if (queue_.size() < limits_.queue) {
        auto job = std::make_shared<Job>();
        job->spec = std::move(spec);
        job->key = std::move(key);
        job->callbacks.push_back(std::move(done));
        open_.emplace(job->key, job);
        queue_.push_back(std::move(job));
        wake_.notify_one();
        return;
      }
    }
    done(std::move(known));
  }

 private:
  struct Job {
    ConstraintSpec spec;
    std::string key;
    std::vector<Callback> callbacks;
  };
  struct Entry {
    std::string key;
    CompileResult result;
    std::shared_ptr<const grammar::CompiledGrammar> grammar;  // null: an error
  };

  void work() {
    while (true) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        job = std::move(queue_.front());
        queue_.pop_front();
      }
      Entry entry{.key = job->key, .result = {}, .grammar = nullptr};
      const bool keep = run(job->spec, entry);
      const CompileResult result = entry.result;
      {
        const std::lock_guard lock(mutex_);
        if (keep) remember(std::move(entry));
        open_.erase(job->key);
      }
      answer(*job, result);
    }
  }

  // False: not to be kept, as a quieter machine may give another answer.
  bool run(const ConstraintSpec& spec, Entry& entry) const {
    grammar::GrammarLimits limits;
    limits.lookahead = static_cast<int>(vocabulary_->tree().max_depth());
    limits.deadline = std::chrono::steady_clock::now() + limits_.time;
    try {
      Result<grammar::Automaton> automaton = grammar::compile_spec(spec, call_tokens_, limits);
      if (!automaton) {
        entry.result = forward_error(automaton);
        return std::chrono::steady_clock::now() < limits.deadline;
      }
      const auto compiled = std::make_shared<grammar::CompiledGrammar>(std::move(*automaton), vocabulary_);
      compiled->prepare(kPrepareTime);
      entry.grammar = compiled;
      entry.result = std::shared_ptr<const CompiledConstraint>(compiled);
      return true;
    } catch (const std::bad_alloc&) {
      entry.result = fail(ErrorCode::kLimit, "compiling the grammar takes more memory than there is");
    } catch (const std::exception& error) {
      // Nothing is known to throw anything else; if it does, one request pays and not the process.
      entry.result = fail(ErrorCode::kInternal, "compiling the grammar failed: {}", error.what());
    }
    return false;
  }

  void remember(Entry entry) {
    cache_.push_front(std::move(entry));
    cache_index_[cache_.front().key] = cache_.begin();
    std::size_t bytes = 0;
    std::size_t entries = 0;
    for (auto at = cache_.begin(); at != cache_.end();) {
      bytes += at->key.size() + (at->grammar ? bytes_of(*at->grammar) : 0);
      ++entries;
      if (entries > 1 && (entries > limits_.cache_entries || bytes > limits_.cache_bytes)) {
        cache_index_.erase(at->key);
        at = cache_.erase(at);
      } else {
        ++at;
      }
    }
  }

  // Nobody adds callbacks to a job that is no longer open.
  static void answer(Job& job, const CompileResult& result) {
    for (Callback& callback : job.callbacks) callback(result);
  }

  ConstraintLimits limits_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  grammar::CallTokens call_tokens_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::deque<std::shared_ptr<Job>> queue_;
  std::unordered_map<std::string, std::shared_ptr<Job>> open_;  // waiting or running
  std::list<Entry> cache_;                                      // used last first
  std::unordered_map<std::string, std::list<Entry>::iterator> cache_index_;
  std::vector<std::thread> workers_;
};

ConstraintCompiler::ConstraintCompiler(const Tokenizer& tokenizer, std::span<const std::int32_t> end_tokens,
                                       const ConstraintLimits& limits)
    : pool_(std::make_unique<Pool>(tokenizer, end_tokens, limits)) {}

ConstraintCompiler::~ConstraintCompiler() = default;

void ConstraintCompiler::compile_async(ConstraintSpec spec, Callback done) {
  pool_->submit(std::move(spec), std::move(done));
}

CompileResult ConstraintCompiler::compile(ConstraintSpec spec) {
  auto answer = std::make_shared<std::promise<CompileResult>>();
  std::future<CompileResult> future = answer->get_future();
  compile_async(std::move(spec), [answer](CompileResult result) { answer->set_value(std::move(result)); });
  return future.get();
}

}  // namespace mimo
