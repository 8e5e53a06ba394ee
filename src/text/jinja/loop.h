// State behind the `loop` variable.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "text/jinja/value.h"

namespace mimo::jinja {

struct LoopState {
  ListPtr source;
  std::size_t cursor = 0;  // next item of `source` to look at
  std::function<bool(const Value&)>
      filter;                // the `if` of the for tag; empty when absent or when the loop has ended
  std::vector<Value> ahead;  // items that passed the filter and were not handed out yet
  std::size_t ahead_next = 0;
  std::optional<Value> current, previous;
  std::size_t index0 = 0;
  std::optional<std::vector<Value>> last_changed;  // arguments of the last loop.changed() call
  int depth0 = 0;                                  // nesting of recursive loops; always 0 here
  int depth = 1;                                   // nesting of the values held, see value_depth

  // Looks for one more item that passes the filter, so that filters run interleaved with the body unless the
  // template asks for loop.last, loop.nextitem or loop.length.
  bool fill() {
    while (cursor < source->items.size()) {
      const Value& item = source->items[cursor++];
      if (!filter || filter(item)) {
        ahead.push_back(item);
        return true;
      }
    }
    return false;
  }
  const Value* peek() {
    if (ahead_next == ahead.size() && !fill()) return nullptr;
    return &ahead[ahead_next];
  }
  bool advance() {
    if (peek() == nullptr) return false;
    previous = std::move(current);
    if (previous) ++index0;
    current = std::move(ahead[ahead_next]);
    if (++ahead_next == ahead.size()) {
      ahead.clear();
      ahead_next = 0;
    }
    return true;
  }
  std::size_t length() {
    while (fill()) {
    }
    return index0 + (current ? 1 : 0) + ahead.size() - ahead_next;
  }
};

}  // namespace mimo::jinja
