#include "checkpoint/mask_embedding.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "checkpoint/random_fill.h"
#include "core/file.h"
#include "core/number_formats.h"

namespace mimo {
namespace {

constexpr std::size_t kMaxFileBytes = 16u << 20;
constexpr std::size_t kMaxEntries = 256;
constexpr std::size_t kMaxPickleBytes = 1u << 20;
constexpr std::size_t kMaxPickleSteps = 4096;

constexpr std::uint32_t kEndSignature = 0x06054B50;
constexpr std::uint32_t kCentralSignature = 0x02014B50;
constexpr std::uint32_t kLocalSignature = 0x04034B50;
constexpr std::size_t kEndBytes = 22;
constexpr std::size_t kCentralBytes = 46;
constexpr std::size_t kLocalBytes = 30;

// Little-endian number at an offset that the caller has checked.
template <class T>
T read_le(std::span<const std::uint8_t> bytes, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(bytes[at + i]) << (8 * i)));
  }
  return value;
}

bool inside(std::span<const std::uint8_t> bytes, std::size_t at, std::size_t count) {
  return at <= bytes.size() && count <= bytes.size() - at;
}

// The stored entries of a zip archive.
class Archive {
 public:
  static Result<Archive> open(std::span<const std::uint8_t> bytes, std::string_view what) {
    Archive archive;
    const auto damaged = [&](std::string_view why) {
      return fail(ErrorCode::kCorrupt, "{}: not a torch.save archive: {}", what, why);
    };
    // The record is the last thing in the file but for a comment of up to 64 KiB.
    std::optional<std::size_t> end;
    for (std::size_t back = kEndBytes; back <= bytes.size() && back <= kEndBytes + 0xFFFF; ++back) {
      const std::size_t at = bytes.size() - back;
      if (read_le<std::uint32_t>(bytes, at) == kEndSignature) {
        end = at;
        break;
      }
    }
    if (!end) return damaged("no end-of-directory record");
    const std::size_t count = read_le<std::uint16_t>(bytes, *end + 10);
    std::size_t at = read_le<std::uint32_t>(bytes, *end + 16);
    if (count > kMaxEntries) return damaged(fmt::format("{} entries", count));
    for (std::size_t i = 0; i < count; ++i) {
      if (!inside(bytes, at, kCentralBytes) || read_le<std::uint32_t>(bytes, at) != kCentralSignature) {
        return damaged(fmt::format("directory entry {} is damaged", i));
      }
      const std::size_t name_bytes = read_le<std::uint16_t>(bytes, at + 28);
      const std::size_t more =
          name_bytes + read_le<std::uint16_t>(bytes, at + 30) + read_le<std::uint16_t>(bytes, at + 32);
      if (!inside(bytes, at + kCentralBytes, more)) {
        return damaged(fmt::format("directory entry {} leaves the file", i));
      }
      Entry entry;
      entry.name = {reinterpret_cast<const char*>(bytes.data()) + at + kCentralBytes, name_bytes};
      entry.method = read_le<std::uint16_t>(bytes, at + 10);
      const std::size_t packed = read_le<std::uint32_t>(bytes, at + 20);
      entry.size = read_le<std::uint32_t>(bytes, at + 24);
      const std::size_t local = read_le<std::uint32_t>(bytes, at + 42);
      // Where the data begins is said by the local header alone: its extra field has another length.
      if (!inside(bytes, local, kLocalBytes) || read_le<std::uint32_t>(bytes, local) != kLocalSignature) {
        return damaged(fmt::format("entry {} has no local header", i));
      }
      const std::size_t data = local + kLocalBytes + read_le<std::uint16_t>(bytes, local + 26) +
                               read_le<std::uint16_t>(bytes, local + 28);
      if (packed != entry.size || !inside(bytes, data, entry.size)) {
        entry.method = 0xFFFF;  // compressed or cut off: refused when it is asked for
      } else {
        entry.bytes = bytes.subspan(data, entry.size);
      }
      archive.entries_.push_back(entry);
      at += kCentralBytes + more;
    }
    return archive;
  }

  struct Entry {
    std::string_view name;
    std::uint16_t method = 0;
    std::size_t size = 0;
    std::span<const std::uint8_t> bytes;
  };
  // The entry "ROOT/tail".
  const Entry* find(std::string_view tail) const {
    for (const Entry& entry : entries_) {
      const std::size_t slash = entry.name.find('/');
      if (slash != std::string_view::npos && entry.name.substr(slash) == tail) return &entry;
    }
    return nullptr;
  }

 private:
  std::vector<Entry> entries_;
};

// What a pickle of one tensor, or of a dict with one, states. Found by walking the opcodes of protocols 2 to
// 4 that such a file consists of; nothing is built and nothing is called.
struct PickledTensor {
  bool f32 = false;
  std::string storage;      // key of the stored bytes ("0")
  std::int64_t offset = 0;  // in elements
  std::vector<std::int64_t> shape;
  std::optional<std::int64_t> mask_token_id;
};

class PickleWalk {
 public:
  PickleWalk(std::span<const std::uint8_t> bytes, std::string_view what) : bytes_(bytes), what_(what) {}

  Result<PickledTensor> run() {
    for (std::size_t steps = 0; steps < kMaxPickleSteps; ++steps) {
      std::uint64_t code = 0;
      if (!take(1, code)) return cut_off();
      if (code == '.') return finish();
      if (const Status ok = step(static_cast<std::uint8_t>(code)); !ok) return forward_error(ok);
    }
    return fail(ErrorCode::kCorrupt, "{}: data.pkl is too long", what_);
  }

 private:
  enum class Kind : std::uint8_t { kText, kInteger, kStorageType, kLoaded, kTuple, kOther };
  struct Token {
    Kind kind = Kind::kOther;
    std::int64_t number = 0;
    std::string_view text;
  };

  tl::unexpected<Error> cut_off() const {
    return fail(ErrorCode::kCorrupt, "{}: data.pkl ends in the middle", what_);
  }
  tl::unexpected<Error> unexpected(std::string_view found) const {
    return fail(ErrorCode::kUnsupported,
                "{}: data.pkl holds {}, expected one BF16 or FP32 tensor, alone or as \"embedding\" beside "
                "\"mask_token_id\"",
                what_, found);
  }

  // A little-endian number of 1, 2, 4 or 8 bytes.
  bool take(std::size_t count, std::uint64_t& value) {
    if (!inside(bytes_, at_, count)) return false;
    value = 0;
    for (std::size_t i = 0; i < count; ++i) {
      value |= static_cast<std::uint64_t>(bytes_[at_ + i]) << (8 * i);
    }
    at_ += count;
    return true;
  }
  bool take_text(std::size_t count, std::string_view& text) {
    if (!inside(bytes_, at_, count)) return false;
    text = {reinterpret_cast<const char*>(bytes_.data()) + at_, count};
    at_ += count;
    return true;
  }
  bool take_line(std::string_view& line) {
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(at_);
    const auto end = std::find(begin, bytes_.end(), static_cast<std::uint8_t>('\n'));
    if (end == bytes_.end()) return false;
    take_text(static_cast<std::size_t>(end - begin), line);
    ++at_;
    return true;
  }

  Status push_global(std::string_view module, std::string_view name) {
    if (module == "torch" && (name == "BFloat16Storage" || name == "FloatStorage")) {
      tokens_.push_back({Kind::kStorageType, name == "FloatStorage" ? 1 : 0, {}});
      return {};
    }
    const bool known = (module == "torch._utils" && name == "_rebuild_tensor_v2") ||
                       (module == "collections" && name == "OrderedDict");
    if (!known) return unexpected(fmt::format("{:?}", fmt::format("{}.{}", module, name)));
    tokens_.push_back({});
    return {};
  }

  Status step(std::uint8_t code) {
    std::uint64_t number = 0;
    std::string_view text;
    std::string_view name;
    switch (code) {
      case 0x80:  // PROTO
        return take(1, number) ? Status() : cut_off();
      case 0x95:  // FRAME
        return take(8, number) ? Status() : cut_off();
      case 'q':  // BINPUT
      case 'h':  // BINGET
        return take(1, number) ? Status() : cut_off();
      case 'r':  // LONG_BINPUT
      case 'j':  // LONG_BINGET
        return take(4, number) ? Status() : cut_off();
      case 0x94:  // MEMOIZE
      case '}':   // EMPTY_DICT
      case '(':   // MARK
      case ')':   // EMPTY_TUPLE
      case 'R':   // REDUCE
      case 's':   // SETITEM
      case 'u':   // SETITEMS
        return {};
      case 'N':   // NONE
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        tokens_.push_back({});
        return {};
      case 't':   // TUPLE
      case 0x85:  // TUPLE1
      case 0x86:  // TUPLE2
      case 0x87:  // TUPLE3
        tokens_.push_back({Kind::kTuple, 0, {}});
        return {};
      case 'Q':  // BINPERSID
        tokens_.push_back({Kind::kLoaded, 0, {}});
        return {};
      case 'K':  // BININT1
      case 'M':  // BININT2
      case 'J':  // BININT
        if (!take(code == 'K' ? 1 : code == 'M' ? 2 : 4, number)) return cut_off();
        tokens_.push_back({Kind::kInteger,
                           code == 'J' ? static_cast<std::int64_t>(static_cast<std::int32_t>(number))
                                       : static_cast<std::int64_t>(number),
                           {}});
        return {};
      case 'X':   // BINUNICODE
      case 0x8C:  // SHORT_BINUNICODE
        if (!take(code == 'X' ? 4 : 1, number) || !take_text(number, text)) return cut_off();
        tokens_.push_back({Kind::kText, 0, text});
        return {};
      case 'c':  // GLOBAL
        if (!take_line(text) || !take_line(name)) return cut_off();
        return push_global(text, name);
      default:
        return unexpected(fmt::format("opcode 0x{:02X}", code));
    }
  }

  bool is(std::size_t at, Kind kind) const { return at < tokens_.size() && tokens_[at].kind == kind; }

  // "storage" TYPE KEY DEVICE count TUPLE, LOADED, offset, shape.. TUPLE
  Result<PickledTensor> finish() const {
    PickledTensor tensor;
    int storages = 0;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      if (is(i, Kind::kText) && tokens_[i].text == "mask_token_id") {
        if (!is(i + 1, Kind::kInteger)) return unexpected("a mask_token_id that is no integer");
        tensor.mask_token_id = tokens_[i + 1].number;
      }
      if (!is(i, Kind::kStorageType)) continue;
      ++storages;
      if (!is(i + 1, Kind::kText) || !is(i + 2, Kind::kText) || !is(i + 3, Kind::kInteger) ||
          !is(i + 4, Kind::kTuple) || !is(i + 5, Kind::kLoaded) || !is(i + 6, Kind::kInteger)) {
        return unexpected("a tensor in an unknown form");
      }
      tensor.f32 = tokens_[i].number == 1;
      tensor.storage = std::string(tokens_[i + 1].text);
      tensor.offset = tokens_[i + 6].number;
      std::size_t at = i + 7;
      for (; is(at, Kind::kInteger); ++at) tensor.shape.push_back(tokens_[at].number);
      if (!is(at, Kind::kTuple)) return unexpected("a tensor without a shape");
    }
    if (storages != 1) return unexpected(fmt::format("{} tensors of known types", storages));
    return tensor;
  }

  std::span<const std::uint8_t> bytes_;
  std::string_view what_;
  std::size_t at_ = 0;
  std::vector<Token> tokens_;
};

Result<std::span<const std::uint8_t>> stored(const Archive& archive, const std::string& tail,
                                             std::string_view what) {
  const Archive::Entry* entry = archive.find(tail);
  if (entry == nullptr) return fail(ErrorCode::kCorrupt, "{}: the archive has no entry *{}", what, tail);
  if (entry->method != 0) {
    return fail(ErrorCode::kUnsupported, "{}: entry {:?} is compressed or damaged, expected stored bytes",
                what, entry->name);
  }
  return entry->bytes;
}

}  // namespace

Result<std::vector<float>> parse_mask_embedding(std::span<const std::uint8_t> bytes, std::string_view what,
                                                int mask_token_id, int hidden) {
  const Result<Archive> archive = Archive::open(bytes, what);
  if (!archive) return forward_error(archive);
  const auto pickle = stored(*archive, "/data.pkl", what);
  if (!pickle) return forward_error(pickle);
  if (pickle->size() > kMaxPickleBytes) {
    return fail(ErrorCode::kLimit, "{}: data.pkl has {} bytes, at most {} are read", what, pickle->size(),
                kMaxPickleBytes);
  }
  const Result<PickledTensor> tensor = PickleWalk(*pickle, what).run();
  if (!tensor) return forward_error(tensor);
  if (tensor->mask_token_id && *tensor->mask_token_id != mask_token_id) {
    return fail(ErrorCode::kInvalidArgument, "{}: mask_token_id is {}, config.json says {}", what,
                *tensor->mask_token_id, mask_token_id);
  }
  const std::vector<std::int64_t>& shape = tensor->shape;
  const bool flat = shape.size() == 1 && shape[0] == hidden;
  const bool row = shape.size() == 2 && shape[0] == 1 && shape[1] == hidden;
  if (!flat && !row) {
    return fail(ErrorCode::kInvalidArgument, "{}: embedding has shape [{}], expected [{}]", what,
                fmt::join(shape, ", "), hidden);
  }
  if (archive->find("/byteorder") != nullptr) {
    const auto order = stored(*archive, "/byteorder", what);
    if (!order) return forward_error(order);
    if (std::string_view(reinterpret_cast<const char*>(order->data()), order->size()) != "little") {
      return fail(ErrorCode::kUnsupported, "{}: the byte order is not \"little\"", what);
    }
  }
  const auto data = stored(*archive, "/data/" + tensor->storage, what);
  if (!data) return forward_error(data);
  const auto width = static_cast<std::size_t>(hidden);
  const std::size_t element = tensor->f32 ? sizeof(float) : sizeof(std::uint16_t);
  if (tensor->offset != 0 || data->size() != width * element) {
    return fail(ErrorCode::kInvalidArgument, "{}: embedding has {} stored bytes from element {}, expected {}",
                what, data->size(), tensor->offset, width * element);
  }

  std::vector<float> embedding(width);
  double energy = 0;
  for (std::size_t i = 0; i < width; ++i) {
    if (tensor->f32) {
      std::memcpy(&embedding[i], data->data() + 4 * i, sizeof(float));
    } else {
      embedding[i] = bf16_to_float(read_le<std::uint16_t>(*data, 2 * i));
    }
    energy += static_cast<double>(embedding[i]) * embedding[i];
  }
  if (!std::isfinite(energy)) {
    return fail(ErrorCode::kCorrupt, "{}: the embedding has a value that is not finite", what);
  }
  if (energy == 0) {
    return fail(ErrorCode::kInvalidArgument, "{}: the embedding is all zeros: it was never trained", what);
  }
  return embedding;
}

Result<std::vector<float>> load_mask_embedding(const std::string& directory, int mask_token_id, int hidden) {
  const std::string path = directory + "/mask_embedding.pt";
  if (!file_exists(path)) {
    return fail(ErrorCode::kNotFound,
                "{}: missing. The drafter needs the mask vector it was trained with; copy the file from the "
                "checkpoint's dflash directory",
                path);
  }
  const Result<std::string> bytes = read_file(path, kMaxFileBytes);
  if (!bytes) return forward_error(bytes);
  return parse_mask_embedding({reinterpret_cast<const std::uint8_t*>(bytes->data()), bytes->size()}, path,
                              mask_token_id, hidden);
}

std::vector<float> random_mask_embedding(int hidden, std::uint64_t seed) {
  ExpectedTensor tensor;
  tensor.name = kMaskEmbedding;
  tensor.dtype = DType::kF32;
  tensor.dims = {hidden, 0};
  tensor.rank = 1;
  std::vector<float> values(static_cast<std::size_t>(hidden));
  const FillJob job{&tensor, hidden, reinterpret_cast<std::uint8_t*>(values.data())};
  fill_random({&job, 1}, seed, 1);
  return values;
}

}  // namespace mimo
