#include "text/chat_prompt.h"

#include <string_view>

namespace mimo {
namespace {

ThinkBlock think_block_of(const RenderedChat& chat) {
  for (const char* closed : {"<think></think>", "<think>\n</think>", "<think>\n\n</think>\n\n"}) {
    if (chat.has_trusted_suffix(closed)) return ThinkBlock::kClosed;
  }
  if (chat.has_trusted_suffix("<think>") || chat.has_trusted_suffix("<think>\n")) return ThinkBlock::kOpen;
  return ThinkBlock::kModelDecides;
}

}  // namespace

Result<ChatPrompt> make_chat_prompt(const ChatFormat& format, const Tokenizer& tokenizer,
                                    const ChatInput& input) {
  const Result<RenderedChat> rendered = format.render(input);
  if (!rendered) return forward_error(rendered);
  std::vector<TextPiece> pieces;
  std::string_view rest = rendered->text;
  for (const jinja::TrustRun& run : rendered->runs) {
    pieces.push_back({rest.substr(0, run.bytes), run.trusted});
    rest.remove_prefix(run.bytes);
  }
  return ChatPrompt{tokenizer.encode(pieces), think_block_of(*rendered)};
}

}  // namespace mimo
