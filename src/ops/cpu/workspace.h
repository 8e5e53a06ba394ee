// Memory that operations reuse from call to call: it grows to the largest request and is never shrunk.
#pragma once

#include <cstddef>
#include <vector>

#include "core/huge_buffer.h"

namespace mimo {

class Workspace {
 public:
  // At least `count` elements of T, 64-byte aligned, contents undefined.
  template <class T>
  T* get(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes > buffer_.size()) buffer_ = HugeBuffer(bytes + bytes / 4);
    return buffer_.as<T>();
  }

 private:
  HugeBuffer buffer_;
};

}  // namespace mimo
