#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/file.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_added.h"
#include "text/unicode_nfc.h"
#include "text/unicode_utf8.h"

namespace mimo {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;

// Scratch memory of encoders that are not running. An encoder takes one and gives it back, so caches stay
// warm and each is used by one thread at a time.
class ScratchPool {
 public:
  std::unique_ptr<BpeScratch> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<BpeScratch> scratch = std::move(idle_.back());
        idle_.pop_back();
        return scratch;
      }
    }
    return std::make_unique<BpeScratch>();
  }

  void give(std::unique_ptr<BpeScratch> scratch) {
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kMaxIdle) idle_.push_back(std::move(scratch));
  }

 private:
  static constexpr std::size_t kMaxIdle = 16;  // 2 MiB each

  std::mutex mutex_;
  std::vector<std::unique_ptr<BpeScratch>> idle_;
};

// Visits the text from left to right: on_text(begin, end) for what lies between added tokens, on_token(id)
// for them. Tokens are looked for inside `ranges` (sorted, disjoint).
template <class OnText, class OnToken>
void split_added(std::string_view text, std::span<const TextRange> ranges, const AddedTokenMatcher& matcher,
                 OnText&& on_text, OnToken&& on_token) {
  std::size_t done = 0;
  if (!matcher.empty()) {
    for (const TextRange& range : ranges) {
      std::size_t from = range.begin;
      while (const auto match = matcher.find(text, from, range.end)) {
        if (done < match->begin) on_text(done, match->begin);
        on_token(match->id);
        done = from = match->end;
      }
    }
  }
  if (done < text.size()) on_text(done, text.size());
}

// The parts of `ranges` inside [begin, end), counted from `begin`.
std::vector<TextRange> clip(std::span<const TextRange> ranges, std::size_t begin, std::size_t end) {
  std::vector<TextRange> out;
  for (const TextRange& range : ranges) {
    const std::size_t from = std::max(range.begin, begin);
    const std::size_t to = std::min(range.end, end);
    if (from < to) out.push_back({from - begin, to - begin});
  }
  return out;
}

}  // namespace

struct Tokenizer::State {
  State(TokenizerFile file_, MergeTable merges)
      : file(std::move(file_)), pre_tokenizer(file.pattern), bpe(file.byte_ids, std::move(merges)) {
    vocab_size = file.vocab.size();
    for (std::size_t i = 0; i < file.added.size(); ++i) {
      const AddedToken& token = file.added[i];
      vocab_size = std::max(vocab_size, static_cast<std::size_t>(token.id) + 1);
      added_by_id.emplace(token.id, i);
      added_by_content.emplace(token.content, token.id);
      if (token.normalized) {
        late_matcher.add(file.nfc ? to_nfc(token.content) : token.content, token.id);
      } else {
        early_matcher.add(token.content, token.id);
      }
    }
  }

  const AddedToken* added(TokenId id) const {
    const auto found = added_by_id.find(id);
    return found == added_by_id.end() ? nullptr : &file.added[found->second];
  }

  // Normalised text without added tokens.
  void encode_plain(std::string_view text, BpeScratch& scratch, std::vector<TokenId>& out) const {
    for (std::size_t pos = 0; pos < text.size();) {
      const std::size_t end = pre_tokenizer.piece_end(text, pos);
      bpe.encode(text.substr(pos, end - pos), scratch, out);
      pos = end;
    }
  }

  // What lies between added tokens of the first kind: normalise, then cut out those of the second kind.
  void encode_raw(std::string_view text, std::span<const TextRange> trusted, BpeScratch& scratch,
                  std::vector<TokenId>& out) const {
    std::string normalised;
    std::vector<TextEdit> edits;
    if (file.nfc && nfc_may_change(text)) {
      normalised = to_nfc(text, &edits);
      text = normalised;
    }
    if (trusted.empty() || late_matcher.empty()) return encode_plain(text, scratch, out);
    split_added(
        text, ranges_after_edits({trusted.begin(), trusted.end()}, edits), late_matcher,
        [&](std::size_t begin, std::size_t end) {
          encode_plain(text.substr(begin, end - begin), scratch, out);
        },
        [&](TokenId id) { out.push_back(id); });
  }

  // Text with the ranges that may hold added tokens.
  std::vector<TokenId> encode(std::string_view text, std::vector<TextRange> trusted) const {
    std::string repaired;
    if (!utf8_valid(text)) {
      std::vector<TextEdit> edits;
      repaired = utf8_replace_invalid(text, &edits);
      text = repaired;
      trusted = ranges_after_edits(trusted, edits);
    }
    std::vector<TokenId> out;
    constexpr std::size_t kUsualTokenBytes = 4;
    out.reserve(text.size() / kUsualTokenBytes + 1);
    std::unique_ptr<BpeScratch> scratch = scratches.take();
    split_added(
        text, trusted, early_matcher,
        [&](std::size_t begin, std::size_t end) {
          const auto inside = late_matcher.empty() ? std::vector<TextRange>{} : clip(trusted, begin, end);
          encode_raw(text.substr(begin, end - begin), inside, *scratch, out);
        },
        [&](TokenId id) { out.push_back(id); });
    scratches.give(std::move(scratch));
    return out;
  }

  TokenizerFile file;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  AddedTokenMatcher early_matcher;                       // on the text as it came
  AddedTokenMatcher late_matcher;                        // on normalised text
  std::unordered_map<TokenId, std::size_t> added_by_id;  // index in file.added
  std::unordered_map<std::string, TokenId> added_by_content;
  std::size_t vocab_size = 0;
  mutable ScratchPool scratches;
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  const auto text = read_file(path, kMaxFileBytes);
  if (!text) return forward_error(text);
  return from_json(*text, path);
}

Result<Tokenizer> Tokenizer::from_json(std::string_view text, std::string_view what) {
  auto file = parse_tokenizer_json(text, what);
  if (!file) return forward_error(file);
  MergeTable merges(file->merges.size());
  for (const BpeMerge& merge : file->merges) {
    if (!merges.add(merge)) {
      return fail(ErrorCode::kCorrupt, "{}.model.merges[{}]: this pair has a lower rank already", what,
                  merges.size());
    }
  }
  file->merges = {};  // the table holds them now
  return Tokenizer(std::make_unique<State>(std::move(*file), std::move(merges)));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  const TextPiece piece{text, options.allow_added_tokens};
  return encode(std::span(&piece, 1));
}

std::vector<TokenId> Tokenizer::encode(std::span<const TextPiece> pieces) const {
  std::string joined;
  std::vector<TextRange> trusted;
  std::size_t length = 0;
  for (const TextPiece& piece : pieces) {
    if (piece.trusted && !piece.text.empty()) {
      if (!trusted.empty() && trusted.back().end == length) {
        trusted.back().end += piece.text.size();
      } else {
        trusted.push_back({length, length + piece.text.size()});
      }
    }
    length += piece.text.size();
  }
  if (pieces.size() == 1) return state_->encode(pieces[0].text, std::move(trusted));
  joined.reserve(length);
  for (const TextPiece& piece : pieces) joined.append(piece.text);
  return state_->encode(joined, std::move(trusted));
}

Result<std::string_view> Tokenizer::token_bytes(TokenId id) const {
  if (const AddedToken* added = state_->added(id)) return std::string_view(added->content);
  const std::string_view bytes = state_->file.vocab.bytes(id);
  if (!bytes.empty()) return bytes;
  return fail(ErrorCode::kInvalidArgument, "token id {} is not in the vocabulary (ids 0 to {})", id,
              static_cast<std::int64_t>(state_->vocab_size) - 1);
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string out;
  for (const TokenId id : ids) {
    const auto bytes = token_bytes(id);
    if (!bytes) return forward_error(bytes);
    if (skip_special && is_special(id)) continue;
    out.append(*bytes);
  }
  return out;
}

std::optional<TokenId> Tokenizer::token_id(std::string_view content) const {
  const auto added = state_->added_by_content.find(std::string(content));
  if (added != state_->added_by_content.end()) return added->second;
  return state_->file.vocab.find(content);
}

std::span<const AddedToken> Tokenizer::added_tokens() const { return state_->file.added; }
bool Tokenizer::is_added(TokenId id) const { return state_->added(id) != nullptr; }

bool Tokenizer::is_special(TokenId id) const {
  const AddedToken* added = state_->added(id);
  return added != nullptr && added->special;
}

std::size_t Tokenizer::vocab_size() const { return state_->vocab_size; }

}  // namespace mimo
