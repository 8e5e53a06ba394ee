// Tool calls in whole answers, by the rules of text/tool_call_parser.h.

#include <gtest/gtest.h>

#include "text/assistant_answer.h"

namespace mimo {
namespace {

const json::array& tools() {
  static const json::array list = parse_json(R"([
    {"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{
      "city":{"type":"string"},"days":{"type":"integer"},"exact":{"type":"boolean"},
      "scale":{"type":["number","null"]},"tags":{"type":"array"},"extra":{"type":"object"}}}}},
    {"type":"function","function":{"name":"now"}}
  ])",
                                             "tools")
                                      .value()
                                      .as_array();
  return list;
}

std::string shown(const AssistantAnswer& text) {
  std::string out = text.content;
  for (const ToolCall& call : text.calls) out += "|" + call.name + json::serialize(call.arguments);
  return out;
}

AssistantAnswer parse(std::string_view text) { return parse_answer(text, ThinkBlock::kClosed, tools()); }

TEST(ToolCalls, ReadsTheCompactForm) {
  const AssistantAnswer text = parse(
      "<tool_call><function=weather><parameter=city>Oslo</parameter><parameter=days>3</parameter>"
      "<parameter=exact>true</parameter><parameter=scale>null</parameter>"
      "<parameter=tags>[\"a\", 1]</parameter><parameter=extra>{\"k\": 2.5}</parameter>"
      "</function></tool_call>");
  EXPECT_TRUE(text.problems.empty());
  EXPECT_EQ(
      shown(text),
      R"(|weather{"city":"Oslo","days":3,"exact":true,"scale":null,"tags":["a",1],"extra":{"k":2.5E0}})");
}

TEST(ToolCalls, ReadsTheFormWithLineBreaks) {
  const AssistantAnswer text = parse(
      "Let me see.\n<tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n"
      "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n"
      "</function>\n</tool_call>\n");
  EXPECT_TRUE(text.problems.empty());
  EXPECT_EQ(shown(text), "Let me see.\n|weather{\"city\":\"Oslo\",\"days\":3}|now{}");
}

TEST(ToolCalls, KeepsTextAroundCallsInOrder) {
  EXPECT_EQ(shown(parse("a <tool_call><function=now></function></tool_call> b "
                        "<tool_call><function=now></function></tool_call> c")),
            "a  b  c|now{}|now{}");
  EXPECT_EQ(shown(parse("no call at all <b>")), "no call at all <b>");
  EXPECT_EQ(shown(parse("  \n")), "  \n");
  EXPECT_EQ(shown(parse("")), "");
}

TEST(ToolCalls, KeepsValuesToTheByte) {
  for (const std::string value :
       {" leading and trailing \n", "a </parameter> b", "&amp; &lt;", "if (a < b) { c(\"\\n\"); }",
        "<parameter=city>", "x\n<parameter=unknown>y", "</function>", "</tool_cal", "<tool_call>", "",
        "\xC3\xA9", "<parameter=days>1</parameter> and more"}) {
    const AssistantAnswer text = parse("<tool_call><function=weather><parameter=city>" + value +
                                       "</parameter></function></tool_call>");
    ASSERT_EQ(text.calls.size(), 1u) << value;
    EXPECT_EQ(text.calls[0].arguments.at("city").as_string(), value);
    EXPECT_TRUE(text.problems.empty());
  }
}

TEST(ToolCalls, ImpliesClosingsThatModelsForget) {
  const char* const kWanted = R"(|weather{"city":"Oslo","days":3})";
  for (const char* text : {
           "<tool_call><function=weather><parameter=city>Oslo</parameter><parameter=days>3</parameter></"
           "tool_call>",
           "<tool_call><function=weather><parameter=city>Oslo</parameter><parameter=days>3</function></"
           "tool_call>",
           "<tool_call><function=weather><parameter=city>Oslo</parameter><parameter=days>3</tool_call>",
           "<tool_call><function=weather><parameter=city>Oslo\n<parameter=days>3</parameter></function></"
           "tool_call>",
       }) {
    EXPECT_EQ(shown(parse(text)), kWanted) << text;
  }
}

TEST(ToolCalls, MalformedCallsStayText) {
  for (const std::string text : {
           "<tool_call>",
           "<tool_call></tool_call>",
           "<tool_call>weather</tool_call>",
           "<tool_call><function=",
           "<tool_call><function=weather",
           "<tool_call><function=></function></tool_call>",
           "<tool_call><function=  ></function></tool_call>",
           "<tool_call><function=we<ather></function></tool_call>",
           "<tool_call><function=weather></function>",
           "<tool_call><function=weather></function> and </tool_call>",
           "<tool_call><function=weather>words</function></tool_call>",
           "<tool_call><function=weather><parameter=>x</parameter></function></tool_call>",
           "<tool_call><function=weather><parameter=city>Oslo",
           "<tool_call><function=weather><parameter=city>Oslo</parameter>",
           "<tool_call><function=weather><parameter=city>Oslo</parameter></function>",
           "<tool_call><function=nobody></function></tool_call>",
           "<tool_call><function=Weather></function></tool_call>",
           "<tool_call><function=weather><parameter=days>1</parameter><parameter=days>2</tool_call>",
           R"(<tool_call>{"name": "weather", "arguments": {}}</tool_call>)",
       }) {
    const AssistantAnswer parsed = parse(text);
    EXPECT_TRUE(parsed.calls.empty()) << text;
    EXPECT_EQ(parsed.content, text);
    EXPECT_EQ(parsed.problems.size(), 1u) << text;
  }
}

TEST(ToolCalls, GoesOnAfterAMalformedCall) {
  const AssistantAnswer text = parse(
      "<tool_call>oops</tool_call><tool_call><function=nobody></function></tool_call>"
      "<tool_call><tool_call><function=now></function></tool_call>");
  ASSERT_EQ(text.calls.size(), 1u);
  EXPECT_EQ(text.calls[0].name, "now");
  EXPECT_EQ(text.problems.size(), 3u);
  EXPECT_EQ(text.content,
            "<tool_call>oops</tool_call><tool_call><function=nobody></function></tool_call><tool_call>");
}

TEST(ToolCalls, TrimsNamesAndAcceptsUndeclaredParameters) {
  EXPECT_EQ(shown(parse(
                "<tool_call><function= weather ><parameter= other >[1]</parameter></function></tool_call>")),
            R"(|weather{"other":[1]})");
}

TEST(ToolCalls, NamesWhatIsWrong) {
  const auto problem = [](std::string_view text) { return parse(text).problems.at(0); };
  EXPECT_NE(problem("<tool_call><function=nobody></function></tool_call>").find("\"nobody\""),
            std::string::npos);
  EXPECT_NE(problem("<tool_call><function=weather><parameter=days>1</parameter><parameter=days>2</parameter>"
                    "</function></tool_call>")
                .find("\"days\" is given twice"),
            std::string::npos);
  EXPECT_NE(problem("<tool_call><function=weather>x").find("byte 29"), std::string::npos)
      << problem("<tool_call><function=weather>x");
}

TEST(ToolCalls, TakesLinearTime) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "<tool_call><function=nobody><parameter=a>";
  text += "</tool_call>";
  const AssistantAnswer parsed = parse(text);  // quadratic work would take hours
  EXPECT_EQ(parsed.content.size(), text.size());
  std::string spaces = "<tool_call><function=weather><parameter=city>";
  for (int i = 0; i < 50'000; ++i) spaces += "</parameter>          ";
  EXPECT_EQ(parse(spaces).content, spaces);
}

TEST(ToolCalls, ToleratesToolsOfAnyForm) {
  const json::array odd =
      parse_json(
          R"([1, null, {}, {"function":[]}, {"function":{"name":5}}, {"function":{"name":"f","parameters":[]}}])",
          "odd")
          .value()
          .as_array();
  EXPECT_EQ(parse_answer("<tool_call><function=f><parameter=a>1</parameter></function></tool_call>",
                         ThinkBlock::kClosed, odd)
                .calls.size(),
            1u);
}

}  // namespace
}  // namespace mimo
