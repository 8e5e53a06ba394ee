// Cuts the text of an answer at its control tokens. Stop rules see one stream of bytes and hold some of them back;
// this remembers which bytes spelled a control token, and reports each of those as a piece of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_client.h"

namespace mimo {

class ShownText {
 public:
  // The next `bytes` bytes of the stream spell control token `id`.
  void mark(std::int32_t id, std::size_t bytes);
  // The next `bytes` bytes of the stream are ordinary text.
  void pass(std::size_t bytes) { fed_ += bytes; }

  // More bytes of the stream may be shown. A control token waits until all of its bytes are.
  void show(std::string_view text, std::vector<AnswerPiece>& out);
  // The stream has ended: a control token of which only a part may be shown is ordinary text.
  void finish(std::vector<AnswerPiece>& out);

 private:
  struct Mark {
    std::int32_t id;
    std::uint64_t begin;
    std::uint64_t end;
  };

  std::uint64_t fed_ = 0;
  std::uint64_t shown_ = 0;  // bytes that left as pieces
  std::string pending_;      // shown bytes of a mark that is not complete
  std::deque<Mark> marks_;   // those not reported yet
};

}  // namespace mimo
