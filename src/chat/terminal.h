// Standard input and output as a chat needs them: lines that Ctrl-C can interrupt, and text that a model wrote.
#pragma once

#include <string>
#include <string_view>

namespace mimo {

// SIGINT as a question, from its making on to the end of the process.
class Interrupts {
 public:
  Interrupts();
  // Whether Ctrl-C was pressed since the last call.
  bool take() const;
  int descriptor() const { return read_end_; }  // readable when it was

 private:
  int read_end_ = -1;
};

class Terminal {
 public:
  explicit Terminal(const Interrupts& interrupts);

  enum class Input { kLine, kEnd, kInterrupted };
  // The next line of stdin without its end, prompted for on a terminal. A last '\' joins it with the next one.
  Input read(std::string& line);

  bool interactive() const { return interactive_; }  // stdin and stdout are terminals

  // What a model wrote. A terminal gets no control characters, which could do anything to it. `dim`: aside.
  void write(std::string_view text, bool dim);
  // One line aside; on terminals only.
  void note(std::string_view text);
  void error(std::string_view text) const;

 private:
  Input read_one(std::string& line);
  void set_dim(bool dim);

  const Interrupts& interrupts_;
  bool interactive_;
  bool colors_;
  bool output_is_terminal_;
  bool dim_ = false;
  bool ended_ = false;
  std::string waiting_;  // read, but not yet asked for
};

// `text` without control characters but line break and tab.
std::string without_controls(std::string_view text);

}  // namespace mimo
