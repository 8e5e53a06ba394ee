// A corpus of scripted answers, each cut in every way: what comes out never depends on the cuts.
#include "text/answer_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "text/answer_script.h"
#include "text/unicode_utf8.h"

namespace mimo {
namespace {

using test::assembled;
using test::parse_script;
using test::parse_whole;
using test::ParsedScript;

const json::array& tools() {
  static const json::array list = parse_json(R"([
    {"type":"function","function":{"name":"write","parameters":{"type":"object","properties":{
      "path":{"type":"string"},"content":{"type":"string"},"lines":{"type":"integer"},
      "mode":{"type":["string","null"]},"options":{"type":"object"}}}}},
    {"type":"function","function":{"name":"now"}}
  ])",
                                             "tools")
                                      .value()
                                      .as_array();
  return list;
}

// Deltas in one line: [r]reasoning [c]content [0 name]arguments[end] or [broken]text.
std::string shown(const std::vector<AnswerDelta>& deltas) {
  std::string out;
  DeltaKind last = DeltaKind::kToolEnd;
  for (const AnswerDelta& delta : deltas) {
    switch (delta.kind) {
      case DeltaKind::kReasoning:
        out += "[r]" + delta.text;
        break;
      case DeltaKind::kContent:
        out += "[c]" + delta.text;
        break;
      case DeltaKind::kToolStart:
        out += fmt::format("[{} {}]", delta.index, delta.name);
        break;
      case DeltaKind::kToolArguments:
        EXPECT_TRUE(last == DeltaKind::kToolStart || last == DeltaKind::kToolArguments);
        out += delta.text;
        break;
      case DeltaKind::kToolEnd:
        out += "[end]";
        break;
      case DeltaKind::kToolBroken:
        out += "[broken]" + delta.text;
        break;
    }
    last = delta.kind;
  }
  return out;
}

constexpr ThinkBlock kModel = ThinkBlock::kModelDecides;
constexpr ThinkBlock kOpen = ThinkBlock::kOpen;
constexpr ThinkBlock kClosed = ThinkBlock::kClosed;

struct Row {
  const char* name;
  AnswerParserOptions options;  // tools are filled in, unless `no_tools`
  const char* answer;
  const char* expected;
  bool cut = false;
  bool no_tools = false;
};

const std::vector<Row>& corpus() {
  static const std::vector<Row> rows = {
      // Reasoning.
      {"C14 model decides, plain", {.think_block = kModel}, "Hello", "[c]Hello"},
      {"C14 model decides, thinks", {.think_block = kModel}, "<think>x</think>Hello", "[r]x[c]Hello"},
      {"C14 open, thinks", {.think_block = kOpen}, "x</think>Hello", "[r]x[c]Hello"},
      {"C14 open, opens again", {.think_block = kOpen}, "\n<think>x</think>Hello", "[r]x[c]Hello"},
      {"C14 closed, plain", {.think_block = kClosed}, "Hello", "[c]Hello"},
      {"C14 closed, tags are text",
       {.think_block = kClosed},
       "<think>x</think>Hello",
       "[c]<think>x</think>Hello"},
      {"C13 cut thoughts, open", {.think_block = kOpen}, "some thoughts", "[r]some thoughts", true},
      {"C13 cut thoughts, opened", {}, "<think>some thoughts\n", "[r]some thoughts\n", true},
      {"C13 thinking off", {.think_block = kClosed}, "some thoughts", "[c]some thoughts", true},
      {"breaks at the tags", {}, " \n<think>\n\nx\n\n</think>\n\n\nHello\n", "[r]\nx\n[c]\nHello\n"},
      {"one break behind the block", {}, "<think>x</think>\nHello", "[r]x[c]Hello"},
      {"empty block", {}, "<think></think>Hello", "[c]Hello"},
      {"block of breaks", {}, "<think>\n\n\n</think>Hello", "[r]\n[c]Hello"},
      {"nothing behind the block", {}, "<think>x</think>\n\n", "[r]x"},
      {"nothing", {}, "", ""},
      {"white space", {}, " \n\t", "[c] \n\t"},
      {"white space, open", {.think_block = kOpen}, "\n ", "[r] "},
      {"only the words", {}, "<thi\x02nk>x</thi\x02nk>Hello", "[c]<think>x</think>Hello"},
      {"the words inside", {}, "<think>a</thi\x02nk>b</think>c", "[r]a</think>b[c]c"},
      {"block opened again inside", {}, "<think>a<think>b</think>c</think>d", "[r]a<think>b[c]c</think>d"},
      {"tags stay",
       {.separate_reasoning = false},
       " <think>\nx\n</think>\n\nHello",
       "[c] <think>\nx\n</think>\n\nHello"},
      {"tags stay, open",
       {.think_block = kOpen, .separate_reasoning = false},
       "\nx\n</think>\nHello",
       "[c]\nx\n</think>\nHello"},
      {"tags stay, call behind",
       {.separate_reasoning = false},
       "<think>x</think>\n<tool_call><function=now></function></tool_call>",
       "[c]<think>x</think>\n[0 now]{}[end]"},

      // Calls.
      {"compact",
       {},
       "<tool_call><function=write><parameter=path>a.txt</parameter><parameter=lines>3</parameter></function>"
       "</tool_call>",
       R"([0 write]{"path":"a.txt","lines":3}[end])"},
      {"spaced",
       {},
       "\n<tool_call>\n<function=write>\n<parameter=path>a.txt</parameter>\n<parameter=lines>\n3\n</"
       "parameter>\n"
       "</function>\n</tool_call>\n",
       R"([0 write]{"path":"a.txt","lines":3}[end])"},
      {"no arguments", {}, "<tool_call><function=now></function></tool_call>", "[0 now]{}[end]"},
      {"no arguments, spaced",
       {},
       "<tool_call>\n<function=now>\n</function>\n</tool_call>",
       "[0 now]{}[end]"},
      {"no function end", {}, "<tool_call><function=now></tool_call>", "[0 now]{}[end]"},
      {"name with space around", {}, "<tool_call><function= now ></function></tool_call>", "[0 now]{}[end]"},
      {"C11 text before and behind",
       {},
       "I will look it up. <tool_call><function=now></function></tool_call> Done.",
       "[c]I will look it up. [0 now]{}[end][c] Done."},
      {"text between",
       {},
       "a <tool_call><function=now></tool_call>\n \n<tool_call><function=now></tool_call> b \n"
       "<tool_call><function=now></tool_call>\n",
       "[c]a [0 now]{}[end][1 now]{}[end][c] b \n[2 now]{}[end]"},
      {"reasoning, text, calls",
       {},
       "<think>\nhm\n</think>\n\nRight away.\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n"
       "<tool_call>\n<function=write>\n<parameter=path>\n</parameter>\n</function>\n</tool_call>",
       R"([r]hm[c]Right away.

[0 now]{}[end][1 write]{"path":"\n"}[end])"},
      {"C12 one call only",
       {.parallel_tool_calls = false},
       "a<tool_call><function=now></tool_call> b <tool_call><function=now></tool_call>",
       "[c]a[0 now]{}[end]"},
      {"C12 one call only, none complete",
       {.parallel_tool_calls = false},
       "<tool_call><function=no></tool_call> b",
       "[c]<tool_call><function=no></tool_call> b"},
      {"tools off",
       {},
       "a<tool_call><function=now></function></tool_call> ",
       "[c]a<tool_call><function=now></function></tool_call> ",
       false,
       true},
      {"only the words of a call",
       {},
       "<tool\x02_call><function=now></function></tool\x02_call>",
       "[c]<tool_call><function=now></function></tool_call>"},

      // Values.
      {"C08 kept to the byte",
       {},
       "<tool_call><function=write><parameter=path> &amp;\n</parameter><parameter=mode>\nnull</parameter>"
       "<parameter=content>if (a < b) \"\\n\"\t\x01</parameter></function></tool_call>",
       R"([0 write]{"path":" &amp;\n","mode":null,"content":"if (a < b) \"\\n\"\t\u0001"}[end])"},
      {"two closing tags as data: the first match wins",
       {},
       "<tool_call><function=write><parameter=path></parameter> x</parameter></parameter>\n</function> "
       "y</function>"
       "\n</parameter></function></tool_call>",
       "[0 write]{\"path\":\"</parameter> x</parameter>\"[broken]<tool_call><function=write><parameter=path>"
       "</parameter> x</parameter></parameter>\n</function> "
       "[c]y</function>\n</parameter></function></tool_call>"},
      {"closing tags as data",
       {},
       "<tool_call><function=write><parameter=path></parameter> x</parameter></parameter>y\n</function> "
       "y</function>"
       "\n</parameter></function></tool_call>",
       R"([0 write]{"path":"</parameter> x</parameter></parameter>y\n</function> y</function>\n"}[end])"},
      {"beginnings of tags as data",
       {},
       "<tool_call><function=write><parameter=path><</</p</parameter</"
       "fun\n\n<parameter\n<parameter=\n<parameter="
       ">\n<parameter=x>\n<parameter=path>\n</parameter></function></tool_call>",
       R"([0 write]{"path":"<</</p</parameter</fun\n\n<parameter\n<parameter=\n<parameter=>\n<parameter=x>\n)"
       R"(<parameter=path>\n"}[end])"},
      {"control tokens as data",
       {},
       "<tool_call><function=write><parameter=path><think>\n<tool_call></parameter></think></parameter></"
       "tool_call>",
       R"([0 write]{"path":"<think>\n<tool_call></parameter></think>"}[end])"},
      {"closed by the call's end",
       {},
       "<tool_call><function=write><parameter=path>a</par\n</tool_call><tool_call><function=write>"
       "<parameter=path>b</function> \n</tool_call>",
       R"([0 write]{"path":"a</par\n"}[end][1 write]{"path":"b"}[end])"},
      {"closed by a declared key's line",
       {},
       "<tool_call><function=write><parameter=path>a\n\n<parameter=content>b\n<parameter=path>\n<parameter= "
       "lines >"
       "3</tool_call>",
       R"([0 write]{"path":"a\n","content":"b\n<parameter=path>","lines":3}[end])"},
      {"undeclared keys",
       {},
       "<tool_call><function=now><parameter=a>[1, 2]</parameter><parameter=b>x</parameter><parameter=c>null"
       "</parameter><parameter=d>7</parameter></tool_call>",
       R"([0 now]{"a":[1, 2],"b":"x","c":"null","d":7}[end])"},
      {"empty values",
       {},
       "<tool_call><function=write><parameter=path></parameter><parameter=lines></parameter></tool_call>",
       R"([0 write]{"path":"","lines":""}[end])"},
      {"unwrapped",
       {.unwrap_values = true},
       "<tool_call><function=write><parameter=path>\n\na\n\n</parameter><parameter=mode>\nx\n</parameter>"
       "<parameter=content>b\n</parameter><parameter=options>\n{}\n</parameter></tool_call>"
       "<tool_call><function=write><parameter=path>\n</parameter><parameter=mode>\n\n</parameter>"
       "<parameter=content>\n<b>\n</parameter></tool_call>",
       R"([0 write]{"path":"\na\n","mode":"x","content":"b\n","options":{}}[end])"
       R"([1 write]{"path":"","mode":"","content":"<b>"}[end])"},
      {"C17 several bytes a character",
       {},
       "\xF0\x9F\xA6\x99<tool_call><function=write><parameter=path>"
       "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB"
       "</parameter><parameter=\xE0\xA4\x85>\xE0\xA4\x85</parameter></tool_call>",
       "[c]\xF0\x9F\xA6\x99[0 write]{\"path\":\"\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB\","
       "\"\xE0\xA4\x85\":\"\xE0\xA4\x85\"}[end]"},
      {"C17 bytes that are no text",
       {},
       "\xFF<tool_call><function=write><parameter=path>\xF0\x9F</parameter></tool_call>\xE0\xA4",
       "[c]\xEF\xBF\xBD[0 write]{\"path\":\"\xEF\xBF\xBD\"}[end][c]\xEF\xBF\xBD"},

      // What is no call.
      {"unknown tool",
       {},
       " <tool_call><function=no><parameter=path><tool_call></parameter></function></tool_call> \n",
       "[c] <tool_call><function=no><parameter=path><tool_call></parameter></function></tool_call> \n"},
      {"unknown tool between calls",
       {},
       "<tool_call><function=now></tool_call> <tool_call><function=no></tool_call> <tool_call><function=now>"
       "</tool_call>",
       "[0 now]{}[end][c] <tool_call><function=no></tool_call> [1 now]{}[end]"},
      {"unknown tool forwarded",
       {.forward_unknown_tools = true},
       "<tool_call><function=no><parameter=a>x\n<parameter=b>y</parameter></function></tool_call>",
       R"([0 no]{"a":"x\n<parameter=b>y"}[end])"},
      {"malformed before the function",
       {},
       "a <tool_call>oops</tool_call> <tool_call> "
       "<func</tool_call><tool_call><tool_call><function=now></tool_call>",
       "[c]a <tool_call>oops</tool_call> <tool_call> <func</tool_call><tool_call>[0 now]{}[end]"},
      {"name too long",
       {},
       "<tool_call><function="
       "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234"
       "56789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345"
       "6789"
       "0123456789012345678901234567890123456789012345678901234567890123456789></tool_call>",
       "[c]<tool_call><function="
       "0123456789012345678901234567890123456789012345678901234567890123456789012345678901"
       "23456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012"
       "3456"
       "7890123456789012345678901234567890123456789012345678901234567890123456789></tool_call>"},
      {"malformed in the function",
       {},
       "a\n<tool_call><function=now>words</function></tool_call>\n<tool_call><function=now></tool_call>",
       "[c]a\n[0 now][broken]<tool_call><function=now>[c]words</function></tool_call>\n[1 now]{}[end]"},
      {"malformed key",
       {},
       "\n<tool_call><function=write><parameter=path>a</parameter><parameter=></parameter></tool_call>",
       "[0 "
       "write]{\"path\":\"a\"[broken]\n<tool_call><function=write><parameter=path>a</"
       "parameter><parameter=[c]>"
       "</parameter></tool_call>"},
      {"malformed behind the function",
       {},
       "<tool_call><function=now></function> and </tool_call>",
       "[0 now][broken]<tool_call><function=now></function> [c]and </tool_call>"},
      {"call in the body of a call",
       {},
       "<tool_call><function=now><tool_call><function=now></function></tool_call>",
       "[0 now][broken]<tool_call><function=now>[1 now]{}[end]"},
      {"parameter given twice",
       {},
       "<tool_call><function=write><parameter=lines>1</parameter><parameter=lines>2<tool_call></parameter>"
       "</function></tool_call> <tool_call><function=now></tool_call>",
       "[0 "
       "write]{\"lines\":1[broken]<tool_call><function=write><parameter=lines>1</parameter><parameter=lines>2"
       "<tool_call></parameter></function></tool_call>[c] [1 now]{}[end]"},
      {"ends in a call",
       {},
       "a<tool_call><function=write><parameter=path>b</parameter></function>",
       "[c]a[0 "
       "write]{\"path\":\"b\"[broken]<tool_call><function=write><parameter=path>b</parameter></function>"},
      {"C10 cut in a value",
       {},
       "a <tool_call><function=write><parameter=path>b</para",
       "[c]a [0 write]{\"path\":\"b[broken]<tool_call><function=write><parameter=path>b</para",
       true},
      {"C10 cut in the second call",
       {},
       "<tool_call><function=now></function></tool_call>\n<tool_call>\n<function=write>\n<parameter=lines>1",
       "[0 now]{}[end][1 write]{\"lines\":[broken]\n<tool_call>\n<function=write>\n<parameter=lines>1",
       true},
      {"C18 cut before the function", {}, "a <tool_call>\n<func", "[c]a <tool_call>\n<func", true},

      // Calls in reasoning.
      {"C09 call at the end of an open block",
       {},
       "<think>\nI will "
       "call\n<tool_call><function=write><parameter=path>a</parameter></function></tool_call>",
       "[r]I will call\n[0 write]{\"path\":\"a\"}[end]"},
      {"C09 block closed behind the call",
       {},
       "<think>I will call<tool_call><function=now></function></tool_call>\n</think>answer",
       "[r]I will call<tool_call><function=now></function></tool_call>[c]answer"},
      {"C09 two calls and text in an open block",
       {.think_block = kOpen},
       "x<tool_call><function=now></tool_call>\n<tool_call><function=now></tool_call> y",
       "[r]x[0 now]{}[end][1 now]{}[end][r] y"},
      {"C09 one of two is cut off",
       {.think_block = kOpen},
       "x<tool_call><function=now></tool_call><tool_call><function=now>",
       "[r]x<tool_call><function=now></tool_call><tool_call><function=now>"},
      {"C09 unknown tool in an open block",
       {.think_block = kOpen, .forward_unknown_tools = true},
       "x\n<tool_call><function=no></tool_call>\n<tool_call><function=now></tool_call>",
       "[r]x\n<tool_call><function=no></tool_call>\n<tool_call><function=now></tool_call>"},
      {"C09 cut behind a call in an open block",
       {.think_block = kOpen},
       "x<tool_call><function=now></tool_call> and",
       "[r]x<tool_call><function=now></tool_call> and",
       true},
      {"C09 block closed inside a call's value",
       {.think_block = kOpen},
       "x<tool_call><function=write><parameter=path></think>y</parameter></tool_call>",
       "[r]x<tool_call><function=write><parameter=path>[c]y</parameter></tool_call>"},
      {"C09 quoted, then called",
       {.think_block = kOpen},
       "e.g. <tool_call><function=now></tool_call>\n</think>\n<tool_call><function=now></tool_call>",
       "[r]e.g. <tool_call><function=now></tool_call>[0 now]{}[end]"},
      {"C09 one call only, open block",
       {.think_block = kOpen, .parallel_tool_calls = false},
       "x<tool_call><function=now></tool_call><tool_call><function=now></tool_call>",
       "[r]x[0 now]{}[end]"},
      {"C09 tags stay, call in an open block",
       {.separate_reasoning = false},
       "<think>x\n<tool_call><function=now></tool_call>",
       "[c]<think>x\n[0 now]{}[end]"},
      {"C09 tags stay, quoted call",
       {.separate_reasoning = false},
       "<think>x\n<tool_call><function=now></tool_call></think>",
       "[c]<think>x\n<tool_call><function=now></tool_call></think>"},
      {"C09 tools off",
       {.think_block = kOpen},
       "x<tool_call><function=now></tool_call>",
       "[r]x<tool_call><function=now></tool_call>",
       false,
       true},
  };
  return rows;
}

AnswerParserOptions options_of(const Row& row) {
  AnswerParserOptions options = row.options;
  options.tools = row.no_tools ? nullptr : &tools();
  return options;
}

std::size_t text_bytes(const std::vector<test::ScriptPiece>& pieces) {
  std::size_t bytes = 0;
  for (const test::ScriptPiece& piece : pieces) {
    if (piece.marker == AnswerMarker::kNone) bytes += piece.text.size();
  }
  return bytes;
}

TEST(AnswerParser, SaysWhatTheCorpusExpects_C09_C11_C12_C13_C14) {
  EXPECT_GE(corpus().size(), 40u);
  for (const Row& row : corpus()) {
    const ParsedScript whole = parse_whole(row.answer, options_of(row), row.cut);
    EXPECT_EQ(shown(whole.deltas), row.expected) << row.name;
  }
}

TEST(AnswerParser, DoesNotDependOnTheCuts_C07_C11) {
  std::minstd_rand random(7);
  for (const Row& row : corpus()) {
    const auto pieces = test::script(row.answer);
    const AnswerParserOptions options = options_of(row);
    const ParsedScript whole = parse_whole(row.answer, options, row.cut);
    const auto check = [&](auto next_cut, const char* how, std::size_t number) {
      const ParsedScript parsed = parse_script(pieces, options, row.cut, next_cut);
      EXPECT_EQ(shown(parsed.deltas), shown(whole.deltas)) << row.name << ": " << how << " " << number;
      EXPECT_EQ(parsed.calls, whole.calls) << row.name;
      EXPECT_EQ(parsed.problems, whole.problems) << row.name;
      for (const AnswerDelta& delta : parsed.raw) {
        const bool has_text = delta.kind != DeltaKind::kToolStart && delta.kind != DeltaKind::kToolEnd;
        EXPECT_EQ(delta.text.empty(), !has_text) << row.name;
        EXPECT_TRUE(utf8_valid(delta.text)) << row.name;
      }
    };
    for (const std::size_t length : {1, 2, 3, 7, 64}) {
      check([&](std::size_t offset) { return offset + length; }, "pieces of", length);
    }
    for (std::size_t at = 1; at < text_bytes(pieces); ++at) {
      check([&](std::size_t offset) { return offset < at ? at : std::string::npos; }, "cut at", at);
    }
    for (std::size_t round = 0; round < 20; ++round) {
      check([&](std::size_t offset) { return offset + 1 + random() % 13; }, "random", round);
    }
  }
}

// A whole message says what the stream said; a broken call is the one difference.
TEST(AnswerParser, AWholeMessageEqualsTheStream) {
  for (const Row& row : corpus()) {
    const ParsedScript parsed = parse_whole(row.answer, options_of(row), row.cut);
    AssistantAnswer streamed;
    std::vector<std::string> arguments;
    std::string broken;
    for (const AnswerDelta& delta : parsed.deltas) {
      if (delta.kind == DeltaKind::kReasoning) streamed.reasoning += delta.text;
      if (delta.kind == DeltaKind::kContent) streamed.content += delta.text;
      if (delta.kind == DeltaKind::kToolStart) arguments.emplace_back();
      if (delta.kind == DeltaKind::kToolArguments) arguments.back() += delta.text;
      if (delta.kind == DeltaKind::kToolBroken) {
        EXPECT_FALSE(parse_json(arguments.back(), "arguments")) << row.name;  // recognisably incomplete
        arguments.pop_back();
        broken += delta.text;
      }
    }
    const AssistantAnswer whole = assembled(parsed.deltas);
    EXPECT_EQ(whole.reasoning, streamed.reasoning) << row.name;
    EXPECT_EQ(whole.content.size(), streamed.content.size() + broken.size()) << row.name;
    if (broken.empty()) {
      EXPECT_EQ(whole.content, streamed.content) << row.name;
    }
    ASSERT_EQ(whole.calls.size(), arguments.size()) << row.name;
    EXPECT_EQ(parsed.calls, static_cast<int>(arguments.size())) << row.name;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      EXPECT_EQ(whole.calls[i].arguments_text, arguments[i]) << row.name;
      EXPECT_EQ(json::value(whole.calls[i].arguments), parse_json(arguments[i], "arguments").value())
          << row.name;
    }
  }
}

TEST(AnswerParser, ABrokenCallIsContentInAWholeMessage) {
  const AssistantAnswer whole = assembled(
      parse_whole(
          "a\n<tool_call><function=now>words</function></tool_call>\n<tool_call><function=now></tool_call>",
          {.tools = &tools()})
          .deltas);
  EXPECT_EQ(whole.content, "a\n<tool_call><function=now>words</function></tool_call>\n");
  ASSERT_EQ(whole.calls.size(), 1u);
  EXPECT_EQ(whole.calls[0].name, "now");
  EXPECT_EQ(whole.calls[0].arguments_text, "{}");
}

// Any order of markup, of which most is malformed.
TEST(AnswerParser, DoesNotDependOnTheCutsOfAnyMarkup) {
  constexpr const char* kParts[] = {"<think>",
                                    "</think>",
                                    "<tool_call>",
                                    "</tool_call>",
                                    "</tool_call>",
                                    "<function=now>",
                                    "<function=write>",
                                    "<function=no>",
                                    "</function>",
                                    "<parameter=path>",
                                    "</parameter>",
                                    "</parameter>",
                                    "<parameter=mode>",
                                    "\n<parameter=path>",
                                    "\n<parameter=lines>",
                                    "\n",
                                    " ",
                                    "x",
                                    "1",
                                    "null",
                                    "</",
                                    "<para",
                                    ">",
                                    "\xE0\xA4\x85",
                                    "\"\\",
                                    "<tool_call>\n<function=write>\n<parameter=path>"};
  std::minstd_rand random(11);
  int calls = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string answer;
    for (unsigned length = 1 + random() % 20; length > 0; --length)
      answer += kParts[random() % std::size(kParts)];
    const AnswerParserOptions options = {.think_block = static_cast<ThinkBlock>(random() % 3),
                                         .tools = &tools(),
                                         .separate_reasoning = random() % 4 != 0,
                                         .parallel_tool_calls = random() % 4 != 0,
                                         .forward_unknown_tools = random() % 4 == 0,
                                         .unwrap_values = random() % 2 == 0};
    const bool cut = random() % 2 == 0;
    const auto pieces = test::script(answer);
    const ParsedScript whole = parse_whole(answer, options, cut);
    const auto one = parse_script(pieces, options, cut, [](std::size_t offset) { return offset + 1; });
    const auto some =
        parse_script(pieces, options, cut, [&](std::size_t offset) { return offset + 1 + random() % 9; });
    ASSERT_EQ(whole.deltas, one.deltas) << answer;
    ASSERT_EQ(whole.deltas, some.deltas) << answer;
    ASSERT_EQ(assembled(whole.deltas).calls.size(), static_cast<std::size_t>(whole.calls)) << answer;
    calls += whole.calls;
  }
  EXPECT_GT(calls, 300);  // not all is malformed
}

TEST(AnswerParser, IgnoresWhatComesAfterTheEnd) {
  AnswerParser parser({.tools = &tools()});
  std::vector<AnswerDelta> out;
  parser.push("a", AnswerMarker::kNone, out);
  parser.finish(false, out);
  out.clear();
  parser.push("b", AnswerMarker::kNone, out);
  parser.push("<think>", AnswerMarker::kThinkOpen, out);
  parser.finish(false, out);
  EXPECT_TRUE(out.empty());
}

TEST(AnswerParser, DoesNotTouchEarlierDeltas) {
  AnswerParser parser({.think_block = kClosed});
  std::vector<AnswerDelta> out;
  parser.push("a", AnswerMarker::kNone, out);
  parser.push("b", AnswerMarker::kNone, out);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].text, "a");
}

TEST(AnswerParser, NotesWhatIsNoCall) {
  const auto problems = [](std::string_view answer, bool cut) {
    return parse_whole(answer, {.tools = &tools()}, cut).problems;
  };
  EXPECT_EQ(problems("<tool_call><function=no></tool_call><tool_call>x<tool_call><function=now>", false),
            (std::vector<std::string>{"tool call: no tool is called \"no\"",
                                      "tool call: expected <function=NAME> at byte 47",
                                      "tool call: cut off at byte 73"}));
  // A limit that cuts a call off is no fault of the model's.
  EXPECT_TRUE(problems("<tool_call><function=now>", true).empty());
  // Quotations in reasoning are none either.
  EXPECT_TRUE(problems("<think><tool_call><function=no></tool_call>", false).empty());
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "<tool_call>";
  EXPECT_EQ(problems(many, false).size(), 100u);
}

TEST(AnswerParser, TakesLinearTime) {
  // Each would take hours if what is held were looked at again for each byte.
  const std::string_view repeated[] = {"</parameter>          ",
                                       "\n<parameter=path>",
                                       "</function>\n",
                                       "\n\n\n\n",
                                       "\n<parameter=xxxxxxxxxxxxxxxxxxxxxxxx",
                                       "</parameter",
                                       "<tool_call>"};
  for (const std::string_view part : repeated) {
    std::string answer = "<tool_call><function=write><parameter=path>";
    for (int i = 0; i < 20'000; ++i) answer += part;
    const auto parsed = parse_script(test::script(answer), {.think_block = kClosed, .tools = &tools()}, false,
                                     [](std::size_t offset) { return offset + 1; });
    EXPECT_EQ(assembled(parsed.deltas).content, answer);
  }
  std::string calls = "<think>";
  for (int i = 0; i < 20'000; ++i) calls += "<tool_call><function=now></tool_call> ";
  EXPECT_EQ(parse_whole(calls, {.tools = &tools()}).calls, 20'000);
}

TEST(AnswerParser, DeepValuesStayReadable) {
  for (const std::size_t depth : {10, 62, 63, 64, 100'000}) {
    const std::string value = std::string(depth, '[') + std::string(depth, ']');
    const AssistantAnswer answer =
        assembled(parse_whole("<tool_call><function=now><parameter=a>" + value + "</parameter></tool_call>",
                              {.tools = &tools()})
                      .deltas);
    ASSERT_EQ(answer.calls.size(), 1u);
    EXPECT_EQ(answer.calls[0].arguments.at("a").is_array(), depth <= 63) << depth;
  }
}

}  // namespace
}  // namespace mimo
