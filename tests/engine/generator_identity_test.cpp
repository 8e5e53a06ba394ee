// Speculation changes no token: every answer equals the one without a drafter, whatever the drafter proposes,
// however many drafts are verified, and whatever shares the steps.

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "engine/generator_fixture.h"

namespace mimo {
namespace {

using mimo::testing::expect_counted;
using mimo::testing::expect_same_answers;
using mimo::testing::ids_of;
using mimo::testing::make_request;
using mimo::testing::random_prompt;
using mimo::testing::run_all;
using mimo::testing::Script;
using mimo::testing::ScriptedDrafter;
using mimo::testing::sequences_of;
using mimo::testing::tiny;
using mimo::testing::vary_sampling;

constexpr Script kScripts[] = {Script::kRight, Script::kWrong, Script::kMixed};

ScriptedDrafter drafter_for(const std::vector<GenerateRequest>& requests,
                            const std::vector<GenerateResult>& plain, Script script, int max_drafts = 7) {
  ScriptedDrafter::Options options;
  options.script = script;
  options.max_drafts = max_drafts;
  options.vocab = tiny().model->config().vocab;
  return ScriptedDrafter(options, sequences_of(requests, plain));
}

TEST(GeneratorIdentity, EveryWidthAloneAndInABatch) {
  std::vector<GenerateRequest> requests;
  for (unsigned i = 0; i < 16; ++i) {
    requests.push_back(make_request(random_prompt(5 + 7 * i, i), 12 + i));
    vary_sampling(requests.back(), i);
  }
  const std::vector<GenerateResult> plain = run_all(requests, {.max_running = 1});
  // The step's rows hold 16 anchors and prompt chunks that end anywhere.
  expect_same_answers(run_all(requests, {.page_size = 16, .chunk = 29, .max_running = 16}), plain);

  for (int width = 1; width <= 7; ++width) {
    for (const Script script : kScripts) {
      for (const int running : {1, 16}) {
        SCOPED_TRACE(fmt::format("width {} script {} running {}", width, static_cast<int>(script), running));
        ScriptedDrafter drafter = drafter_for(requests, plain, script);
        const std::vector<GenerateResult> got =
            run_all(requests, {.page_size = 16,
                               .chunk = running == 1 ? 512 : 150,
                               .max_running = running,
                               .drafter = &drafter,
                               .speculation = {.num_draft_tokens = width, .min_accept_length = 0}});
        expect_same_answers(got, plain);
        EXPECT_EQ(drafter.alive(), 0) << "states end with their requests";
        EXPECT_EQ(drafter.left_out, 0);
        EXPECT_LE(drafter.most_alive, running);
        for (std::size_t i = 0; i < got.size(); ++i) {
          expect_counted(got[i]);
          const SpeculationStats& stats = got[i].speculation;
          EXPECT_TRUE(script != Script::kWrong || stats.accepted == 0);
          EXPECT_TRUE(script != Script::kRight || stats.accepted == stats.proposed);
          if (running == 1 && script == Script::kRight) {
            // The fewest steps there can be: width + 1 tokens each, the first token from the prefill.
            const auto tokens = static_cast<std::int64_t>(got[i].tokens.size()) - 1;
            EXPECT_EQ(stats.verify_steps + stats.plain_steps, (tokens + width) / (width + 1));
          }
        }
      }
    }
  }
}

// C30: a prompt, or the last chunk of one, with as many rows as a verified block.
TEST(GeneratorIdentity, PromptsOfEveryLengthAroundBlocksAndChunks) {
  constexpr int kChunk = 24;
  std::vector<GenerateRequest> requests;
  unsigned number = 0;
  const auto add = [&](std::size_t length) {
    requests.push_back(make_request(random_prompt(length, number), 9));
    vary_sampling(requests.back(), number++);
  };
  for (std::size_t length = 1; length <= 40; ++length) add(length);
  for (std::size_t k : {2, 5}) {
    for (std::size_t rest = 0; rest <= 16; ++rest) add(kChunk * k + rest);
  }
  const std::vector<GenerateResult> plain = run_all(requests, {.chunk = 512, .max_running = 1});
  for (const int drafts : {2, 7}) {
    for (const int running : {1, 5}) {
      SCOPED_TRACE(fmt::format("{} drafts, {} running", drafts, running));
      ScriptedDrafter drafter = drafter_for(requests, plain, Script::kMixed, drafts);
      expect_same_answers(run_all(requests, {.chunk = kChunk, .max_running = running, .drafter = &drafter}),
                          plain);
    }
  }
}

// C44: window pages are freed by committed tokens, never by rows that were only tried. Every page that no
// sequence owns holds NaN, so one page too few is an error and not a rounding difference.
TEST(GeneratorIdentity, PagesAroundTheWindow) {
  const int window = tiny().model->config().window.window;
  ASSERT_EQ(window, 128);
  for (const int page : {1, 16, 64, 128, 256}) {
    std::vector<GenerateRequest> requests;
    unsigned number = 0;
    for (const int length : {window - 1, window, window + 1, window + page - 1, window + page,
                             window + page + 1, window + 2 * page}) {
      requests.push_back(make_request(random_prompt(static_cast<std::size_t>(length), number), 24));
      vary_sampling(requests.back(), number++);
    }
    const std::vector<GenerateResult> plain = run_all(requests, {.page_size = 32, .max_running = 1});
    for (const Script script : kScripts) {
      SCOPED_TRACE(fmt::format("page {} script {}", page, static_cast<int>(script)));
      ScriptedDrafter drafter = drafter_for(requests, plain, script);
      const std::vector<GenerateResult> got = run_all(
          requests, {.page_size = page, .chunk = 100, .max_running = 3, .drafter = &drafter, .poison = true});
      expect_same_answers(got, plain);
    }
  }
}

// C29: a block that crosses the limit delivers exactly what was asked for.
TEST(GeneratorIdentity, ExactlyMaxTokens) {
  std::vector<GenerateRequest> requests;
  for (unsigned n = 1; n <= 33; ++n) {
    requests.push_back(make_request(random_prompt(6, 77), n));
    vary_sampling(requests.back(), n);
  }
  const std::vector<GenerateResult> plain = run_all(requests, {});
  for (int drafts = 1; drafts <= 7; ++drafts) {
    for (const Script script : kScripts) {
      // Requests for one token are never drafted for.
      const std::vector<GenerateRequest> drafted(requests.begin() + 1, requests.end());
      const std::vector<GenerateResult> drafted_plain(plain.begin() + 1, plain.end());
      ScriptedDrafter drafter = drafter_for(drafted, drafted_plain, script, drafts);
      const std::vector<GenerateResult> got = run_all(requests, {.max_running = 33, .drafter = &drafter});
      expect_same_answers(got, plain);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].tokens.size(), i + 1) << drafts << " drafts";
        EXPECT_EQ(got[i].finish->reason, FinishReason::kLength);
        if (i > 0) expect_counted(got[i]);
      }
    }
  }
}

// Stop strings that end, begin and lie anywhere in a block, end tokens, and tokens before which nothing stops.
TEST(GeneratorIdentity, StopsInsideBlocks) {
  const GenerateRequest base = make_request(random_prompt(12, 3), 40);
  const GenerateResult whole = run_all({base}, {.tokenizer = tiny().tokenizer.get()}).front();
  ASSERT_GT(whole.text.size(), 40u);
  std::vector<GenerateRequest> requests;
  for (std::size_t at = 0; at + 3 < whole.text.size() && requests.size() < 24; at += 5) {
    for (const std::size_t length : {1, 3}) {
      GenerateRequest request = base;
      request.params.stop = {"never there", whole.text.substr(at, length)};
      if (requests.size() % 3 == 1) request.params.include_stop_str_in_output = true;
      if (requests.size() % 4 == 2) request.params.min_tokens = 11;
      requests.push_back(std::move(request));
    }
  }
  for (std::size_t at = 0; at < 24; at += 2) {
    GenerateRequest request = base;
    request.params.stop_token_ids = {whole.tokens[at].id};
    if (at % 3 == 0) request.params.min_tokens = 9;
    requests.push_back(std::move(request));
  }
  GeneratorOptions options;
  options.tokenizer = tiny().tokenizer.get();
  const std::vector<GenerateResult> plain = run_all(requests, options);
  std::map<FinishReason, int> reasons;
  for (const GenerateResult& result : plain) ++reasons[result.finish->reason];
  EXPECT_GE(reasons[FinishReason::kStopString], 10);
  EXPECT_GE(reasons[FinishReason::kStopToken], 5);
  for (const Script script : kScripts) {
    ScriptedDrafter::Options script_options;
    script_options.script = script;
    script_options.vocab = tiny().model->config().vocab;
    // The drafter goes on after the stop: its blocks hold the tokens that would have followed.
    std::vector<std::vector<std::int32_t>> sequences =
        sequences_of(std::vector<GenerateRequest>(requests.size(), base),
                     std::vector<GenerateResult>(requests.size(), whole));
    ScriptedDrafter drafter(script_options, std::move(sequences));
    options.drafter = &drafter;
    std::vector<std::string> shown(requests.size());
    GenerateCallbacks callbacks;
    callbacks.on_text = [&](std::size_t index, std::string_view text) { shown[index] += text; };
    const std::vector<GenerateResult> got = run_all(requests, options, callbacks);
    expect_same_answers(got, plain);
    for (std::size_t i = 0; i < got.size(); ++i) {
      expect_counted(got[i]);
      EXPECT_EQ(shown[i], got[i].text);
    }
  }
}

// C24: the parameter has its effect, and the same one with drafts.
TEST(GeneratorIdentity, ParametersThatLookBack) {
  const GenerateRequest base = make_request(random_prompt(9, 21), 30);
  const GenerateResult greedy = run_all({base}, {}).front();
  std::vector<GenerateRequest> requests(7, base);
  const int favourite = greedy.tokens[4].id;
  requests[0].params.logit_bias = {{favourite, -100}};
  requests[1].params.repetition_penalty = 1.8;
  requests[2].params.presence_penalty = 2;
  requests[3].params.frequency_penalty = 2;
  // The end token is favoured, and may not come for 20 tokens.
  requests[4].params.ignore_eos = false;
  requests[4].params.logit_bias = {{tiny().model->config().eos_token_ids.front(), 100}};
  requests[4].params.min_tokens = 20;
  requests[5].params.logprobs = 3;
  requests[6].params.temperature = 1;
  requests[6].params.min_p = 0.1;
  requests[6].params.presence_penalty = 1;
  requests[6].params.seed = 5;
  const std::vector<GenerateResult> plain = run_all(requests, {});
  for (const SampledToken& token : plain[0].tokens) EXPECT_NE(token.id, favourite);
  for (const std::size_t i : {0, 1, 2, 3}) {
    EXPECT_NE(ids_of(plain[i]), ids_of(greedy)) << "the parameter of request " << i << " has no effect here";
  }
  EXPECT_EQ(plain[4].tokens.size(), 21u);
  EXPECT_EQ(plain[4].finish->reason, FinishReason::kEos);
  for (const Script script : kScripts) {
    ScriptedDrafter drafter = drafter_for(requests, plain, script);
    const std::vector<GenerateResult> got = run_all(requests, {.drafter = &drafter});
    expect_same_answers(got, plain);
    for (std::size_t k = 0; k < got[5].tokens.size(); ++k) {
      EXPECT_EQ(got[5].tokens[k].logprob, plain[5].tokens[k].logprob);
      ASSERT_EQ(got[5].tokens[k].top.size(), 3u);
      EXPECT_EQ(got[5].tokens[k].top[2].id, plain[5].tokens[k].top[2].id);
    }
  }
}

// The drafter sees the states of committed rows, at their positions, bit for bit those of a run without drafts.
TEST(GeneratorIdentity, TappedRowsAreThoseOfTheSequence) {
  const ModelConfig& config = tiny().model->config();
  std::vector<GenerateRequest> requests;
  for (unsigned i = 0; i < 3; ++i) requests.push_back(make_request(random_prompt(20 + 13 * i, i), 20));
  const std::vector<GenerateResult> plain = run_all(requests, {});
  using Row = std::pair<std::size_t, std::int64_t>;
  const auto record = [&](Script script, std::int64_t skipped, int chunk) {
    ScriptedDrafter::Options options;
    options.script = script;
    options.vocab = config.vocab;
    options.taps = {config.layers + 1, 0, 2};
    options.skipped_prompt = skipped;
    ScriptedDrafter drafter(options, sequences_of(requests, plain));
    drafter.hidden = static_cast<std::size_t>(config.hidden);
    std::map<Row, std::vector<float>> rows;
    drafter.on_taps = [&](std::size_t index, std::int64_t position, std::span<const float> row) {
      rows[{index, position}].assign(row.begin(), row.end());
    };
    run_all(requests, {.chunk = chunk, .drafter = &drafter});
    return rows;
  };
  // One draft a step and all of them wrong: the rows of plain decoding.
  const auto expected = record(Script::kWrong, 0, 512);
  for (const auto& request : requests) EXPECT_GT(expected.size(), request.prompt.size());
  for (const auto& [script, skipped, chunk] :
       {std::tuple{Script::kRight, 0, 512}, {Script::kMixed, 0, 30}, {Script::kMixed, 17, 30}}) {
    const auto got = record(script, skipped, chunk);
    for (const auto& [row, values] : got) {
      ASSERT_GE(row.second, skipped);
      const auto found = expected.find(row);
      ASSERT_NE(found, expected.end()) << "request " << row.first << " position " << row.second;
      ASSERT_EQ(std::memcmp(values.data(), found->second.data(), values.size() * sizeof(float)), 0)
          << "request " << row.first << " position " << row.second;
    }
    // Blocks may end a request before its last rows are observed, nothing else is left out.
    EXPECT_GE(got.size() + 3 * 8 + 3 * static_cast<std::size_t>(skipped), expected.size());
  }
}

// Rows of requests that nothing is drafted for wait, and are shown together once drafts are wanted: the same rows of
// taps, in order, but for those that are too old to matter.
TEST(GeneratorIdentity, RowsThatWaitAreShownLater) {
  const ModelConfig& config = tiny().model->config();
  std::vector<GenerateRequest> requests;
  for (const std::int64_t tokens : {60, 60, 60, 400}) {
    const auto number = static_cast<unsigned>(requests.size());
    requests.push_back(make_request(random_prompt(20 + 13 * number, number), tokens));
    vary_sampling(requests.back(), number);
  }
  const std::vector<GenerateResult> plain = run_all(requests, {});
  using Row = std::pair<std::size_t, std::int64_t>;
  const auto record = [&](std::vector<BatchWidth> widths, auto& drafter) {
    drafter.hidden = static_cast<std::size_t>(config.hidden);
    std::map<Row, std::vector<float>> rows;
    drafter.on_taps = [&](std::size_t index, std::int64_t position, std::span<const float> row) {
      rows[{index, position}].assign(row.begin(), row.end());
    };
    const std::vector<GenerateResult> got =
        run_all(requests, {.chunk = 64,
                           .drafter = &drafter,
                           .speculation = {.batch_widths = std::move(widths), .min_accept_length = 0}});
    expect_same_answers(got, plain);
    return rows;
  };
  ScriptedDrafter at_once = drafter_for(requests, plain, Script::kWrong);
  const auto expected = record({}, at_once);
  EXPECT_EQ(at_once.left_out, 0);

  // Four at a time draft nothing. Then the last one does, for which up to 110 rows have waited.
  ScriptedDrafter later = drafter_for(requests, plain, Script::kMixed);
  const auto got = record({{1, 7}, {2, 0}}, later);
  EXPECT_EQ(later.left_out, 0);
  EXPECT_LT(later.observe_calls, at_once.observe_calls / 2);
  std::size_t of_last = 0;
  for (const auto& [row, values] : got) {
    of_last += row.first == 3 ? 1 : 0;
    const auto found = expected.find(row);
    ASSERT_NE(found, expected.end()) << "request " << row.first << " position " << row.second;
    ASSERT_EQ(std::memcmp(values.data(), found->second.data(), values.size() * sizeof(float)), 0)
        << "request " << row.first << " position " << row.second;
  }
  EXPECT_GT(of_last, requests[3].prompt.size() + 380) << "nothing of it is left out";

  // With a second long request more rows wait than are kept.
  requests[2].params.max_tokens = 360;
  const std::vector<GenerateResult> longer = run_all(requests, {});
  ScriptedDrafter too_late = drafter_for(requests, longer, Script::kRight);
  const std::vector<GenerateResult> answers =
      run_all(requests, {.drafter = &too_late, .speculation = {.batch_widths = {{1, 7}, {2, 0}}}});
  expect_same_answers(answers, longer);
  EXPECT_GT(too_late.left_out, 360 - 100 - kPendingRows);
  EXPECT_GT(answers[3].speculation.verify_steps, 3);
  EXPECT_EQ(answers[3].speculation.accepted, answers[3].speculation.proposed);
}

}  // namespace
}  // namespace mimo
