// Differential tests against Python's jinja2: tools/text/make_jinja_golden.py made the expected results.
#include <gtest/gtest.h>

#include "core/file.h"
#include "text/chat_format.h"
#include "text/golden_lines.h"
#include "text/jinja/template.h"

namespace mimo {
namespace {

const std::string kData = std::string(MIMO_SOURCE_DIR) + "/tests/text/data/";
constexpr int kShown = 40;  // failures printed in full

// Occurrences of `marker` inside trusted runs.
std::size_t trusted_count(const RenderedChat& chat, std::string_view marker) {
  std::size_t count = 0;
  std::size_t begin = 0;
  for (const jinja::TrustRun& run : chat.runs) {
    const std::string_view text = std::string_view(chat.text).substr(begin, run.bytes);
    begin += run.bytes;
    for (std::size_t at = 0; run.trusted && (at = text.find(marker, at)) != std::string_view::npos; ++at)
      ++count;
  }
  return count;
}

std::string_view view(const json::value& text) {
  return {text.get_string().data(), text.get_string().size()};
}

TEST(JinjaGolden, Conversations) {
  const std::vector<json::value> lines = test::golden_lines(kData + "chat_golden.jsonl.xz");
  ASSERT_GE(lines.size(), 2001u);
  std::vector<ChatFormat> formats;
  for (const json::value& file : lines[0].get_array()) {
    const std::string name(view(file));
    auto made = ChatFormat::from_template(*read_file(kData + "templates/" + name, 1 << 20), name);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    formats.push_back(std::move(*made));
  }
  int wrong = 0;
  int refused = 0;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const json::value& line = lines[i];
    ChatInput input;
    input.messages = &line.at(0).get_array();
    input.tools = line.at(1).if_array();
    input.template_kwargs = &line.at(2).get_object();
    for (std::size_t f = 0; f < formats.size(); ++f) {
      const json::value& expected = line.at(3).at(f);
      const auto rendered = formats[f].render(input);
      refused += expected.is_null() ? 1 : 0;
      const bool right = expected.is_null()
                             ? !rendered.has_value()
                             : rendered.has_value() && test::packed(rendered->text) == view(expected);
      if (rendered && view(lines[0].at(f)) == "mimo_v26.jinja") {
        // One turn a message, whatever control tokens the messages spell.
        const std::size_t turns = input.messages->size() + (input.tools != nullptr ? 1 : 0);
        EXPECT_EQ(trusted_count(*rendered, "<|im_end|>"), turns) << "case " << i;
      }
      if (!right && ++wrong <= kShown) {
        ADD_FAILURE() << "case " << i << ", " << view(lines[0].at(f))
                      << "\nmessages: " << json::serialize(line.at(0))
                      << "\noptions: " << json::serialize(line.at(2))
                      << "\nexpected: " << json::serialize(expected)
                      << "\ngot: " << (rendered ? rendered->text : "error: " + rendered.error().message);
      }
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(refused, 0) << "the file should hold conversations that a template refuses";
}

TEST(JinjaGolden, Programs) {
  const std::vector<json::value> lines = test::golden_lines(kData + "jinja_golden.jsonl.xz");
  ASSERT_GE(lines.size(), 2001u);
  const json::object& context = lines[0].get_object();
  int wrong = 0;
  int errors = 0;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::string_view source = view(lines[i].at(0));
    const json::value& expected = lines[i].at(1);
    errors += expected.is_null() ? 1 : 0;
    std::string got;
    bool failed = false;
    const auto parsed = jinja::Template::parse(source, "t");
    if (!parsed) {
      failed = true;
      got = "parse error: " + parsed.error().message;
    } else {
      const auto rendered = parsed->render({.variables = &context});
      failed = !rendered.has_value();
      got = rendered ? rendered->text : "error: " + rendered.error().message;
      if (rendered) {
        std::size_t bytes = 0;
        for (const jinja::TrustRun& run : rendered->runs) bytes += run.bytes;
        EXPECT_EQ(bytes, rendered->text.size()) << source;
      }
    }
    const bool right = expected.is_null() ? failed : !failed && test::packed(got) == view(expected);
    if (!right && ++wrong <= kShown) {
      ADD_FAILURE() << "case " << i << "\n"
                    << source << "\nexpected: " << json::serialize(expected) << "\ngot: " << got;
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(errors, 100) << "the file should hold programs that are errors";
}

}  // namespace
}  // namespace mimo
