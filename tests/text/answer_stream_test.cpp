// When the answer parser lets go of what, and the tables of conversion and of cuts.
#include <gtest/gtest.h>

#include "text/answer_parser.h"
#include "text/answer_script.h"

namespace mimo {
namespace {

using test::assembled;
using test::parse_script;
using test::parse_whole;
using test::ParsedScript;

json::array tool(const char* name, const char* properties) {
  return parse_json(fmt::format(R"([{{"type":"function","function":{{"name":"{}","parameters":
                       {{"type":"object","properties":{}}}}}}}])",
                                name, properties),
                    "tools")
      .value()
      .as_array();
}

const json::array& write_tool() {
  static const json::array list = tool("write", R"({"path":{"type":"string"},"content":{"type":"string"},
      "lines":{"type":"integer"}})");
  return list;
}

std::string arguments_of(const std::vector<AnswerDelta>& deltas) {
  std::string out;
  for (const AnswerDelta& delta : deltas) {
    if (delta.kind == DeltaKind::kToolArguments) out += delta.text;
  }
  return out;
}

TEST(AnswerStream, LongStringsAreStreamed_C07) {
  std::string content;
  for (int i = 0; content.size() < 4096; ++i)
    content += fmt::format("line {} \"<b>\\\" &amp;\t\xC3\xA9\n", i);
  const auto pieces =
      test::script("<tool_call><function=write><parameter=path>a.txt</parameter><parameter=content>" +
                   content + "</parameter></function></tool_call>");
  ASSERT_EQ(pieces.size(), 5u);
  for (const std::size_t length : {1, 2, 3, 7, 64}) {
    AnswerParser parser({.tools = &write_tool()});
    std::vector<AnswerDelta> out;
    std::string_view rest = pieces[2].text;
    std::size_t name_at = 0;
    int arguments_before_end = 0;
    parser.push(pieces[1].text, pieces[1].marker, out);
    for (std::size_t offset = 0; !rest.empty(); offset += length) {
      const std::size_t before = out.size();
      parser.push(rest.substr(0, length), AnswerMarker::kNone, out);
      rest.remove_prefix(std::min(length, rest.size()));
      for (std::size_t i = before; i < out.size(); ++i) {
        if (out[i].kind == DeltaKind::kToolStart) name_at = offset + length;
        const bool in_value = rest.size() > std::string_view("</parameter></function>").size();
        if (out[i].kind == DeltaKind::kToolArguments && in_value) ++arguments_before_end;
      }
    }
    ASSERT_FALSE(out.empty());
    EXPECT_EQ(out[0].kind, DeltaKind::kToolStart);
    EXPECT_EQ(out[0].name, "write");
    const std::size_t header = std::string_view("<function=write>").size();
    EXPECT_GE(name_at, header);
    EXPECT_LT(name_at, header + length);  // with the piece that completes the header
    EXPECT_GE(arguments_before_end, 10) << length;
    EXPECT_EQ(parser.calls(), 0);
    parser.push(pieces[3].text, pieces[3].marker, out);
    EXPECT_EQ(parser.calls(), 1);
    parser.finish(false, out);
    json::object expected;
    expected["path"] = "a.txt";
    expected["content"] = content;
    EXPECT_EQ(parse_json(arguments_of(out), "arguments").value(), json::value(expected));
  }
}

// Bytes of a value that are held back although they have been pushed.
std::size_t held_after(std::string_view value) {
  AnswerParser parser({.tools = &write_tool()});
  std::vector<AnswerDelta> out;
  parser.push("<tool_call>", AnswerMarker::kToolOpen, out);
  parser.push("<function=write><parameter=path>", AnswerMarker::kNone, out);
  for (const char c : value) parser.push({&c, 1}, AnswerMarker::kNone, out);
  const std::string arguments = arguments_of(out) + "\"}";
  return value.size() - parse_json(arguments, "arguments").value().at("path").as_string().size();
}

TEST(AnswerStream, OnlyWhatIsUndecidedIsHeld_C07) {
  const std::pair<const char*, std::size_t> cases[] = {
      {"plain words", 0},
      {"a<", 1},
      {"a<b", 0},
      {"a</para", 6},
      {"a</para ", 0},
      {"a</parameter>", 12},
      {"a</parameter> \n", 14},
      {"a</parameter> x", 0},
      {"a</function>", 11},
      {"a</function> x", 0},
      {"a\n", 1},
      {"a\nb", 0},
      {"a\n\n", 1},
      {"a\n<", 2},
      {"a\n<parameter=", 12},
      {"a <parameter=", 0},
      {"a\n<parameter=path>", 0},
      {"a\n<parameter=li", 14},
      {"\xF0\x9F\xA6", 3},
      {"\xF0\x9F\xA6\x99", 0},
      {"<tool_call", 0},
  };
  for (const auto& [value, held] : cases) EXPECT_EQ(held_after(value), held) << value;
}

TEST(AnswerStream, ContentAndReasoningAreNotHeld) {
  for (const auto block : {ThinkBlock::kOpen, ThinkBlock::kClosed}) {
    AnswerParser parser({.think_block = block, .tools = &write_tool()});
    const std::string text = "one <two\nthree </think <tool_call";
    std::string got;
    for (std::size_t i = 0; i < text.size(); ++i) {
      std::vector<AnswerDelta> out;
      parser.push(text.substr(i, 1), AnswerMarker::kNone, out);
      for (const AnswerDelta& delta : out) got += delta.text;
      // In reasoning a line break may belong to the closing tag.
      const std::size_t held = block == ThinkBlock::kOpen && text[i] == '\n' ? 1 : 0;
      EXPECT_EQ(got.size(), i + 1 - held);
    }
  }
}

// The declared schema decides; strings keep their bytes.
TEST(AnswerStream, ConvertsByTheSchema_C08) {
  const json::array list = tool("t", R"({"s":{"type":"string"},"n":{"type":"integer"},"f":{"type":"number"},
      "b":{"type":"boolean"},"o":{"type":"object"},"a":{"type":"array"},"u":{"type":["string","null"]},"any":{}})");
  const char* const keys[] = {"s", "n", "f", "b", "o", "a", "u", "any"};
  struct Row {
    const char* value;
    const char* expected[8];  // JSON text, for each key
  };
  const Row rows[] = {
      {"&amp;",
       {R"("&amp;")", R"("&amp;")", R"("&amp;")", R"("&amp;")", R"("&amp;")", R"("&amp;")", R"("&amp;")",
        R"("&amp;")"}},
      {"null",
       {R"("null")", R"("null")", R"("null")", R"("null")", R"("null")", R"("null")", "null", R"("null")"}},
      {"007",
       {R"("007")", R"("007")", R"("007")", R"("007")", R"("007")", R"("007")", R"("007")", R"("007")"}},
      {"true",
       {R"("true")", R"("true")", R"("true")", "true", R"("true")", R"("true")", R"("true")", "true"}},
      {" x ",
       {R"(" x ")", R"(" x ")", R"(" x ")", R"(" x ")", R"(" x ")", R"(" x ")", R"(" x ")", R"(" x ")"}},
      {"\nx\n",
       {R"("\nx\n")", R"("\nx\n")", R"("\nx\n")", R"("\nx\n")", R"("\nx\n")", R"("\nx\n")", R"("\nx\n")",
        R"("\nx\n")"}},
      {R"({"k":1})",
       {R"("{\"k\":1}")", R"("{\"k\":1}")", R"("{\"k\":1}")", R"("{\"k\":1}")", R"({"k":1})",
        R"("{\"k\":1}")", R"("{\"k\":1}")", R"({"k":1})"}},
      {"[1,2]",
       {R"("[1,2]")", R"("[1,2]")", R"("[1,2]")", R"("[1,2]")", R"("[1,2]")", "[1,2]", R"("[1,2]")",
        "[1,2]"}},
      {"a</parameter b",
       {R"("a</parameter b")", R"("a</parameter b")", R"("a</parameter b")", R"("a</parameter b")",
        R"("a</parameter b")", R"("a</parameter b")", R"("a</parameter b")", R"("a</parameter b")"}},
      {"123", {R"("123")", "123", "123", R"("123")", R"("123")", R"("123")", R"("123")", "123"}},
      {" 5.0\n",
       {R"(" 5.0\n")", "5", "5.0", R"(" 5.0\n")", R"(" 5.0\n")", R"(" 5.0\n")", R"(" 5.0\n")", "5.0"}},
  };
  for (const Row& row : rows) {
    std::string answer = "<tool_call><function=t>";
    std::string expected = "{";
    for (std::size_t k = 0; k < std::size(keys); ++k) {
      answer += fmt::format("<parameter={}>{}</parameter>", keys[k], row.value);
      expected += fmt::format("{}\"{}\":{}", k == 0 ? "" : ",", keys[k], row.expected[k]);
    }
    answer += "</function></tool_call>";
    expected += "}";
    const AnswerParserOptions options = {.tools = &list};
    const AssistantAnswer whole = assembled(parse_whole(answer, options).deltas);
    ASSERT_EQ(whole.calls.size(), 1u) << row.value;
    EXPECT_EQ(whole.calls[0].arguments_text, expected) << row.value;
    for (const std::size_t length : {1, 2, 3, 7, 64}) {
      const ParsedScript parsed = parse_script(test::script(answer), options, false,
                                               [&](std::size_t offset) { return offset + length; });
      EXPECT_EQ(arguments_of(parsed.raw), expected) << row.value << " in pieces of " << length;
    }
  }
}

TEST(AnswerStream, SchemasInManyFormsDoNotCrash_C08) {
  const json::array list = tool("t", R"({"a":{"type":["integer","null"]},"b":{"anyOf":[{"type":"array"},
      {"type":"null"}]},"c":{"enum":[1,2]},"d":{"$ref":"#/properties/a"},"e":{"type":[]},"f":true,"g":{"type":7}})");
  const AssistantAnswer answer = assembled(
      parse_whole(
          "<tool_call><function=t><parameter=a>null</parameter><parameter=b>[1]</parameter><parameter=c>2"
          "</parameter><parameter=d>7</parameter><parameter=e>x</parameter><parameter=f>true</parameter>"
          "<parameter=g>1</parameter></tool_call>",
          {.tools = &list})
          .deltas);
  ASSERT_EQ(answer.calls.size(), 1u);
  EXPECT_EQ(answer.calls[0].arguments_text, R"({"a":null,"b":[1],"c":2,"d":7,"e":"x","f":true,"g":1})");
}

// The answer cut at every length.
TEST(AnswerStream, ACutCallIsNoCall_C10) {
  const std::string answer =
      "<think>\nhm\n</think>\n\nLet me see.\n<tool_call>\n<function=write>\n<parameter=path>a "
      "\"b\".txt</parameter>\n"
      "<parameter=lines>12</parameter>\n</function>\n</"
      "tool_call>\n<tool_call><function=write><parameter=content>"
      "x</parameter></function></tool_call>";
  const auto pieces = test::script(answer);
  const AnswerParserOptions options = {.tools = &write_tool()};
  const ParsedScript complete = parse_whole(answer, options);
  ASSERT_EQ(complete.calls, 2);
  const auto text = [](const std::vector<AnswerDelta>& deltas, DeltaKind kind, int index) {
    std::string out;
    for (const AnswerDelta& delta : deltas) {
      if (delta.kind == kind && delta.index == index) out += delta.text;
    }
    return out;
  };

  std::vector<test::ScriptPiece> taken;
  std::size_t bytes = 0;
  int incomplete = 0;
  const auto check = [&] {
    const ParsedScript cut =
        parse_script(taken, options, true, [](std::size_t offset) { return offset + 1; });
    EXPECT_TRUE(cut.problems.empty());
    // What the stream sent is the beginning of what it would have sent. (A line break before </think> is only
    // part of the tag if that comes.)
    const std::string reasoning = text(cut.deltas, DeltaKind::kReasoning, 0);
    EXPECT_TRUE(std::string_view("hm\n").starts_with(reasoning)) << bytes;
    for (int index = 0; index < 2; ++index) {
      const std::string all = text(complete.deltas, DeltaKind::kToolArguments, index);
      const std::string part = text(cut.deltas, DeltaKind::kToolArguments, index);
      EXPECT_TRUE(all.starts_with(part)) << bytes;
      // Arguments parse exactly if the call is complete.
      EXPECT_EQ(parse_json(part, "arguments").has_value(), index < cut.calls) << bytes;
    }
    const AssistantAnswer whole = assembled(cut.deltas);
    EXPECT_EQ(whole.calls.size(), static_cast<std::size_t>(cut.calls));
    const bool broken = !cut.deltas.empty() && cut.deltas.back().kind == DeltaKind::kToolBroken;
    if (!broken) return;
    ++incomplete;
    EXPECT_TRUE(whole.content.ends_with(cut.deltas.back().text));
    // As it was written.
    EXPECT_TRUE(answer.substr(0, bytes).ends_with(cut.deltas.back().text)) << bytes;
  };
  for (const test::ScriptPiece& piece : pieces) {
    if (piece.marker != AnswerMarker::kNone) {
      taken.push_back(piece);
      bytes += piece.text.size();
      check();
      continue;
    }
    taken.emplace_back();
    for (const char c : piece.text) {
      taken.back().text += c;
      ++bytes;
      check();
    }
  }
  EXPECT_EQ(bytes, answer.size());
  EXPECT_GT(incomplete, 100);
}

TEST(AnswerStream, EndsAfterOneCallIfAsked_C12) {
  const std::string answer =
      "<tool_call><function=write></tool_call> and <tool_call><function=write></tool_call>";
  for (const bool parallel : {true, false}) {
    AnswerParser parser({.tools = &write_tool(), .parallel_tool_calls = parallel});
    std::vector<AnswerDelta> out;
    int done_at = 0, markers = 0;
    for (const test::ScriptPiece& piece : test::script(answer)) {
      parser.push(piece.text, piece.marker, out);
      if (piece.marker != AnswerMarker::kNone) ++markers;
      if (parser.done() && done_at == 0) done_at = markers;
    }
    parser.finish(false, out);
    EXPECT_EQ(done_at, parallel ? 0 : 2);  // with the first </tool_call>
    EXPECT_EQ(parser.calls(), parallel ? 2 : 1);
    EXPECT_EQ(assembled(out).content, parallel ? " and " : "");
    EXPECT_EQ(out.back().index, parallel ? 1 : 0);
  }
}

// finish_reason tool_calls goes with calls() > 0: never without calls, never with them missing.
TEST(AnswerStream, CountsTheCallsThatItDelivers_C09) {
  const std::string thought = "<think>I will call<tool_call><function=write></function></tool_call>";
  const std::pair<std::string, int> cases[] = {{thought, 1}, {thought + "</think>answer", 0}};
  for (const auto& [answer, calls] : cases) {
    const ParsedScript parsed = parse_whole(answer, {.tools = &write_tool()});
    EXPECT_EQ(parsed.calls, calls);
    EXPECT_EQ(assembled(parsed.deltas).calls.size(), static_cast<std::size_t>(calls));
  }
  // Until the end has decided, nothing is counted.
  AnswerParser parser({.tools = &write_tool(), .parallel_tool_calls = false});
  std::vector<AnswerDelta> out;
  for (const test::ScriptPiece& piece : test::script(thought)) parser.push(piece.text, piece.marker, out);
  EXPECT_EQ(parser.calls(), 0);
  EXPECT_FALSE(parser.done());
  parser.finish(false, out);
  EXPECT_EQ(parser.calls(), 1);
  EXPECT_TRUE(parser.done());
}

// An answer that ends inside a character.
TEST(AnswerStream, CharactersAreNeverCut_C17) {
  const std::string text = "\xF0\x9F\xA6\x99\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB\xE0\xA4\x85";
  const std::string before[] = {"", "<think>", "<tool_call><function=write><parameter=path>",
                                "<tool_call><function=write><parameter=lines>"};
  for (const std::string& start : before) {
    for (std::size_t length = 1; length <= text.size(); ++length) {
      const std::string answer = start + text.substr(0, length);
      const ParsedScript parsed = parse_script(test::script(answer), {.tools = &write_tool()}, true,
                                               [](std::size_t offset) { return offset + 1; });
      std::string all;
      for (const AnswerDelta& delta : parsed.raw) {
        EXPECT_TRUE(utf8_valid(delta.text));
        if (delta.kind != DeltaKind::kToolArguments) all += delta.text;
      }
      const std::string shown = utf8_replace_invalid(answer);
      EXPECT_TRUE(all.ends_with(utf8_replace_invalid(text.substr(0, length)))) << shown;
      // One replacement at most, at the end.
      EXPECT_TRUE(all.find("\xEF\xBF\xBD") == std::string::npos || all.ends_with("\xEF\xBF\xBD")) << shown;
    }
  }
}

// Text that a stop string held back and the end lets go reaches the parser like any other.
TEST(AnswerStream, TheLastPieceGoesThroughTheParser_C18) {
  AnswerParser parser({.tools = &write_tool()});
  std::vector<AnswerDelta> out;
  parser.push("<tool_call>", AnswerMarker::kToolOpen, out);
  parser.push("<function=write><parameter=path>a</par", AnswerMarker::kNone, out);
  parser.push("ameter></function>", AnswerMarker::kNone, out);
  parser.push("</tool_call>", AnswerMarker::kToolClose, out);
  parser.finish(false, out);
  const AssistantAnswer answer = assembled(out);
  EXPECT_EQ(answer.content, "");
  ASSERT_EQ(answer.calls.size(), 1u);
  EXPECT_EQ(answer.calls[0].arguments_text, R"({"path":"a"})");
}

}  // namespace
}  // namespace mimo
