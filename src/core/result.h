// Errors as values. Expected failures (bad file, bad flag, bad request) travel as Result<T>; exceptions are
// for start-up that cannot go on. See docs/architecture.md, "Errors".
#pragma once

#include <fmt/format.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace mimo {

enum class ErrorCode {
  kInvalidArgument,  // a flag, field or call argument has a value that is not allowed
  kNotFound,         // a file, shard or tensor that must exist does not
  kCorrupt,          // bytes that contradict their own format (truncated file, bad offsets, bad JSON)
  kUnsupported,      // well formed, but a feature this engine does not have
  kLimit,            // a stated limit (size, depth, time, memory) would be exceeded
  kInternal,         // our own bug or an operating-system failure
  kBusy,             // not now: a queue is full or work is under way; the same call may succeed later
  kUnavailable,      // the engine is loading, draining or dead
  kCancelled,        // ended because the caller asked for it
};

// Short stable name of a code ("invalid argument", "not found", ...), for logs and messages.
const char* error_code_name(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // names the file, field or flag, the value, and what was expected

  // The same error with `where: ` put in front of the message.
  Error within(const std::string& where) const { return {code, where + ": " + message}; }
};

template <class T>
using Result = tl::expected<T, Error>;

// Result without a value.
using Status = tl::expected<void, Error>;

// An error to return from a function whose result is Result<T> or Status: `return fail(ErrorCode::kCorrupt,
// "{}: ...", x);`
template <class... Args>
tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

// Passes on the error of another result: `if (!r) return forward_error(r);`
template <class T>
tl::unexpected<Error> forward_error(const tl::expected<T, Error>& result) {
  return tl::unexpected<Error>(result.error());
}

}  // namespace mimo
