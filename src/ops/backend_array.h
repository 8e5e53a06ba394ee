// Memory of a step in a backend, kept from step to step.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <stdexcept>
#include <type_traits>

#include "ops/ops.h"

namespace mimo {

template <class T>
class BackendArray {
 public:
  // Room for `count` elements. When it grows, what it held is gone. Throws where there is no memory: the step fails,
  // and the engine goes on.
  T* reserve(Ops& ops, std::size_t count) {
    std::size_t element = 0;
    if constexpr (std::is_same_v<T, Act>) {
      element = ops.act_bytes();
    } else {
      element = sizeof(T);
    }
    const std::size_t bytes = std::max<std::size_t>(count, 1) * element;
    if (!memory_ || memory_->bytes() < bytes) {
      memory_.reset();
      Result<std::unique_ptr<Buffer>> memory = ops.allocate(bytes);
      if (!memory) throw std::runtime_error(memory.error().message);
      memory_ = std::move(*memory);
    }
    return data();
  }

  T* upload(Ops& ops, std::span<const T> values) {
    T* to = reserve(ops, values.size());
    ops.upload(to, values.data(), values.size_bytes());
    return to;
  }

  T* data() const { return memory_ ? static_cast<T*>(memory_->data()) : nullptr; }

 private:
  std::unique_ptr<Buffer> memory_;
};

// The element `count` elements behind `x`.
inline Act* act_at(const Ops& ops, Act* x, std::size_t count) {
  return reinterpret_cast<Act*>(reinterpret_cast<std::byte*>(x) + count * ops.act_bytes());
}
inline const Act* act_at(const Ops& ops, const Act* x, std::size_t count) {
  return reinterpret_cast<const Act*>(reinterpret_cast<const std::byte*>(x) + count * ops.act_bytes());
}

}  // namespace mimo
