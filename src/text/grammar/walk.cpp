#include "text/grammar/walk.h"

#include <algorithm>

namespace mimo::grammar {

std::int32_t FrameTable::add(std::int32_t to, std::int32_t parent) {
  const Frame frame{to, parent};
  const auto [at, fresh] = index_.emplace(key(frame), static_cast<std::int32_t>(frames_.size()));
  if (fresh) frames_.push_back(frame);
  return at->second;
}

void FrameTable::truncate(std::size_t size) {
  for (; frames_.size() > size; frames_.pop_back()) index_.erase(key(frames_.back()));
}

bool ThreadSet::insert(std::uint64_t key) {
  if (list_.size() < kList) {
    if (std::find(list_.begin(), list_.end(), key) != list_.end()) return false;
    list_.push_back(key);
    if (list_.size() == kList) hashed_.insert(list_.begin(), list_.end());
    return true;
  }
  return hashed_.insert(key).second;
}

void ThreadSet::clear() {
  list_.clear();
  if (!hashed_.empty()) hashed_.clear();
}

void Walker::settle(std::vector<Thread>& arrived, Configuration& out) {
  out.threads.clear();
  out.complete = false;
  work_done_ += static_cast<std::int64_t>(kSettleWork * arrived.size());
  // `arrived` is a stack: going deep first, a thread that takes something is found early however many ways
  // there are.
  std::sort(arrived.begin(), arrived.end());
  arrived.erase(std::unique(arrived.begin(), arrived.end()), arrived.end());
  seen_.clear();
  for (const Thread& thread : arrived) seen_.insert(key_of(thread));
  const auto reach = [&](Thread thread) {
    if (seen_.insert(key_of(thread))) arrived.push_back(thread);
  };
  while (!arrived.empty() && out.threads.size() < kMaxThreads) {
    const Thread thread = arrived.back();
    arrived.pop_back();
    work_done_ += kSettleWork;
    if (automaton_.takes_bytes(thread.state) || !automaton_.tokens(thread.state).empty()) {
      out.threads.push_back(thread);
    }
    for (const Automaton::Jump& call : automaton_.calls(thread.state)) {
      reach({call.id, call.tail ? thread.frame : frames_.add(call.to, thread.frame)});
    }
    if (!automaton_.final(thread.state)) continue;
    if (thread.frame == kBottom) {
      out.complete = true;
    } else {
      const FrameTable::Frame frame = frames_[thread.frame];
      reach({frame.to, frame.parent});
    }
  }
  std::sort(out.threads.begin(), out.threads.end());
}

bool Walker::step(const Configuration& from, std::uint8_t byte, Configuration& out) {
  if (from.threads.size() == 1) {
    const Thread thread = from.threads[0];
    const std::int32_t to = automaton_.next(thread.state, byte);
    if (to >= 0 && automaton_.plain(to)) {
      ++work_done_;
      out.threads.assign(1, {to, thread.frame});
      out.complete = false;
      return true;
    }
  }
  work_.clear();
  for (const Thread& thread : from.threads) {
    const std::int32_t to = automaton_.next(thread.state, byte);
    if (to >= 0) work_.push_back({to, thread.frame});
  }
  if (work_.empty()) {
    out.threads.clear();
    out.complete = false;
    return false;
  }
  settle(work_, out);
  return true;
}

void Walker::first_bytes(const Configuration& from, std::array<bool, 256>& out) const {
  out.fill(false);
  for (const Thread& thread : from.threads) {
    if (!automaton_.takes_bytes(thread.state)) continue;
    for (std::size_t byte = 0; byte < out.size(); ++byte) {
      if (automaton_.next(thread.state, static_cast<std::uint8_t>(byte)) >= 0) out[byte] = true;
    }
  }
}

bool Walker::step_token(const Configuration& from, std::int32_t token, Configuration& out) {
  work_.clear();
  for (const Thread& thread : from.threads) {
    for (const Automaton::Jump& jump : automaton_.tokens(thread.state)) {
      if (jump.id == token) work_.push_back({jump.to, thread.frame});
    }
  }
  if (work_.empty()) return false;
  settle(work_, out);
  return true;
}

}  // namespace mimo::grammar
