#include "text/grammar/automaton.h"

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>

#include "core/check.h"
#include "text/tokenizer_vocab.h"

namespace mimo::grammar {
namespace {

using StateSet = std::vector<std::int32_t>;  // sorted

// Of all state sets of one rule: 64 MB.
constexpr std::size_t kMaxMembers = 16'000'000;

struct StateSetHash {
  std::size_t operator()(const StateSet& set) const {
    return hash_bytes({reinterpret_cast<const char*>(set.data()), set.size() * sizeof(std::int32_t)});
  }
};

// Edges by one of their ends, as ranges of one array.
class EdgeIndex {
 public:
  EdgeIndex(const GrammarBuilder& builder, std::int32_t Edge::*end)
      : edges_(builder.edges()), begins_(builder.states() + 1, 0), order_(builder.edges().size()) {
    for (const Edge& edge : edges_) ++begins_[static_cast<std::size_t>(edge.*end) + 1];
    for (std::size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
    std::vector<std::uint32_t> next(begins_.begin(), begins_.end() - 1);
    for (std::size_t i = 0; i < edges_.size(); ++i) {
      order_[next[static_cast<std::size_t>(edges_[i].*end)]++] = static_cast<std::uint32_t>(i);
    }
  }

  template <class Visit>
  void each(std::int32_t state, Visit visit) const {
    const auto at = static_cast<std::size_t>(state);
    for (std::uint32_t i = begins_[at]; i < begins_[at + 1]; ++i) visit(edges_[order_[i]]);
  }

 private:
  const std::vector<Edge>& edges_;
  std::vector<std::uint32_t> begins_;
  std::vector<std::uint32_t> order_;
};

}  // namespace

class AutomatonBuilder {
 public:
  AutomatonBuilder(GrammarBuilder& builder, std::int32_t root)
      : builder_(builder),
        root_(root),
        out_edges_(builder, &Edge::from),
        in_edges_(builder, &Edge::to),
        deadline_(builder.limits().deadline) {}

  Status check() {
    live_ = reaching_end([](const Edge&) { return true; });
    if (!live(rule(root_).start)) {
      return fail(ErrorCode::kInvalidArgument, "no text of finite length matches");
    }
    nullable_ = reaching_end(
        [](const Edge& edge) { return edge.kind == EdgeKind::kEmpty || edge.kind == EdgeKind::kCall; });
    return check_left_recursion();
  }

  Result<Automaton> build() {
    if (const Status good = check(); !good) return forward_error(good);
    starts_.assign(builder_.rules().size(), -1);
    want(root_);
    while (!wanted_.empty()) {
      const std::int32_t next = wanted_.front();
      wanted_.pop_front();
      if (const Status done = determinize(next); !done) return forward_error(done);
    }
    link_calls();
    out_.start_ = starts_[static_cast<std::size_t>(root_)];
    return std::move(out_);
  }

 private:
  const Rule& rule(std::int32_t id) const { return builder_.rule(id); }
  bool live(std::int32_t state) const { return live_[static_cast<std::size_t>(state)]; }

  // States from which the end of their rule can be reached by edges that `takes` accepts; a call counts when
  // the start of its rule reaches that rule's end in the same way.
  template <class Takes>
  std::vector<bool> reaching_end(Takes takes) const {
    std::vector<bool> reached(builder_.states(), false);
    std::vector<std::int32_t> work;
    const auto reach = [&](std::int32_t state) {
      if (reached[static_cast<std::size_t>(state)]) return;
      reached[static_cast<std::size_t>(state)] = true;
      work.push_back(state);
    };
    const std::vector<Rule>& rules = builder_.rules();
    std::vector<std::vector<std::int32_t>> callers(rules.size());  // waiting for the rule to be reached
    std::unordered_map<std::int32_t, std::vector<std::int32_t>> rules_at;
    for (std::size_t i = 0; i < rules.size(); ++i) {
      rules_at[rules[i].start].push_back(static_cast<std::int32_t>(i));
      reach(rules[i].end);
    }
    while (!work.empty()) {
      const std::int32_t state = work.back();
      work.pop_back();
      if (const auto found = rules_at.find(state); found != rules_at.end()) {
        for (const std::int32_t id : found->second) {
          for (const std::int32_t caller : callers[static_cast<std::size_t>(id)]) reach(caller);
        }
      }
      in_edges_.each(state, [&](const Edge& edge) {
        if (!takes(edge)) return;
        if (edge.kind == EdgeKind::kCall && !reached[static_cast<std::size_t>(rule(edge.id).start)]) {
          callers[static_cast<std::size_t>(edge.id)].push_back(edge.from);
        } else {
          reach(edge.from);
        }
      });
    }
    return reached;
  }

  bool usable(const Edge& edge) const {
    return live(edge.to) && (edge.kind != EdgeKind::kCall || live(rule(edge.id).start));
  }

  // Rules that `id` may call before it has taken anything.
  std::vector<std::int32_t> first_calls(std::int32_t id) const {
    std::vector<std::int32_t> out;
    std::vector<std::int32_t> work{rule(id).start};
    std::unordered_map<std::int32_t, bool> seen{{rule(id).start, true}};
    while (!work.empty()) {
      const std::int32_t state = work.back();
      work.pop_back();
      out_edges_.each(state, [&](const Edge& edge) {
        if (!usable(edge)) return;
        const bool call = edge.kind == EdgeKind::kCall;
        if (call) out.push_back(edge.id);
        const bool free = edge.kind == EdgeKind::kEmpty ||
                          (call && nullable_[static_cast<std::size_t>(rule(edge.id).start)]);
        if (free && seen.emplace(edge.to, true).second) work.push_back(edge.to);
      });
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  Status check_left_recursion() {
    enum Mark : std::uint8_t { kNew, kOpen, kDone };
    struct Visit {
      std::int32_t rule;
      std::vector<std::int32_t> calls;
      std::size_t next = 0;
    };
    std::vector<Mark> marks(builder_.rules().size(), kNew);
    for (std::size_t i = 0; i < marks.size(); ++i) {
      const auto first = static_cast<std::int32_t>(i);
      if (marks[i] != kNew || !live(rule(first).start)) continue;
      std::vector<Visit> stack;
      marks[i] = kOpen;
      stack.push_back({first, first_calls(first)});
      while (!stack.empty()) {
        if (deadline_.passed()) return tl::unexpected<Error>(deadline_error());
        Visit& top = stack.back();
        if (top.next == top.calls.size()) {
          marks[static_cast<std::size_t>(top.rule)] = kDone;
          stack.pop_back();
          continue;
        }
        const std::int32_t called = top.calls[top.next++];
        Mark& mark = marks[static_cast<std::size_t>(called)];
        if (mark == kOpen) {
          return mimo::fail(
              ErrorCode::kInvalidArgument,
              "{} refers to itself before it takes any text (left recursion); repetition says the "
              "same without it",
              rule(called).name);
        }
        if (mark == kDone) continue;
        mark = kOpen;
        stack.push_back({called, first_calls(called)});
      }
    }
    return {};
  }

  void want(std::int32_t id) {
    bool& asked = asked_[id];
    if (asked) return;
    asked = true;
    wanted_.push_back(id);
  }

  // Adds what empty edges reach; sorts.
  void close(StateSet& set) {
    work_ = set;
    ++stamp_;
    if (stamps_.size() < builder_.states()) stamps_.resize(builder_.states(), 0);
    set.clear();
    for (const std::int32_t state : work_) stamps_[static_cast<std::size_t>(state)] = stamp_;
    while (!work_.empty()) {
      const std::int32_t state = work_.back();
      work_.pop_back();
      set.push_back(state);
      out_edges_.each(state, [&](const Edge& edge) {
        if (edge.kind != EdgeKind::kEmpty || !live(edge.to)) return;
        std::uint32_t& stamp = stamps_[static_cast<std::size_t>(edge.to)];
        if (stamp == stamp_) return;
        stamp = stamp_;
        work_.push_back(edge.to);
      });
    }
    std::sort(set.begin(), set.end());
  }

  // Bytes between which no edge of the rule distinguishes.
  std::array<std::uint8_t, 256> byte_classes(std::int32_t id, std::size_t& count) {
    std::array<bool, 257> begins{};
    begins[0] = true;
    std::vector<std::int32_t> work{rule(id).start};
    std::vector<bool>& seen = seen_;
    seen.assign(builder_.states(), false);
    seen[static_cast<std::size_t>(work[0])] = true;
    while (!work.empty()) {
      const std::int32_t state = work.back();
      work.pop_back();
      out_edges_.each(state, [&](const Edge& edge) {
        if (!usable(edge)) return;
        if (edge.kind == EdgeKind::kBytes) begins[edge.low] = begins[edge.high + 1U] = true;
        if (seen[static_cast<std::size_t>(edge.to)]) return;
        seen[static_cast<std::size_t>(edge.to)] = true;
        work.push_back(edge.to);
      });
    }
    std::array<std::uint8_t, 256> classes{};
    count = 0;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      if (begins[byte]) ++count;
      classes[byte] = static_cast<std::uint8_t>(count - 1);
    }
    return classes;
  }

  Status determinize(std::int32_t id) {
    std::size_t classes = 0;
    out_.classes_.push_back(byte_classes(id, classes));
    std::array<std::uint8_t, 256>& class_of = out_.classes_.back();

    std::unordered_map<StateSet, std::int32_t, StateSetHash> known;
    std::vector<const StateSet*> sets;
    const auto first_state = static_cast<std::int32_t>(out_.states_.size());
    std::size_t members = 0;
    const auto state_of = [&](StateSet set) {
      close(set);
      const auto [at, fresh] =
          known.emplace(std::move(set), first_state + static_cast<std::int32_t>(sets.size()));
      if (fresh) {
        sets.push_back(&at->first);
        members += at->first.size();
      }
      return at->second;
    };
    starts_[static_cast<std::size_t>(id)] = state_of({rule(id).start});

    std::unordered_map<std::uint64_t, std::int32_t> alike;      // by the places of all members
    std::vector<std::pair<std::uint32_t, std::int32_t>> moves;  // (class, target)
    std::vector<std::pair<std::int32_t, std::int32_t>> calls;
    std::vector<std::pair<std::int32_t, std::int32_t>> tokens;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      if (deadline_.passed()) return tl::unexpected<Error>(deadline_error());
      const GrammarLimits& limits = builder_.limits();
      if (out_.states_.size() >= limits.automaton_states ||
          out_.table_.size() + classes > limits.table_cells || members > kMaxMembers) {
        return mimo::fail(ErrorCode::kLimit,
                          "the grammar needs more than {} states; fewer or smaller repetitions, lengths and "
                          "alternatives make it smaller",
                          limits.automaton_states);
      }
      Automaton::State state;
      state.classes = static_cast<std::uint32_t>(out_.classes_.size() - 1);
      state.row = static_cast<std::uint32_t>(out_.table_.size());
      state.jumps = static_cast<std::uint32_t>(out_.jumps_.size());
      moves.clear();
      calls.clear();
      tokens.clear();
      for (const std::int32_t member : *sets[i]) {
        if (member == rule(id).end) state.final = true;
        out_edges_.each(member, [&](const Edge& edge) {
          if (!usable(edge)) return;
          switch (edge.kind) {
            case EdgeKind::kEmpty:
              break;
            case EdgeKind::kBytes:
              for (std::uint32_t c = class_of[edge.low]; c <= class_of[edge.high]; ++c) {
                moves.emplace_back(c, edge.to);
              }
              break;
            case EdgeKind::kCall:
              calls.emplace_back(edge.id, edge.to);
              break;
            case EdgeKind::kToken:
              tokens.emplace_back(edge.id, edge.to);
              break;
          }
        });
      }
      state.takes_bytes = !moves.empty();

      out_.table_.resize(out_.table_.size() + classes, -1);
      sort_unique(moves);
      StateSet last;
      std::int32_t last_state = -1;
      for (std::size_t at = 0; at < moves.size();) {
        const std::uint32_t c = moves[at].first;
        StateSet targets = take_group(moves, at);
        // Neighbouring classes mostly lead to the same place.
        if (targets != last) {
          last = targets;
          last_state = state_of(std::move(targets));
        }
        out_.table_[state.row + c] = last_state;
      }
      sort_unique(calls);
      for (std::size_t at = 0; at < calls.size();) {
        const std::int32_t called = calls[at].first;
        want(called);
        const std::int32_t to = state_of(take_group(calls, at));
        out_.jumps_.push_back({.id = called, .to = to, .tail = false});
        ++state.calls;
      }
      sort_unique(tokens);
      for (std::size_t at = 0; at < tokens.size();) {
        const std::int32_t token = tokens[at].first;
        const std::int32_t to = state_of(take_group(tokens, at));
        out_.jumps_.push_back({.id = token, .to = to, .tail = false});
        ++state.tokens;
      }
      state.plain = !state.final && state.calls == 0;
      places_.clear();
      for (const std::int32_t member : *sets[i]) {
        places_.push_back(builder_.places()[static_cast<std::size_t>(member)]);
      }
      std::sort(places_.begin(), places_.end());
      std::uint64_t place = 0;
      for (const std::uint64_t one : places_) place = mix(place, one);
      state.alike = alike.emplace(place, static_cast<std::int32_t>(out_.states_.size())).first->second;
      out_.states_.push_back(state);
    }
    return {};
  }

  template <class Pairs>
  static void sort_unique(Pairs& pairs) {
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  }

  // The targets of the pairs that share the key at `at`, which moves behind them.
  template <class Pairs>
  static StateSet take_group(const Pairs& pairs, std::size_t& at) {
    StateSet targets;
    const auto key = pairs[at].first;
    for (; at < pairs.size() && pairs[at].first == key; ++at) targets.push_back(pairs[at].second);
    return targets;
  }

  // Calls name rules so far; now every rule has its first state.
  void link_calls() {
    for (const Automaton::State& state : out_.states_) {
      for (std::uint32_t i = state.jumps; i < state.jumps + state.calls; ++i) {
        Automaton::Jump& jump = out_.jumps_[i];
        jump.id = starts_[static_cast<std::size_t>(jump.id)];
        const Automaton::State& to = out_.states_[static_cast<std::size_t>(jump.to)];
        jump.tail = to.final && !to.takes_bytes && to.calls == 0 && to.tokens == 0;
      }
    }
  }

  GrammarBuilder& builder_;
  std::int32_t root_;
  EdgeIndex out_edges_;
  EdgeIndex in_edges_;
  Deadline deadline_;
  std::vector<bool> live_;
  std::vector<bool> nullable_;
  std::vector<std::int32_t> starts_;  // first state of each rule; -1: not built
  std::unordered_map<std::int32_t, bool> asked_;
  std::deque<std::int32_t> wanted_;
  Automaton out_;
  StateSet work_;
  std::vector<std::uint32_t> stamps_;
  std::uint32_t stamp_ = 0;
  std::vector<bool> seen_;
  std::vector<std::uint64_t> places_;
};

Result<Automaton> Automaton::build(GrammarBuilder& builder, std::int32_t root) {
  if (builder.failed()) return tl::unexpected<Error>(*builder.error());
  return AutomatonBuilder(builder, root).build();
}

Status Automaton::check(GrammarBuilder& builder, std::int32_t root) {
  if (builder.failed()) return tl::unexpected<Error>(*builder.error());
  return AutomatonBuilder(builder, root).check();
}

Result<ByteAutomaton> to_byte_automaton(GrammarBuilder& builder, std::int32_t rule) {
  const Result<Automaton> automaton = Automaton::build(builder, rule);
  if (!automaton) return forward_error(automaton);
  ByteAutomaton out;
  out.states.resize(automaton->states());
  // The start is the first state of the only rule.
  MIMO_CHECK(automaton->start() == 0);
  for (std::size_t i = 0; i < out.states.size(); ++i) {
    const auto state = static_cast<std::int32_t>(i);
    out.states[i].final = automaton->final(state);
    out.states[i].alike = automaton->alike(state);
    for (std::size_t byte = 0; byte < 256; ++byte) {
      out.states[i].next[byte] = automaton->next(state, static_cast<std::uint8_t>(byte));
    }
  }
  return out;
}

std::int32_t emit_intersection(GrammarBuilder& builder, std::int32_t from, const ByteAutomaton& a,
                               const ByteAutomaton& b) {
  const std::int32_t to = builder.add_state();
  const std::uint64_t product = builder.next_place();
  std::unordered_map<std::uint64_t, std::int32_t> known;
  std::vector<std::pair<std::int32_t, std::int32_t>> work;
  const auto state_of = [&](std::int32_t x, std::int32_t y) {
    const std::uint64_t key = static_cast<std::uint64_t>(x) << 32 | static_cast<std::uint32_t>(y);
    const auto [at, fresh] = known.emplace(key, 0);
    if (fresh) {
      const std::int32_t alike_x = a.states[static_cast<std::size_t>(x)].alike;
      const std::int32_t alike_y = b.states[static_cast<std::size_t>(y)].alike;
      at->second = builder.add_state(
          mix(mix(product, static_cast<std::uint64_t>(alike_x)), static_cast<std::uint64_t>(alike_y)));
      work.emplace_back(x, y);
    }
    return at->second;
  };
  builder.empty(from, state_of(0, 0));
  for (std::size_t i = 0; i < work.size() && !builder.failed(); ++i) {
    const auto [x, y] = work[i];
    const std::int32_t state = state_of(x, y);
    const ByteAutomaton::State& left = a.states[static_cast<std::size_t>(x)];
    const ByteAutomaton::State& right = b.states[static_cast<std::size_t>(y)];
    if (left.final && right.final) builder.empty(state, to);
    for (int byte = 0; byte < 256;) {
      const std::int32_t next_x = left.next[byte];
      const std::int32_t next_y = right.next[byte];
      const int low = byte;
      while (byte < 256 && left.next[byte] == next_x && right.next[byte] == next_y) ++byte;
      if (next_x < 0 || next_y < 0) continue;
      builder.bytes(state, state_of(next_x, next_y), static_cast<std::uint8_t>(low),
                    static_cast<std::uint8_t>(byte - 1));
    }
  }
  return to;
}

}  // namespace mimo::grammar
