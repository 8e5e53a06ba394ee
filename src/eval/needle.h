// Needle in a haystack: one sentence with a code, hidden at a given depth of prose, in a prompt of an exact
// number of tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "eval/problem.h"

namespace mimo {

struct NeedleMaterial {
  std::string needle;    // with {name} and {code}
  std::string question;  // with {name}
  std::vector<std::string> names;
  std::vector<std::string> sentences;  // of the haystack, in order
};

// {"needle", "question", "names"}, and a text of one sentence a line.
Result<NeedleMaterial> load_needle_material(const std::string& path, const std::string& haystack_path);

struct TokenCounter {
  std::function<std::size_t(std::string_view)> text;          // of a piece of plain text
  std::function<Result<std::size_t>(const Problem&)> prompt;  // of the whole rendered conversation
};

struct NeedleCase {
  std::int64_t prompt_tokens = 0;
  double depth = 0.5;  // share of the haystack's tokens before the needle, [0, 1]
  std::uint64_t sample = 0;
};

class NeedleBuilder {
 public:
  // Counts the tokens of every sentence once.
  NeedleBuilder(NeedleMaterial material, TokenCounter counter);

  // The user's message is consecutive sentences joined by single spaces, the needle between two of them, then
  // an empty line and the question. The first sentence is cut at its front so that the rendered prompt has
  // exactly prompt_tokens. Name, code and the place in the haystack follow (seed, case) alone. Fails when the
  // length leaves no room for two sentences or the haystack is too short.
  Result<Problem> build(const NeedleCase& one, std::uint64_t seed) const;

 private:
  // Consecutive text: the end of one sentence, perhaps, and whole ones.
  struct Haystack {
    std::vector<std::string_view> parts;
    std::vector<std::size_t> tokens;  // [parts]
  };

  // Before sentence `end`, with `tokens` tokens as far as counts add up; none if the text there cannot be cut
  // so.
  std::optional<Haystack> cut_haystack(std::size_t end, std::int64_t tokens) const;
  // The parts joined, with the needle at the border nearest to the depth.
  static std::string hide(std::string_view needle, const Haystack& haystack, double depth);

  NeedleMaterial material_;
  TokenCounter counter_;
  std::vector<std::size_t> tokens_;  // of " " + sentence
  std::vector<std::size_t> total_;   // [sentences + 1] sums of tokens_
};

}  // namespace mimo
