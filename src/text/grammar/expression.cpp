#include "text/grammar/expression.h"

#include <utility>

namespace mimo::grammar {

Expression chars_expression(CodePointSet set) {
  Expression out;
  out.kind = Expression::Kind::kChars;
  out.chars = std::move(set);
  return out;
}

// Depth is bounded by the parsers of the front ends.
std::int32_t emit_expression(GrammarBuilder& builder, std::int32_t from, const Expression& expression,
                             Spelling spelling) {
  if (builder.failed()) return from;
  switch (expression.kind) {
    case Expression::Kind::kChars: {
      const std::int32_t to = builder.add_state();
      emit_char(builder, from, to, expression.chars, spelling);
      return to;
    }
    case Expression::Kind::kSequence:
      for (const Expression& child : expression.children) {
        from = emit_expression(builder, from, child, spelling);
      }
      return from;
    case Expression::Kind::kChoice: {
      const std::int32_t to = builder.add_state();
      for (const Expression& child : expression.children) {
        builder.empty(emit_expression(builder, from, child, spelling), to);
      }
      return to;
    }
    case Expression::Kind::kRepeat: {
      const Expression& child = expression.children[0];
      return emit_repeat(builder, from, expression.least, expression.most, [&](std::int32_t start) {
        return emit_expression(builder, start, child, spelling);
      });
    }
    case Expression::Kind::kRule:
      return builder.called(from, expression.rule);
  }
  return from;
}

}  // namespace mimo::grammar
