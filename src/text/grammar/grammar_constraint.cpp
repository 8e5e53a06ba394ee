#include "text/grammar/grammar_constraint.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/check.h"

namespace mimo::grammar {
namespace {

// Work (Walker::work_done) that one mask may cost: some 50 ms. Only grammars that can be read in very many ways
// come near; for them a mask may miss tokens, but none of one byte, so that the walk can always go on.
constexpr std::int64_t kMaskWork = 3'000'000;
// Of what is kept for the states of one grammar. Above it tokens are looked up again each time.
constexpr std::size_t kMaxCachedBytes = 48U << 20;

void set_bit(std::span<std::uint32_t> mask, std::int32_t token) {
  const auto at = static_cast<std::size_t>(token);
  if (at / 32 < mask.size()) mask[at / 32] |= 1U << (at % 32);
}

// Walks branches of the vocabulary's tree. Configurations are kept for each depth, so that siblings go on from
// their parent's.
class TreeWalk {
 public:
  // Stops when the walker has done `limit`.
  TreeWalk(const VocabularyTree& tree, Walker& walker, std::int64_t limit)
      : nodes_(tree.nodes()), walker_(walker), limit_(limit), path_(tree.max_depth() + 1) {}

  // Nodes from `begin` to `end`, which are siblings with their branches, after `from`, which takes the bytes
  // `first`: most branches die at their first byte, by one test instead of a move. `taken(node, config)` is
  // called for each node that can be reached.
  template <class Taken>
  void walk(std::uint32_t begin, std::uint32_t end, const Configuration& from,
            const std::array<bool, 256>& first, Taken taken) {
    if (begin >= end) return;
    const std::size_t base = nodes_[begin].depth;
    for (std::uint32_t at = begin; at < end && walker_.work_done() < limit_;) {
      const VocabularyTree::Node& node = nodes_[at];
      const std::size_t depth = node.depth - base;
      if (depth == 0 && !first[node.byte]) {
        at = node.end;
        continue;
      }
      const Configuration& before = depth == 0 ? from : path_[depth - 1];
      Configuration& after = path_[depth];
      if (!walker_.step(before, node.byte, after)) {
        at = node.end;
        continue;
      }
      taken(at, after);
      at = after.threads.empty() ? node.end : at + 1;
    }
  }

 private:
  const std::vector<VocabularyTree::Node>& nodes_;
  Walker& walker_;
  std::int64_t limit_;
  std::vector<Configuration> path_;
};

class GrammarConstraint : public Constraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<const CompiledGrammar> grammar)
      : grammar_(std::move(grammar)), walker_(grammar_->automaton(), frames_) {
    std::vector<Thread> start{{grammar_->automaton().start(), kBottom}};
    auto config = std::make_shared<Configuration>();
    walker_.settle(start, *config);
    history_.push_back({std::move(config), false});
  }

  bool fill_mask(std::span<std::uint32_t> mask) override {
    const Step& now = history_.back();
    const std::vector<std::uint32_t>& known = mask_of(*now.config);
    const std::size_t words = std::min(mask.size(), known.size());
    if (now.ended) {
      std::fill(mask.begin(), mask.end(), 0);
    } else {
      std::copy_n(known.begin(), words, mask.begin());
      std::fill(mask.begin() + static_cast<std::ptrdiff_t>(words), mask.end(), 0);
    }
    if (now.ended || now.config->complete) {
      for (const std::int32_t token : grammar_->vocabulary().end_tokens()) set_bit(mask, token);
    }
    return true;
  }

  bool accept(std::int32_t token) override {
    const Step& now = history_.back();
    if (grammar_->vocabulary().ends(token)) {
      if (!now.ended && !now.config->complete) return false;
      history_.push_back({now.config, true});
      return true;
    }
    if (now.ended) return false;
    const std::string_view bytes = grammar_->vocabulary().bytes(token);
    auto next = std::make_shared<Configuration>();
    if (bytes.empty()) {
      if (!walker_.step_token(*now.config, token, *next)) return false;
    } else {
      Configuration before = *now.config;
      for (const char c : bytes) {
        if (!walker_.step(before, static_cast<std::uint8_t>(c), *next)) return false;
        std::swap(before, *next);
      }
      *next = std::move(before);
    }
    // Inside a string one token is like the next.
    if (*next == *now.config) {
      history_.push_back({now.config, false});
    } else {
      history_.push_back({std::move(next), false});
    }
    return true;
  }

  void rollback(int tokens) override {
    MIMO_CHECK(tokens >= 0 && static_cast<std::size_t>(tokens) < history_.size(),
               "rollback of {} tokens, {} were accepted", tokens, history_.size() - 1);
    history_.resize(history_.size() - static_cast<std::size_t>(tokens));
  }

  bool done() const override {
    const Step& now = history_.back();
    return now.ended || (now.config->complete && now.config->threads.empty());
  }

 private:
  struct Step {
    std::shared_ptr<const Configuration> config;
    bool ended;  // by an end token
  };

  const std::vector<std::uint32_t>& mask_of(const Configuration& config) {
    for (const Known& known : known_) {
      if (!known.mask.empty() && known.config == config) return known.mask;
    }
    Known& known = known_[next_known_];
    next_known_ = (next_known_ + 1) % known_.size();
    known.config = config;
    compute(config, known.mask);
    return known.mask;
  }

  void compute(const Configuration& config, std::vector<std::uint32_t>& mask) {
    const Automaton& automaton = grammar_->automaton();
    const Vocabulary& vocabulary = grammar_->vocabulary();
    mask.assign(vocabulary.mask_words(), 0);
    const std::size_t frames = frames_.size();
    std::int64_t left = kMaskWork;  // for states that have to be looked up
    TreeWalk tree(vocabulary.tree(), walker_, walker_.work_done() + kMaskWork);
    const std::vector<VocabularyTree::Node>& nodes = vocabulary.tree().nodes();
    const auto allow = [&](std::uint32_t node, const Configuration&) {
      if (nodes[node].token >= 0) set_bit(mask, nodes[node].token);
    };
    // Single bytes, whatever the budget.
    std::array<bool, 256> first{};
    walker_.first_bytes(config, first);
    for (std::uint32_t at = 0; at < nodes.size(); at = nodes[at].end) {
      if (first[nodes[at].byte] && nodes[at].token >= 0) set_bit(mask, nodes[at].token);
    }

    Configuration outside;
    std::int32_t outside_frame = kBottom;
    for (std::size_t i = 0; i < config.threads.size(); ++i) {
      const Thread thread = config.threads[i];
      for (const Automaton::Jump& jump : automaton.tokens(thread.state)) set_bit(mask, jump.id);
      if (!automaton.takes_bytes(thread.state) || left <= 0) continue;
      const std::shared_ptr<const StateTokens> inside = grammar_->tokens_of(thread.state, left);
      for (std::size_t word = 0; word < inside->mask.size(); ++word) mask[word] |= inside->mask[word];
      for (const std::int32_t token : inside->tokens) set_bit(mask, token);
      if (thread.frame == kBottom || inside->exits.empty()) continue;
      if (thread.frame != outside_frame) {
        outside_frame = thread.frame;
        const FrameTable::Frame frame = frames_[thread.frame];
        std::vector<Thread> arrived{{frame.to, frame.parent}};
        walker_.settle(arrived, outside);
        walker_.first_bytes(outside, first);
      }
      if (outside.threads.empty()) continue;
      for (const std::uint32_t exit : inside->exits) {
        tree.walk(exit + 1, nodes[exit].end, outside, first, allow);
      };
    }
    frames_.truncate(frames);
  }

  struct Known {
    Configuration config;
    std::vector<std::uint32_t> mask;
  };

  std::shared_ptr<const CompiledGrammar> grammar_;
  FrameTable frames_;
  Walker walker_;
  std::vector<Step> history_;
  // Masks of the last few configurations: inside strings, and around a rollback, they come back.
  std::array<Known, 4> known_;
  std::size_t next_known_ = 0;
};

}  // namespace

CompiledGrammar::CompiledGrammar(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary)
    : automaton_(std::move(automaton)), vocabulary_(std::move(vocabulary)), states_(automaton_.states()) {}

std::unique_ptr<Constraint> CompiledGrammar::start() const {
  return std::make_unique<GrammarConstraint>(shared_from_this());
}

void CompiledGrammar::prepare(std::chrono::milliseconds budget) {
  const auto end = std::chrono::steady_clock::now() + budget;
  for (std::size_t state = 0; state < states_.size(); ++state) {
    if (std::chrono::steady_clock::now() >= end || cached_bytes() >= kMaxCachedBytes) return;
    std::int64_t work = 0;
    if (automaton_.takes_bytes(static_cast<std::int32_t>(state)))
      tokens_of(static_cast<std::int32_t>(state), work);
  }
}

std::shared_ptr<const StateTokens> CompiledGrammar::tokens_of(std::int32_t state, std::int64_t& work) const {
  state = automaton_.alike(state);
  const auto at = static_cast<std::size_t>(state);
  {
    const std::lock_guard lock(mutex_);
    if (states_[at]) return states_[at];
  }
  auto found = std::make_shared<const StateTokens>(look_up(state, work));
  const std::lock_guard lock(mutex_);
  if (!states_[at] && cached_bytes_ < kMaxCachedBytes) {
    states_[at] = found;
    cached_bytes_ += found->bytes();
  }
  return found;
}

std::size_t CompiledGrammar::cached_bytes() const {
  const std::lock_guard lock(mutex_);
  return cached_bytes_;
}

StateTokens CompiledGrammar::look_up(std::int32_t state, std::int64_t& work) const {
  FrameTable frames;
  Walker walker(automaton_, frames);
  TreeWalk tree(vocabulary_->tree(), walker, kMaskWork);
  const std::vector<VocabularyTree::Node>& nodes = vocabulary_->tree().nodes();
  StateTokens out;
  // The bottom of these stacks is the end of the state's own rule. The state's own calls and its end are other
  // threads of a walk, so only its bytes are followed here.
  const Configuration from{.threads = {{state, kBottom}}, .complete = false};
  std::array<bool, 256> first{};
  walker.first_bytes(from, first);
  tree.walk(0, static_cast<std::uint32_t>(nodes.size()), from, first,
            [&](std::uint32_t node, const Configuration& after) {
              if (nodes[node].token >= 0) out.tokens.push_back(nodes[node].token);
              if (after.complete && nodes[node].end > node + 1) out.exits.push_back(node);
            });
  if (out.tokens.size() > vocabulary_->mask_words()) {
    out.mask.assign(vocabulary_->mask_words(), 0);
    for (const std::int32_t token : out.tokens) set_bit(out.mask, token);
    out.tokens = {};
  }
  work -= walker.work_done();
  out.tokens.shrink_to_fit();
  out.exits.shrink_to_fit();
  return out;
}

}  // namespace mimo::grammar
