// Conversations, tools and forms of the answer in OpenAI's dialect.
#include <gmock/gmock.h>

#include <vector>

#include "api/api_fixture.h"

namespace mimo {
namespace {

using testing::HasSubstr;

constexpr ApiRoute kChat = ApiRoute::kChat;

std::string with_messages(std::string_view list, std::string_view more = {}) {
  return fmt::format(R"({{"messages":{}{}{}}})", list, more.empty() ? "" : ",", more);
}

std::string messages_of(std::string_view list) {
  return json::serialize(accepted(kChat, with_messages(list)).chat.messages);
}

constexpr const char* kTool =
    R"({"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}})";

// C84: everything that is no conversation is a 400 that names the field, on both kinds of answer.
TEST(ChatMessages, C84BrokenConversationsAreRefused) {
  struct Case {
    const char* messages;
    const char* param;
  };
  for (
      const Case& bad : std::vector<Case>{
          {"[]", "messages"},
          {"null", "messages"},
          {R"("x")", "messages"},
          {"5", "messages"},
          {"{}", "messages"},
          {"[{}]", "messages[0].role"},
          {"[5]", "messages[0]"},
          {"[null]", "messages[0]"},
          {R"([{"role":"user"}])", "messages[0].content"},
          {R"([{"role":null,"content":"x"}])", "messages[0].role"},
          {R"([{"role":"user","content":null}])", "messages[0].content"},
          {R"([{"role":"user","content":[]}])", "messages[0].content"},
          {R"([{"role":"user","content":5}])", "messages[0].content"},
          {R"([{"role":"user","content":{}}])", "messages[0].content"},
          {R"([{"role":"user","content":[{}]}])", "messages[0].content[0].type"},
          {R"([{"role":"user","content":["x"]}])", "messages[0].content[0]"},
          {R"([{"role":"user","content":[{"type":"foo"}]}])", "messages[0].content[0].type"},
          {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"},
          {R"([{"role":"user","content":[{"type":"text","text":5}]}])", "messages[0].content[0].text"},
          {R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}}]}])",
           "messages[0].content[1].type"},
          {R"([{"role":"system","content":null}])", "messages[0].content"},
          {R"([{"role":"robot","content":"x"}])", "messages[0].role"},
          {R"([{"role":"user","content":"x"},{"role":"user","content":"x","name":5}])", "messages[1].name"},
          {R"([{"role":"assistant","content":"x","reasoning_content":5}])", "messages[0].reasoning_content"},
          {R"([{"role":"assistant","content":"x","tool_calls":5}])", "messages[0].tool_calls"},
          {R"([{"role":"assistant","content":"x","tool_calls":[5]}])", "messages[0].tool_calls[0]"},
          {R"([{"role":"assistant","tool_calls":[{}]}])", "messages[0].tool_calls[0].function"},
          {R"([{"role":"assistant","tool_calls":[{"function":{}}]}])",
           "messages[0].tool_calls[0].function.name"},
          {R"([{"role":"assistant","tool_calls":[{"function":{"name":"a b"}}]}])",
           "messages[0].tool_calls[0].function.name"},
          {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":[]}}]}])",
           "messages[0].tool_calls[0].function.arguments"},
          {R"([{"role":"assistant","tool_calls":[{"type":"custom","function":{"name":"f"}}]}])",
           "messages[0].tool_calls[0].type"},
          {R"([{"role":"user","content":"x","tool_calls":[{"function":{"name":"f"}}]}])",
           "messages[0].tool_calls"},
          {R"([{"role":"user","content":"x","tools":[{}]}])", "messages[0].tools[0].type"},
          {R"([{"role":"assistant","function_call":"f"}])", "messages[0].function_call"},
      }) {
    for (const char* more : {"", R"("stream":true)"}) {
      const ApiError error = refused(kChat, with_messages(bad.messages, more));
      EXPECT_EQ(error.status, 400);
      EXPECT_EQ(error.param.value_or("none"), bad.param) << bad.messages;
    }
  }
  EXPECT_EQ(refused(kChat, "{}").param.value_or("none"), "messages");
}

// C04, C84: these have a meaning; the template decides whether it can render them.
TEST(ChatMessages, C04UnusualOrdersAreAccepted) {
  for (
      const char* list : {
          R"([{"role":"user","content":""}])",
          R"([{"role":"assistant","content":"x"}])",
          R"([{"role":"assistant","content":null}])",
          R"([{"role":"assistant"}])",
          R"([{"role":"user","content":"a"},{"role":"system","content":"b"},{"role":"user","content":"c"}])",
          R"([{"role":"system","content":"a"},{"role":"system","content":"b"},{"role":"user","content":"c"}])",
          R"([{"role":"tool","content":"r"}])",
          R"([{"role":"tool","content":null,"tool_call_id":"x"}])",
          R"([{"role":"tool","content":[]}])",
      }) {
    EXPECT_TRUE(parse_chat_request(with_messages(list), test_context())) << list;
  }
}

TEST(ChatMessages, OldAndNewSpellingsBecomeOne) {
  EXPECT_EQ(messages_of(R"([{"role":"developer","content":"a"}])"), R"([{"role":"system","content":"a"}])");
  EXPECT_EQ(messages_of(R"([{"role":"function","name":"f","content":"r"}])"),
            R"([{"role":"tool","name":"f","content":"r"}])");
  EXPECT_EQ(
      messages_of(R"([{"role":"assistant","content":"x","function_call":{"name":"f","arguments":"{}"}}])"),
      R"([{"role":"assistant","content":"x","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}]}])");
  EXPECT_EQ(
      messages_of(R"([{"role":"assistant","content":[{"type":"refusal","refusal":"no"}],"tool_calls":[]}])"),
      R"([{"role":"assistant","content":[{"type":"text","text":"no"}]}])");
  EXPECT_EQ(messages_of(R"([{"role":"user","content":[{"type":"text","text":"a","cache_control":{}}]}])"),
            R"([{"role":"user","content":[{"type":"text","text":"a"}]}])");
}

// C05, C06: histories come through whole; text/chat_messages has the rules for what they hold.
TEST(ChatMessages, C06ReasoningOfTheHistoryIsKept) {
  for (const char* member : {R"("reasoning_content":"r")", R"("reasoning_content":null)",
                             R"("reasoning_content":"")", R"("reasoning":"r")"}) {
    const std::string list = fmt::format(
        R"([{{"role":"assistant","content":"x",{},"tool_calls":[{{"id":"1","function":{{"name":"f","arguments":"{{\"a\":3,\"b"}}}}]}}])",
        member);
    EXPECT_EQ(messages_of(list), list);
  }
  EXPECT_TRUE(parse_chat_request(
      with_messages(
          R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":3}}},{"function":{"name":"f","arguments":""}}]}])"),
      test_context()));
}

TEST(ChatMessages, ContinuingTheLastMessage) {
  const char* list = R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])";
  const ApiRequest request = accepted(kChat, with_messages(list, R"("continue_final_message":true)"));
  EXPECT_TRUE(request.chat.continue_final_message);
  EXPECT_FALSE(request.chat.add_generation_prompt);
  EXPECT_FALSE(accepted(kChat, with_messages(list)).chat.continue_final_message);
  EXPECT_FALSE(
      accepted(kChat, with_messages(list, R"("add_generation_prompt":false)")).chat.add_generation_prompt);
  for (const std::string& body :
       {with_messages(list, R"("continue_final_message":true,"add_generation_prompt":true)"),
        chat_body(R"("continue_final_message":true)"),
        with_messages(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}])",
                      R"("continue_final_message":true)")}) {
    EXPECT_EQ(refused(kChat, body).param.value_or("none"), "continue_final_message") << body;
  }
}

// C03: any schema is a schema; it is the template's to render.
TEST(ChatTools, C03UnusualSchemasAreAccepted) {
  const ApiRequest request = chat(
      R"("tools":[
        {"type":"function","function":{"name":"a","parameters":{"type":"object","properties":{"x":{"type":["string","null"]}}}}},
        {"type":"function","function":{"name":"b.c-d/e","parameters":{"properties":{"x":{"description":"no type"}}}}},
        {"type":"function","function":{"name":"c","parameters":{"anyOf":[{"$ref":"#/$defs/x"}]},"description":null}},
        {"type":"function","function":{"name":"d","parameters":null}}])");
  EXPECT_EQ(request.chat.tools.size(), 4u);
  EXPECT_EQ(parser_tools(request).size(), 4u);
  EXPECT_TRUE(request.constraint.empty());
}

TEST(ChatTools, MalformedToolsAreRefused) {
  struct Case {
    const char* tools;
    const char* param;
  };
  for (const Case& bad : std::vector<Case>{
           {"{}", "tools"},
           {R"("x")", "tools"},
           {"[5]", "tools[0]"},
           {"[{}]", "tools[0].type"},
           {R"([{"type":"retrieval"}])", "tools[0].type"},
           {R"([{"type":"function"}])", "tools[0].function"},
           {R"([{"type":"function","function":[]}])", "tools[0].function"},
           {R"([{"type":"function","function":{}}])", "tools[0].function.name"},
           {R"([{"type":"function","function":{"name":""}}])", "tools[0].function.name"},
           {R"([{"type":"function","function":{"name":"a>b"}}])", "tools[0].function.name"},
           {R"([{"type":"function","function":{"name":"a\nb"}}])", "tools[0].function.name"},
           {R"([{"type":"function","function":{"name":5}}])", "tools[0].function.name"},
           {R"([{"type":"function","function":{"name":"a","description":5}}])",
            "tools[0].function.description"},
           {R"([{"type":"function","function":{"name":"a","parameters":"x"}}])",
            "tools[0].function.parameters"},
           {R"([{"type":"function","function":{"name":"a","strict":"x"}}])", "tools[0].function.strict"},
           {R"([{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"a"}}])",
            "tools[1].function.name"},
       }) {
    EXPECT_EQ(refused(kChat, chat_body(fmt::format("\"tools\":{}", bad.tools))).param.value_or("none"),
              bad.param)
        << bad.tools;
  }
  EXPECT_EQ(chat(R"("tools":null)").chat.tools.size(), 0u);
  EXPECT_EQ(chat(R"("tools":[])").chat.tools.size(), 0u);
}

TEST(ChatTools, Choice) {
  const std::string tools =
      fmt::format(R"("tools":[{},{{"type":"function","function":{{"name":"g"}}}}])", kTool);
  const auto choose = [&](const char* choice) { return chat(tools + R"(,"tool_choice":)" + choice); };
  EXPECT_EQ(choose("null").tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(choose("\"auto\"").tool_choice, ToolChoice::kAuto);
  EXPECT_TRUE(choose("\"auto\"").constraint.empty());
  const ApiRequest none = choose("\"none\"");
  EXPECT_EQ(none.tool_choice, ToolChoice::kNone);
  EXPECT_TRUE(parser_tools(none).empty());
  EXPECT_EQ(none.chat.tools.size(), 2u);  // still part of the prompt
  const ApiRequest required = choose("\"required\"");
  EXPECT_EQ(required.constraint.calls, CallForm::kForced);
  EXPECT_EQ(required.constraint.tools.size(), 2u);
  const ApiRequest named = choose(R"({"type":"function","function":{"name":"g"}})");
  EXPECT_EQ(named.tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(named.tool_name, "g");
  ASSERT_EQ(named.constraint.tools.size(), 1u);
  EXPECT_EQ(named.constraint.tools[0].at("function").at("name"), "g");

  for (const char* choice :
       {"\"any\"", "5", "[]", "{}", R"({"type":"function"})", R"({"type":"function","function":{}})",
        R"({"type":"function","function":{"name":"h"}})", R"({"type":"function","function":{"name":5}})",
        R"({"type":"allowed_tools","function":{"name":"g"}})"}) {
    EXPECT_THAT(refused(kChat, chat_body(tools + R"(,"tool_choice":)" + choice)).param.value_or("none"),
                testing::StartsWith("tool_choice"))
        << choice;
  }
  EXPECT_EQ(chat(R"("tool_choice":"auto")").tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(chat(R"("tool_choice":"none")").tool_choice, ToolChoice::kNone);
  for (const char* choice : {"\"required\"", R"({"type":"function","function":{"name":"f"}})"}) {
    EXPECT_EQ(refused(kChat, chat_body(fmt::format("\"tool_choice\":{}", choice))).status, 400);
  }
}

// C12
TEST(ChatTools, C12ParallelCallsCanBeSwitchedOff) {
  EXPECT_TRUE(chat(fmt::format(R"("tools":[{}])", kTool)).parallel_tool_calls);
  const ApiRequest off = chat(fmt::format(R"("tools":[{}],"parallel_tool_calls":false)", kTool));
  EXPECT_FALSE(off.parallel_tool_calls);
  EXPECT_FALSE(off.constraint.parallel_calls);
  EXPECT_EQ(refused(kChat, chat_body(R"("parallel_tool_calls":"no")")).param.value_or("none"),
            "parallel_tool_calls");
}

TEST(ChatTools, LegacyFunctions) {
  const ApiRequest request = chat(R"("functions":[{"name":"f"},{"name":"g"}],"function_call":{"name":"g"})");
  EXPECT_TRUE(request.legacy_functions);
  EXPECT_FALSE(request.parallel_tool_calls);
  EXPECT_EQ(request.tool_name, "g");
  EXPECT_EQ(json::serialize(request.chat.tools[0]), R"({"type":"function","function":{"name":"f"}})");
  EXPECT_EQ(chat(R"("functions":[{"name":"f"}],"function_call":"none")").tool_choice, ToolChoice::kNone);
  for (const char* members :
       {R"("functions":[{"name":"f"}],"tools":[])",
        R"("functions":[{"name":"f"}],"function_call":"required")",
        R"("functions":[{"name":"f"}],"function_call":{"name":"x"})", R"("functions":[{}])",
        R"("functions":5)", R"("function_call":"auto","tool_choice":"auto")"}) {
    refused(kChat, chat_body(members));
  }
}

TEST(ChatTools, MessagesMayDeclareTools) {
  const ApiRequest request = accepted(
      kChat, with_messages(fmt::format(R"([{{"role":"system","content":"s","tools":[{}]}}])", kTool)));
  EXPECT_TRUE(request.chat.tools.empty());
  EXPECT_EQ(parser_tools(request).size(), 1u);
}

TEST(AnswerForms, EachSpelling) {
  struct Case {
    const char* members;
    ContentForm form;
    bool strict;
    const char* text;  // schema, text or first choice
  };
  for (
      const Case& good : std::vector<Case>{
          {R"("response_format":{"type":"text"})", ContentForm::kFree, false, "null"},
          {R"("response_format":null)", ContentForm::kFree, false, "null"},
          {R"("response_format":{"type":"json_object"})", ContentForm::kJsonObject, false, "null"},
          {R"("response_format":{"type":"json_object","schema":{"type":"object"}})", ContentForm::kJsonSchema,
           false, R"({"type":"object"})"},
          {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"a":1},"strict":true}})",
           ContentForm::kJsonSchema, true, R"({"a":1})"},
          {R"("structured_outputs":{"json":{"a":1}})", ContentForm::kJsonSchema, false, R"({"a":1})"},
          {R"("structured_outputs":{"json_object":true})", ContentForm::kJsonObject, false, "null"},
          {R"("structured_outputs":{"regex":"a+"})", ContentForm::kRegex, false, "a+"},
          {R"("structured_outputs":{"choice":["x","y"]})", ContentForm::kChoice, false, "x"},
          {R"("structured_outputs":{"grammar":"root ::= x"})", ContentForm::kEbnf, false, "root ::= x"},
          {R"("structured_outputs":{"regex":null})", ContentForm::kFree, false, "null"},
          {R"("guided_json":"{\"a\":1}")", ContentForm::kJsonSchema, false, R"({"a":1})"},
          {R"("guided_regex":"a+")", ContentForm::kRegex, false, "a+"},
          {R"("guided_choice":["x"])", ContentForm::kChoice, false, "x"},
          {R"("guided_grammar":"root ::= x")", ContentForm::kEbnf, false, "root ::= x"},
          {R"("json_schema":"{}")", ContentForm::kJsonSchema, false, "{}"},
          {R"("json_schema":{"a":1})", ContentForm::kJsonSchema, false, R"({"a":1})"},
          {R"("regex":"a+")", ContentForm::kRegex, false, "a+"},
          {R"("ebnf":"root ::= x")", ContentForm::kEbnf, false, "root ::= x"},
      }) {
    for (const ApiRoute route : {kChat, ApiRoute::kCompletion}) {
      const ConstraintSpec spec = accepted(route, body_for(route, good.members)).constraint;
      EXPECT_EQ(spec.content, good.form) << good.members;
      EXPECT_EQ(spec.strict, good.strict) << good.members;
      const std::string text = !spec.text.empty()      ? spec.text
                               : !spec.choices.empty() ? spec.choices.front()
                                                       : json::serialize(spec.schema);
      EXPECT_EQ(text, good.text) << good.members;
    }
  }
}

TEST(AnswerForms, BrokenOnesAreRefused) {
  struct Case {
    const char* members;
    const char* param;
  };
  for (const Case& bad : std::vector<Case>{
           {R"("response_format":"json")", "response_format"},
           {R"("response_format":{})", "response_format.type"},
           {R"("response_format":{"type":"xml"})", "response_format.type"},
           {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
           {R"("response_format":{"type":"json_schema","json_schema":{}})",
            "response_format.json_schema.schema"},
           {R"("response_format":{"type":"json_schema","json_schema":{"schema":5}})",
            "response_format.json_schema.schema"},
           {R"("structured_outputs":{"xml":"x"})", "structured_outputs.xml"},
           {R"("structured_outputs":{"structural_tag":"x"})", "structured_outputs.structural_tag"},
           {R"("structured_outputs":{"json":{},"regex":"a"})", "structured_outputs.regex"},
           {R"("structured_outputs":{"disable_any_whitespace":true})",
            "structured_outputs.disable_any_whitespace"},
           {R"("guided_json":"{")", "guided_json"},
           {R"("guided_json":"[]")", "guided_json"},
           {R"("guided_regex":"")", "guided_regex"},
           {R"("guided_choice":[])", "guided_choice"},
           {R"("guided_choice":["a",5])", "guided_choice[1]"},
           {R"("guided_choice":["a",""])", "guided_choice[1]"},
           {R"("guided_json":{},"regex":"a")", "regex"},
           {R"("response_format":{"type":"json_object"},"ebnf":"x")", "ebnf"},
       }) {
    EXPECT_EQ(refused(kChat, chat_body(bad.members)).param.value_or("none"), bad.param) << bad.members;
  }
  const std::string huge(2u << 20, 'a');
  EXPECT_EQ(refused(kChat, chat_body(fmt::format(R"("regex":"{}")", huge))).param.value_or("none"), "regex");
  EXPECT_EQ(refused(kChat, chat_body(fmt::format(R"("guided_json":{{"title":"{}"}})", huge)))
                .param.value_or("none"),
            "guided_json");
}

TEST(AnswerForms, WithTools) {
  const std::string tools = fmt::format(R"("tools":[{}])", kTool);
  const std::string format = R"("response_format":{"type":"json_object"})";
  const ConstraintSpec both = chat(tools + "," + format).constraint;
  EXPECT_EQ(both.content, ContentForm::kJsonObject);
  EXPECT_EQ(both.calls, CallForm::kFree);
  EXPECT_EQ(both.tools.size(), 1u);
  EXPECT_TRUE(chat(tools + "," + format + R"(,"tool_choice":"none")").constraint.tools.empty());
  EXPECT_EQ(
      refused(kChat, chat_body(tools + "," + format + R"(,"tool_choice":"required")")).param.value_or("none"),
      "tool_choice");

  const ConstraintSpec strict = chat(R"("tools":[{"type":"function","function":{"name":"f","strict":true}},
                       {"type":"function","function":{"name":"g"}}])")
                                    .constraint;
  EXPECT_EQ(strict.calls, CallForm::kStrict);
  EXPECT_EQ(strict.tools.size(), 2u);
}

TEST(Tokenize, Forms) {
  const auto parse = [](const char* body) { return parse_tokenize_request(body, test_context()); };
  EXPECT_EQ(parse(R"({"model":"mimo","prompt":"abc","add_special_tokens":true})")->text, "abc");
  EXPECT_EQ(parse(R"({"content":"abc","return_token_strs":true})")->text, "abc");
  EXPECT_EQ(parse(R"({"prompt":""})")->text, "");
  const auto chat = parse(R"({"messages":[{"role":"user","content":"Hi"}],"add_generation_prompt":false,
                "chat_template_kwargs":{"enable_thinking":false}})");
  ASSERT_TRUE(chat);
  EXPECT_FALSE(chat->text);
  EXPECT_FALSE(chat->chat.add_generation_prompt);
  EXPECT_EQ(chat->chat.enable_thinking, false);
  for (const char* body :
       {"{}", "[]", R"({"prompt":5})", R"({"prompt":"a","content":"b"})", R"({"prompt":null})",
        R"({"prompt":"a","messages":[{"role":"user","content":"Hi"}]})", R"({"messages":[]})",
        R"({"messages":null})", R"({"prompt":"a","model":"other"})",
        R"({"prompt":"a","return_token_strs":1})"}) {
    const auto result = parse(body);
    ASSERT_FALSE(result) << body;
    check_error(result.error());
  }
  EXPECT_EQ(parse("{}").error().param, "prompt");
}

// C82
TEST(Detokenize, C82IdsAreChecked) {
  const auto parse = [](const char* body) { return parse_detokenize_request(body, test_context()); };
  EXPECT_EQ(parse(R"({"tokens":[0,999]})")->tokens, (TokenIds{0, 999}));
  EXPECT_TRUE(parse(R"({"tokens":[]})")->tokens.empty());
  for (const char* body :
       {"{}", R"({"tokens":5})", R"({"tokens":["1"]})", R"({"tokens":[1000]})", R"({"tokens":[-1]})",
        R"({"tokens":[2147483648]})", R"({"tokens":[1.5]})", R"({"tokens":[1],"model":"other"})"}) {
    const auto result = parse(body);
    ASSERT_FALSE(result) << body;
    check_error(result.error());
  }
}

}  // namespace
}  // namespace mimo
