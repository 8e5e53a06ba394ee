// Walking an automaton: a configuration is a set of threads, each a state and the stack of calls it is in.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/grammar/automaton.h"

namespace mimo::grammar {

// Where to go on when a rule ends, and the call around it. Equal frames have equal numbers.
class FrameTable {
 public:
  struct Frame {
    std::int32_t to;
    std::int32_t parent;
  };

  std::int32_t add(std::int32_t to, std::int32_t parent);
  Frame operator[](std::int32_t frame) const { return frames_[static_cast<std::size_t>(frame)]; }
  std::size_t size() const { return frames_.size(); }
  // Forgets the frames from `size` on.
  void truncate(std::size_t size);

 private:
  static std::uint64_t key(Frame frame) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(frame.to)) << 32 |
           static_cast<std::uint32_t>(frame.parent);
  }

  std::vector<Frame> frames_;
  std::unordered_map<std::uint64_t, std::int32_t> index_;
};

// The call of no rule: the end of the one that is walked.
inline constexpr std::int32_t kBottom = -1;

struct Thread {
  std::int32_t state = 0;
  std::int32_t frame = kBottom;
  friend bool operator==(const Thread&, const Thread&) = default;
  friend bool operator<(const Thread& a, const Thread& b) {
    return a.state != b.state ? a.state < b.state : a.frame < b.frame;
  }
};

// Threads that can take a byte or a control token, sorted and distinct, and whether the walk may end here.
struct Configuration {
  std::vector<Thread> threads;
  bool complete = false;
  friend bool operator==(const Configuration&, const Configuration&) = default;
};

// A grammar that can be read in very many ways is followed in this many of them; every one leads to an end, so
// what is dropped are only other ways to go on.
inline constexpr std::size_t kMaxThreads = 512;

// A set that is nearly always tiny.
class ThreadSet {
 public:
  // False: it was there.
  bool insert(std::uint64_t key);
  void clear();

 private:
  static constexpr std::size_t kList = 16;  // above it a list is slower than hashing

  std::vector<std::uint64_t> list_;
  std::unordered_set<std::uint64_t> hashed_;
};

class Walker {
 public:
  Walker(const Automaton& automaton, FrameTable& frames) : automaton_(automaton), frames_(frames) {}

  // What `arrived` becomes with all calls made and all ended rules left; `arrived` is used up.
  void settle(std::vector<Thread>& arrived, Configuration& out);
  // What is left of `from` behind one byte. False: nothing, and `out` is empty.
  bool step(const Configuration& from, std::uint8_t byte, Configuration& out);
  // Bytes that `from` can take.
  void first_bytes(const Configuration& from, std::array<bool, 256>& out) const;
  bool step_token(const Configuration& from, std::int32_t token, Configuration& out);

  // Grows with the time spent here: one for a thread that just moves on.
  std::int64_t work_done() const { return work_done_; }

 private:
  static std::uint64_t key_of(Thread thread) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(thread.state)) << 32 |
           static_cast<std::uint32_t>(thread.frame);
  }

  const Automaton& automaton_;
  FrameTable& frames_;
  // Calling and ending rules takes about this much longer than moving on.
  static constexpr std::int64_t kSettleWork = 4;

  std::vector<Thread> work_;
  ThreadSet seen_;
  std::int64_t work_done_ = 0;
};

}  // namespace mimo::grammar
