// Finds the end of a parameter's value in a tool call that arrives in pieces, and gives out at once whatever is
// surely part of the value. A value ends
//
//   at </parameter>, when after white space <parameter=, </function> or the end of the call follows: so it may
//     hold the text "</parameter>";
//   at </function>, when after white space the end of the call follows;
//   at the end of the call;
//   before a line break that <parameter=KEY> follows, if the caller knows KEY.
//
// Held back is only what may be the beginning of one of these.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mimo {

class ValueScanner {
 public:
  enum class Found : std::uint8_t {
    kNothing,        // all text was taken, the value goes on
    kParameter,      // the value ended, "<parameter=" is taken
    kFunctionEnd,    // the value ended, "</function>" is taken
    kLineParameter,  // "\n<parameter=" key() ">": it ended if the caller knows the key, else keep() and go on
  };

  // The first byte of a value follows.
  void start();

  // Takes bytes off the front of `text`, up to what is found, and adds to `value` what is surely part of it.
  Found scan(std::string_view& text, std::string& value);

  // After kLineParameter. Trimmed, not empty.
  std::string_view key() const;
  // After kLineParameter: it was part of the value.
  void keep(std::string& value) { release(value); }

  // Another control token inside the value: it is data.
  void literal(std::string_view text, std::string& value);

  // The end of the call, which ends the value.
  void close(std::string& value);

 private:
  enum class State : std::uint8_t { kPlain, kNewline, kTag, kSpace, kKey };
  // What held_ begins with, if it may be the end of the value.
  enum class Candidate : std::uint8_t { kNone, kParameterEnd, kFunctionEnd };

  Found scan_tag(std::string_view& text, std::string& value);
  void scan_space(std::string_view& text, std::string& value);
  Found scan_key(std::string_view& text, std::string& value);
  // Ends with </parameter> or </function> at tag_.
  void hold_candidate(Candidate candidate, std::string& value);
  // All that is held is data.
  void release(std::string& value);

  State state_ = State::kPlain;
  Candidate candidate_ = Candidate::kNone;
  std::string held_;
  std::size_t tag_ = 0;  // offset in held_ of the tag being read (kTag), of the key's tag (kKey)
};

}  // namespace mimo
