// The Anthropic form of a conversation, and what becomes of it.
#include <gmock/gmock.h>

#include "api/api_fixture.h"

namespace mimo {
namespace {

using testing::HasSubstr;

constexpr ApiRoute kMessages = ApiRoute::kMessages;

std::string body_of(std::string_view list, std::string_view more = {}) {
  return fmt::format(R"({{"max_tokens":16,"messages":{}{}{}}})", list, more.empty() ? "" : ",", more);
}

std::string mapped(std::string_view list, std::string_view more = {}) {
  return json::serialize(accepted(kMessages, body_of(list, more)).chat.messages);
}

TEST(MessagesRequest, BlocksBecomeMessages) {
  EXPECT_EQ(mapped(R"([{"role":"user","content":"Hi"}])"),
            R"([{"role":"user","content":[{"type":"text","text":"Hi"}]}])");
  EXPECT_EQ(
      mapped(R"([{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},
                                                 {"type":"text","text":"b"}]}])"),
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])");
  // Thinking and a call of the assistant, then results between texts of the user, each in its place.
  EXPECT_EQ(mapped(R"([{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},
                   {"type":"redacted_thinking","data":"x"},{"type":"text","text":"a"},
                   {"type":"tool_use","id":"1","name":"f","input":{"k":[1]}}]},
                 {"role":"user","content":[{"type":"text","text":"before"},
                   {"type":"tool_result","tool_use_id":"1","content":"r"},
                   {"type":"tool_result","tool_use_id":"2","content":[{"type":"text","text":"r2"}],"is_error":true},
                   {"type":"tool_result","tool_use_id":"3"},
                   {"type":"text","text":"after"}]}])"),
            R"([{"role":"assistant","content":[{"type":"text","text":"a"}],"reasoning_content":"t",)"
            R"("tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"k":[1]}}}]},)"
            R"({"role":"user","content":[{"type":"text","text":"before"}]},)"
            R"({"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"r"}]},)"
            R"({"role":"tool","tool_call_id":"2","is_error":true,"content":[{"type":"text","text":"r2"}]},)"
            R"({"role":"tool","tool_call_id":"3","content":[]},)"
            R"({"role":"user","content":[{"type":"text","text":"after"}]}])");
  EXPECT_EQ(
      mapped(
          R"([{"role":"user","content":[{"type":"document","source":{"type":"text","media_type":"text/plain","data":"d"}},
                 {"type":"document","source":{"type":"content","content":[{"type":"text","text":"e"}]}}]}])"),
      R"([{"role":"user","content":[{"type":"text","text":"d"},{"type":"text","text":"e"}]}])");
}

TEST(MessagesRequest, System) {
  const char* hi = R"([{"role":"user","content":"Hi"}])";
  EXPECT_THAT(mapped(hi, R"("system":"S")"),
              HasSubstr(R"({"role":"system","content":[{"type":"text","text":"S"}]})"));
  EXPECT_THAT(mapped(hi, R"("system":[{"type":"text","text":"S"},{"type":"text","text":"T"}])"),
              HasSubstr(R"("content":[{"type":"text","text":"S"},{"type":"text","text":"T"}])"));
  for (const char* none : {R"("system":null)", R"("system":"")", R"("system":[])"}) {
    EXPECT_THAT(mapped(hi, none), testing::Not(HasSubstr("system")));
  }
}

// C40: a header that changes on every request does not reach the prompt.
TEST(MessagesRequest, C40BillingHeaderIsRemoved) {
  const char* hi = R"([{"role":"user","content":"Hi"}])";
  const auto with_hash = [&](const char* hash) {
    return mapped(
        hi, fmt::format(R"("system":[{{"type":"text","text":"x-anthropic-billing-header: v=1; cch={};"}},
                                               {{"type":"text","text":"You are C."}}])",
                        hash));
  };
  EXPECT_EQ(with_hash("1a2b"), with_hash("3c4d"));
  EXPECT_THAT(with_hash("1a2b"), testing::Not(HasSubstr("billing")));
  EXPECT_THAT(with_hash("1a2b"), HasSubstr("You are C."));
  EXPECT_THAT(mapped(hi, R"("system":"x-anthropic-billing-header: cch=1;\nYou are C.")"),
              HasSubstr(R"("text":"You are C."})"));
  EXPECT_THAT(mapped(hi, R"("system":"x-anthropic-billing-header: cch=1;")"),
              testing::Not(HasSubstr("system")));
  // Only at the very start, and only if asked.
  EXPECT_THAT(
      mapped(
          hi,
          R"("system":[{"type":"text","text":"A"},{"type":"text","text":"x-anthropic-billing-header: 1"}])"),
      HasSubstr("billing"));
  ApiContext keep = test_context();
  keep.keep_billing_header = true;
  const ApiRequest kept =
      accepted(kMessages, body_of(hi, R"("system":"x-anthropic-billing-header: cch=1;\nYou")"), keep);
  EXPECT_THAT(json::serialize(kept.chat.messages), HasSubstr("billing"));
}

TEST(MessagesRequest, BrokenConversationsAreRefused) {
  struct Case {
    const char* messages;
    const char* param;
  };
  for (
      const Case& bad : std::vector<Case>{
          {"[]", "messages"},
          {"null", "messages"},
          {R"("x")", "messages"},
          {"[5]", "messages[0]"},
          {"[{}]", "messages[0].role"},
          {R"([{"role":"tool","content":"x"}])", "messages[0].role"},
          {R"([{"role":"user"}])", "messages[0].content"},
          {R"([{"role":"user","content":null}])", "messages[0].content"},
          {R"([{"role":"user","content":[]}])", "messages[0].content"},
          {R"([{"role":"user","content":7}])", "messages[0].content"},
          {R"([{"role":"user","content":[7]}])", "messages[0].content[0]"},
          {R"([{"role":"user","content":[{}]}])", "messages[0].content[0].type"},
          {R"([{"role":"user","content":[{"type":"foo"}]}])", "messages[0].content[0].type"},
          {R"([{"role":"user","content":[{"type":"image","source":{}}]}])", "messages[0].content[0].type"},
          {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"},
          {R"([{"role":"user","content":[{"type":"document"}]}])", "messages[0].content[0].source"},
          {R"([{"role":"user","content":[{"type":"document","source":{"type":"base64","data":"x"}}]}])",
           "messages[0].content[0].source.type"},
          {R"([{"role":"user","content":[{"type":"tool_result"}]}])", "messages[0].content[0].tool_use_id"},
          {R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":5}]}])",
           "messages[0].content[0].content"},
          {R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"image"}]}]}])",
           "messages[0].content[0].content[0].type"},
          {R"([{"role":"user","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]}])",
           "messages[0].content[0].type"},
          {R"([{"role":"assistant","content":[{"type":"thinking"}]}])", "messages[0].content[0].thinking"},
          {R"([{"role":"assistant","content":[{"type":"tool_use","id":"1","input":{}}]}])",
           "messages[0].content[0].name"},
          {R"([{"role":"assistant","content":[{"type":"tool_use","name":"f","input":{}}]}])",
           "messages[0].content[0].id"},
          {R"([{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":"x"}]}])",
           "messages[0].content[0].input"},
          {R"([{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]}])",
           "messages"},
      }) {
    EXPECT_EQ(refused(kMessages, body_of(bad.messages)).param.value_or("none"), bad.param) << bad.messages;
  }
  for (const char* system : {"5", "{}", "[5]", R"([{"type":"image"}])", R"([{"type":"text","text":5}])"}) {
    EXPECT_THAT(
        refused(kMessages, messages_body(fmt::format("\"system\":{}", system))).param.value_or("none"),
        testing::StartsWith("system"));
  }
}

TEST(MessagesRequest, PrefillContinuesTheTurn) {
  const ApiRequest request =
      accepted(kMessages, body_of(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])"));
  EXPECT_TRUE(request.chat.continue_final_message);
  EXPECT_FALSE(request.chat.add_generation_prompt);
  EXPECT_FALSE(messages("").chat.continue_final_message);
}

TEST(MessagesRequest, Tools) {
  const ApiRequest request = messages(R"("tools":[
      {"name":"f","description":"d","input_schema":{"type":"object"},"cache_control":{}},
      {"type":"custom","name":"g","input_schema":{},"strict":true},
      {"type":"web_search_20250305","name":"web_search","max_uses":5}])");
  ASSERT_EQ(request.chat.tools.size(), 2u);
  EXPECT_EQ(
      json::serialize(request.chat.tools[0]),
      R"({"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}})");
  EXPECT_EQ(request.constraint.calls, CallForm::kStrict);
  ASSERT_EQ(request.warnings.size(), 1u);
  EXPECT_THAT(request.warnings[0], HasSubstr("web_search_20250305"));

  for (const auto& [tools, param] : std::vector<std::pair<const char*, const char*>>{
           {"5", "tools"},
           {"[5]", "tools[0]"},
           {"[{}]", "tools[0].input_schema"},
           {R"([{"name":"f"}])", "tools[0].input_schema"},
           {R"([{"input_schema":{}}])", "tools[0].name"},
           {R"([{"name":"a b","input_schema":{}}])", "tools[0].name"},
           {R"([{"name":"f","input_schema":5}])", "tools[0].input_schema"},
           {R"([{"name":"f","input_schema":{}},{"name":"f","input_schema":{}}])", "tools[1].name"},
       }) {
    EXPECT_EQ(refused(kMessages, messages_body(fmt::format("\"tools\":{}", tools))).param.value_or("none"),
              param)
        << tools;
  }
}

TEST(MessagesRequest, ToolChoice) {
  const std::string tools =
      R"("tools":[{"name":"f","input_schema":{}},{"name":"g","input_schema":{}}],"tool_choice":)";
  const auto choose = [&](const char* choice) { return messages(tools + choice); };
  EXPECT_EQ(choose(R"({"type":"auto"})").tool_choice, ToolChoice::kAuto);
  EXPECT_FALSE(choose(R"({"type":"auto","disable_parallel_tool_use":true})").parallel_tool_calls);
  EXPECT_EQ(choose(R"({"type":"none"})").tool_choice, ToolChoice::kNone);
  EXPECT_EQ(choose(R"({"type":"any"})").constraint.tools.size(), 2u);
  const ApiRequest named = choose(R"({"type":"tool","name":"g"})");
  EXPECT_EQ(named.tool_name, "g");
  EXPECT_EQ(named.constraint.tools.size(), 1u);
  for (const char* choice :
       {"\"auto\"", "{}", R"({"type":"some"})", R"({"type":"tool"})", R"({"type":"tool","name":"h"})"}) {
    refused(kMessages, messages_body(tools + choice));
  }
  refused(kMessages, messages_body(R"("tool_choice":{"type":"any"})"));
}

// C102: the thinking parameter is the switch of the template.
TEST(MessagesRequest, C102Thinking) {
  const ApiRequest on = messages(R"("thinking":{"type":"enabled","budget_tokens":1024})");
  EXPECT_EQ(on.chat.enable_thinking, true);
  EXPECT_EQ(on.thinking_budget, 1024);
  EXPECT_EQ(messages(R"("thinking":{"type":"disabled"})").chat.enable_thinking, false);
  EXPECT_EQ(messages(R"("thinking":{"type":"adaptive"})").chat.enable_thinking, true);
  EXPECT_EQ(messages("").chat.enable_thinking, std::nullopt);
  EXPECT_EQ(messages(R"("output_config":{"effort":"low"})").thinking_budget, 512);
  refused(kMessages, messages_body(R"("output_config":{"effort":"lots"})"));
}

TEST(MessagesRequest, OutputFormat) {
  for (const char* members : {R"("output_format":{"type":"json_schema","schema":{"a":1}})",
                              R"("output_config":{"format":{"type":"json_schema","schema":{"a":1}}})"}) {
    EXPECT_EQ(json::serialize(messages(members).constraint.schema), R"({"a":1})");
  }
  for (
      const char* members :
      {R"("output_format":{"type":"xml"})", R"("output_format":{"type":"json_schema"})",
       R"("output_format":5)",
       R"("output_format":{"type":"json_schema","schema":{}},"output_config":{"format":{"type":"json_schema","schema":{}}})"}) {
    refused(kMessages, messages_body(members));
  }
}

TEST(CountTokens, UsesTheSameConversation) {
  const char* body = R"({"system":"S","messages":[{"role":"user","content":"Hi"}],
                         "tools":[{"name":"f","input_schema":{}}],"thinking":{"type":"disabled"}})";
  const auto count = parse_count_tokens_request(body, test_context());
  ASSERT_TRUE(count) << count.error().message;
  const ApiRequest request = accepted(kMessages, std::string(body).insert(1, R"("max_tokens":1,)"));
  EXPECT_EQ(json::serialize(count->chat.messages), json::serialize(request.chat.messages));
  EXPECT_EQ(count->chat.tools, request.chat.tools);
  EXPECT_EQ(count->chat.enable_thinking, false);
  for (const char* bad :
       {"{}", "[]", R"({"messages":[]})", R"({"messages":[{"role":"user","content":"x"}],"model":"y"})"}) {
    const auto result = parse_count_tokens_request(bad, test_context());
    ASSERT_FALSE(result) << bad;
    check_error(result.error());
  }
}

}  // namespace
}  // namespace mimo
