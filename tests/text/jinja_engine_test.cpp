// The template engine: language rules that templates rely on, written out. The bulk of the behaviour is
// compared with Python's jinja2 in jinja_golden_test.cpp.
#include <gtest/gtest.h>

#include "text/jinja/template.h"

namespace mimo::jinja {
namespace {

const json::object& context() {
  static const json::value value = parse_json(R"({
      "s": "Hello", "l": [3, 1, 2], "d": {"b": 1, "a": 2, "items": "key"}, "u": "né🙂", "big": 18446744073709551615,
      "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]})",
                                              "context")
                                       .value();
  return value.get_object();
}

Result<Rendered> try_render(std::string_view source, const Limits& limits = {}) {
  const auto parsed = Template::parse(source, "t", limits);
  if (!parsed) return tl::unexpected<Error>(parsed.error());
  return parsed->render({.variables = &context(), .now = 86400 * 365});
}

std::string render(std::string_view source) {
  const auto rendered = try_render(source);
  return rendered ? rendered->text : "error: " + rendered.error().message;
}

TEST(JinjaSpace, BlockTagsTakeTheirLine) {
  EXPECT_EQ(render("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(render("a  {% if true %} b {% endif %}\n c"), "a   b  c");
  EXPECT_EQ(render("a\n  {{ 1 }}\n  b"), "a\n  1\n  b");
  EXPECT_EQ(render("a \n {{- 1 -}} \n b"), "a1b");
  EXPECT_EQ(render("a\n  {%+ if true %}b{% endif +%}\nc"), "a\n  b\nc");
  EXPECT_EQ(render("a\n {# c #}\nb{#- x -#} c"), "a\nbc");
  EXPECT_EQ(render("{% raw %}{{ x }}{% endraw %}\r\n\r\n\r\n"), "{{ x }}\n");
}

TEST(JinjaLoop, VariablesAndControl) {
  EXPECT_EQ(render("{% for x in l %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
                   "{{ loop.previtem }}/{{ loop.nextitem }} {% endfor %}"),
            "1TrueFalse3/1 2FalseFalse33/2 3FalseTrue31/ ");
  EXPECT_EQ(render("{% for x in l if x > 1 %}{{ x }}{{ loop.length }},{% else %}none{% endfor %}"), "32,22,");
  EXPECT_EQ(render("{% for x in [] %}{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(render("{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}"), "32");
  EXPECT_EQ(render("{% for x in l %}{{ x }}{% if x == 1 %}{% break %}{% endif %}{% endfor %}"), "31");
  EXPECT_EQ(render("{% for k, (a, b) in [(1, (2, 3))] %}{{ a + b + k }}{% endfor %}"), "6");
  EXPECT_EQ(render("{% set x = 1 %}{% for y in l %}{% set x = y %}{% endfor %}{{ x }}"), "1");
  EXPECT_EQ(
      render("{% set n = namespace(x=0) %}{% for y in l %}{% set n.x = n.x + y %}{% endfor %}{{ n.x }}"),
      "6");
  // The filter of a loop is asked again after each pass.
  EXPECT_EQ(render("{% set n = namespace(go=true) %}{% for y in l if n.go %}{{ y }}{% set n.go = false %}{% "
                   "endfor %}"),
            "3");
}

TEST(JinjaMacro, ArgumentsAndScope) {
  EXPECT_EQ(render("{% macro m(a, b=a ~ '!') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(b=2, a=3) }}"),
            "[11!][32]");
  EXPECT_EQ(render("{% macro m() %}{{ s }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, x=2) }}"),
            "Hello(1,){'x': 2}");
  EXPECT_EQ(render("{% macro m() %}<{{ caller('x') }}>{% endmacro %}{% call(y) m() %}{{ y }}{% endcall %}"),
            "<x>");
  EXPECT_EQ(render("{% macro m(n) %}{{ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}"),
            "3210");
  EXPECT_EQ(render("{% macro m() %}{{ q }}{% endmacro %}{% set q = 1 %}{{ m() }}"), "1");
  // A macro that left its loop in a namespace still sees that loop's variables.
  EXPECT_EQ(render("{% set n = namespace() %}{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}"
                   "{% if loop.first %}{% set n.m = m %}{% endif %}{% endfor %}{{ n.m() }}"),
            "3");
}

TEST(JinjaValue, PythonForms) {
  EXPECT_EQ(render("{{ [1, 1.0, 'a', \"it's\", none, true, {'k': (1,)}, big] }}"),
            "[1, 1.0, 'a', \"it's\", None, True, {'k': (1,)}, 18446744073709551615]");
  EXPECT_EQ(render("{{ 1e16 }} {{ 0.1 }} {{ 1e-5 }} {{ 100.0 }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 "
                   "** 100 }}"),
            "1e+16 0.1 1e-05 100.0 -4 2 3.5 1267650600228229401496703205376");
  EXPECT_EQ(render("{{ u[1:] }} {{ u|length }} {{ u[::-1] }} {{ l[-2:] }} {{ l[99] is defined }}"),
            "é🙂 3 🙂én [1, 2] False");
  EXPECT_EQ(render("{{ 1 < 2 < 3 }}{{ 0 or 'x' }}{{ 1 and [] }}{{ not 0 }}{{ 'a' if false }}|"),
            "Truex[]True|");
  EXPECT_EQ(render("{{ d.items is defined }}{{ d['items'] }}{{ d.get('zz') }}{{ d.items()|list|length }}"),
            "TruekeyNone3");
  EXPECT_EQ(render("{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join }}"),
            "U");
  EXPECT_EQ(render("{{ 'yes' if l|select('gt', 9) else 'no' }}"),
            "yes");  // an iterator is true, even without items
  EXPECT_EQ(render("{{ strftime_now('%Y') }}"), "1971");
}

TEST(JinjaJson, AsPythonWritesIt) {
  EXPECT_EQ(render("{{ {'a': 1.0, 'é': [none, true, 1e22, '\\u0001/<>\"']}|tojson }}"),
            "{\"a\": 1.0, \"é\": [null, true, 1e+22, \"\\u0001/<>\\\"\"]}");
  EXPECT_EQ(render("{{ {'b': [], 'a': {1: 'é🙂'}}|tojson(indent=2, sort_keys=true, ensure_ascii=true) }}"),
            "{\n  \"a\": {\n    \"1\": \"\\u00e9\\ud83d\\ude42\"\n  },\n  \"b\": []\n}");
  EXPECT_EQ(render("{{ l|tojson(separators=(',', ':')) }}"), "[3,1,2]");
}

struct Refusal {
  const char* source;
  ErrorCode code;
  const char* message;
};

TEST(JinjaRefusal, ByNameAndLineWhenParsed) {
  const Refusal refusals[] = {
      {"\n{{ x|pprint }}", ErrorCode::kUnsupported, "t: line 2: there is no filter 'pprint'"},
      {"{{ x is weird }}", ErrorCode::kUnsupported, "t: line 1: there is no test 'weird'"},
      {"a\n\n{% include 'x' %}", ErrorCode::kUnsupported, "t: line 3: there is no tag 'include'"},
      {"{% if false %}\n{{ lipsum() }}{% endif %}", ErrorCode::kUnsupported,
       "t: line 2: there is no function 'lipsum'"},
      {"{% for x in y recursive %}{% endfor %}", ErrorCode::kUnsupported,
       "t: line 1: 'for ... recursive' is not supported"},
      {"{% if x %}\n", ErrorCode::kInvalidArgument, "t: line 1: the tag 'if' has no 'endif'"},
      {"{{ 'abc", ErrorCode::kInvalidArgument, "t: line 1: a string has no end"},
      {"{{ (1] }}", ErrorCode::kInvalidArgument, "t: line 1: unexpected ']', expected ')'"},
      {"{% break %}", ErrorCode::kInvalidArgument, "t: line 1: 'break' outside a for loop"},
      {"\xff", ErrorCode::kCorrupt, "t: the template is not valid UTF-8"},
  };
  for (const Refusal& refusal : refusals) {
    const auto parsed = Template::parse(refusal.source, "t");
    ASSERT_FALSE(parsed.has_value()) << refusal.source;
    EXPECT_EQ(parsed.error().message, refusal.message);
    EXPECT_EQ(parsed.error().code, refusal.code) << refusal.source;
  }
}

TEST(JinjaRefusal, WhenRendered) {
  const Refusal refusals[] = {
      {"\n{{ nope.x }}", ErrorCode::kInvalidArgument, "t: line 2: 'nope' is undefined"},
      {"{{ l.append(1) }}", ErrorCode::kInvalidArgument,
       "t: line 1: access to attribute 'append' of 'list' object is unsafe"},
      {"{{ s.encode() }}", ErrorCode::kUnsupported, "t: line 1: the method str.encode is not supported"},
      {"{{ '%s' % s }}", ErrorCode::kUnsupported, "t: line 1: formatting a string with % is not supported"},
      {"{{ l|map('upper') }}", ErrorCode::kUnsupported,
       "t: line 1: an iterator (the result of map, select, ...) is printed; use the filter 'list' or 'join'"},
      {"{{ s + 1 }}", ErrorCode::kInvalidArgument,
       "t: line 1: unsupported operand type(s) for +: 'str' and 'int'"},
      {"{{ raise_exception('no: ' ~ s) }}", ErrorCode::kInvalidArgument, "no: Hello"},
      {"{{ x|tojson }}", ErrorCode::kInvalidArgument,
       "t: line 1: a value given to tojson is undefined: 'x' is undefined"},
  };
  for (const Refusal& refusal : refusals) {
    const auto rendered = try_render(refusal.source);
    ASSERT_FALSE(rendered.has_value()) << refusal.source;
    EXPECT_EQ(rendered.error().message, refusal.message);
    EXPECT_EQ(rendered.error().code, refusal.code) << refusal.source;
  }
}

std::string repeat(std::string_view text, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) out += text;
  return out;
}

TEST(JinjaLimit, NothingRunsAway) {
  Limits limits;
  limits.max_steps = 1'000'000;
  limits.max_output_bytes = 1 << 20;
  limits.max_alloc_bytes = 32 << 20;
  const std::string sources[] = {
      "{{ " + std::string(100'000, '('),
      "{{ " + std::string(100'000, '[') + std::string(100'000, ']') + " }}",
      "{{ " + std::string(100'000, '-') + "1 }}",
      "{{ " + repeat("not ", 100'000) + "1 }}",
      "{{ 1" + repeat(" + 1", 100'000) + " }}",
      "{{ s" + repeat("|upper", 100'000) + " }}",
      "{{ s" + repeat("[0]", 100'000) + " }}",
      "{{ " + repeat("1 if 1 else ", 100'000) + "1 }}",
      repeat("{% if 1 %}", 100'000),
      repeat("{% for x in l %}", 50) + "x" + repeat("{% endfor %}", 50),
      "{{ 'x' * 10**9 }}",
      "{{ [0] * 10**9 }}",
      "{{ range(10**9) }}",
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
      "{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}",
      "{% set n = namespace(x=[1, 1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x "
      "}}",
      "{% set n = namespace(x=[1, 1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ "
      "n.x|tojson }}",
      "{% set n = namespace() %}{% set n.x = n %}{{ n }}",
      "{{ 'a'|replace('', 'x' * 1000000)|replace('', 'x' * 1000000) }}",
      "{{ 2 ** 127 }}",
      "{{ ('x' * 100000).replace('x', 'y' * 1000) }}",
      "{{ (['x' * 1000000] * 100000)|join }}",
      std::string(std::size_t{5} << 20, 'x'),
  };
  for (const std::string& source : sources) {
    const auto rendered = try_render(source, limits);
    ASSERT_FALSE(rendered.has_value()) << source.substr(0, 80);
    EXPECT_TRUE(rendered.error().code == ErrorCode::kLimit ||
                rendered.error().message.ends_with("has no end"))
        << source.substr(0, 80) << ": " << rendered.error().message;
  }
}

TEST(JinjaLimit, WallTime) {
  Limits limits;
  limits.max_wall_ms = 20;
  const auto rendered =
      try_render("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", limits);
  ASSERT_FALSE(rendered.has_value());
  EXPECT_NE(rendered.error().message.find("rendering took more than 20 ms"), std::string::npos);
}

// Runs as text: trusted stretches in <>, untrusted ones in ().
std::string trust(std::string_view source) {
  const auto rendered = try_render(source);
  if (!rendered) return "error: " + rendered.error().message;
  std::string out;
  std::size_t at = 0;
  for (const TrustRun& run : rendered->runs) {
    out += run.trusted ? '<' : '(';
    out += rendered->text.substr(at, run.bytes);
    out += run.trusted ? '>' : ')';
    at += run.bytes;
  }
  return out;
}

TEST(JinjaTrust, FollowsStringsThroughOperations) {
  EXPECT_EQ(trust("a{{ s }}b"), "<a>(Hello)<b>");
  EXPECT_EQ(trust("{{ '[' + s + ']' }}{{ '[' ~ 'x' ~ ']' }}"), "<[>(Hello)<][x]>");
  EXPECT_EQ(trust("{% set x = ' [' ~ s ~ '] ' %}{{ x.strip() }}{{ x|trim }}{{ x[2:-2] }}"),
            "<[>(Hello)<][>(Hello)<]>(Hello)");
  EXPECT_EQ(trust("{% set x %}<<{{ s }}>>{% endset %}{{ x|upper }}"), "<<<>(HELLO)<>>>");
  EXPECT_EQ(trust("{{ ['a', s, 'b']|join(', ') }}"), "<a, >(Hello)<, b>");
  EXPECT_EQ(trust("{{ ('a,' ~ s ~ ',b').split(',')[1] }}{{ ('a,' ~ s).split(',')|first }}"), "(Hello)<a>");
  EXPECT_EQ(trust("{{ 'a-b'.replace('-', s) }}{{ s.replace('ell', 'x') }}"), "<a>(Hello)<b>(H)<x>(o)");
  EXPECT_EQ(trust("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(s) }}{{ m('k') }}"), "<[>(Hello)<][k]>");
  EXPECT_EQ(trust("{{ ('-' ~ s)[::-1] }}{{ ('-' ~ s)|reverse|first }}"), "(olleH)<->(o)");
  EXPECT_EQ(trust("{{ ('a\n' ~ s)|indent('| ', true) }}"), "<| a>(\n)<| >(Hello)");
  EXPECT_EQ(trust("{{ ('<' ~ s)|e }}"), "<&lt;>(Hello)");
  EXPECT_EQ(trust("{{ 'x' * 3 }}{{ s * 2 }}"), "<xxx>(HelloHello)");
}

TEST(JinjaTrust, WhatCannotBeToldIsUntrusted) {
  EXPECT_EQ(trust("{{ ['a'] }}"), "(['a'])");
  EXPECT_EQ(trust("{{ 'a'|tojson }}"), "(\"a\")");
  EXPECT_EQ(trust("{{ 1 }}{{ true }}{{ none }}"), "(1TrueNone)");
  EXPECT_EQ(trust("{% for k in d %}{{ k }}{% endfor %}"), "(baitems)");
  EXPECT_EQ(trust("{% for c in s %}{{ c }}{% endfor %}"), "(Hello)");
}

}  // namespace
}  // namespace mimo::jinja
