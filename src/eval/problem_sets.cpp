#include "eval/problem_sets.h"

#include <unordered_set>
#include <utility>

#include "core/jsonl.h"
#include "eval/answer_extraction.h"
#include "text/tool_schema.h"

namespace mimo {
namespace {

// Adds problems and refuses a second one of the same id.
class ProblemList {
 public:
  Status add(const std::string& where, Problem problem) {
    if (!ids_.insert(problem.id).second)
      return fail(ErrorCode::kCorrupt, "{}: field \"id\": \"{}\" occurs twice", where, problem.id);
    problem.index = problems_.size();
    problems_.push_back(std::move(problem));
    return {};
  }

  Result<std::vector<Problem>> take(const std::string& path) {
    if (problems_.empty()) return fail(ErrorCode::kCorrupt, "{}: no problems", path);
    return std::move(problems_);
  }

 private:
  std::unordered_set<std::string> ids_;
  std::vector<Problem> problems_;
};

// A problem of GSM8K as its file has it.
struct WorkedProblem {
  std::string where;
  std::string question;
  std::string solution;   // steps and "#### N"
  std::string reference;  // N, plain
};

Result<std::vector<WorkedProblem>> read_worked(const std::string& path) {
  std::vector<WorkedProblem> list;
  const Status read = read_jsonl(path, [&](const JsonLine& line) -> Status {
    Result<std::string> question = line.text("question");
    if (!question) return forward_error(question);
    Result<std::string> solution = line.text("answer");
    if (!solution) return forward_error(solution);
    const std::size_t mark = solution->rfind("####");
    const std::optional<std::string> reference =
        mark == std::string::npos ? std::nullopt
                                  : normalise_number(std::string_view(*solution).substr(mark + 4));
    if (!reference)
      return fail(ErrorCode::kCorrupt, "{}: field \"answer\": expected a number after \"####\"",
                  line.where());
    list.push_back({line.where(), std::move(*question), std::move(*solution), *reference});
    return {};
  });
  if (!read) return forward_error(read);
  if (list.empty()) return fail(ErrorCode::kCorrupt, "{}: no problems", path);
  return list;
}

constexpr std::string_view kBoxInstruction =
    "Please reason step by step, and put your final answer within \\boxed{}.";

// The worked steps without the calculator marks "<<...>>", and the answer in a box.
std::string boxed_solution(const WorkedProblem& problem) {
  std::string steps;
  std::string_view rest = problem.solution;
  rest = rest.substr(0, rest.rfind("####"));
  while (!rest.empty()) {
    const std::size_t open = rest.find("<<");
    steps += rest.substr(0, open);
    if (open == std::string_view::npos) break;
    const std::size_t close = rest.find(">>", open);
    rest = close == std::string_view::npos ? std::string_view() : rest.substr(close + 2);
  }
  return fmt::format("{}The answer is \\boxed{{{}}}.", steps, problem.reference);
}

Result<std::string> example_block(const Gsm8kOptions& options) {
  std::string block;
  if (options.shots == 0) return block;
  const Result<std::vector<WorkedProblem>> examples = read_worked(options.shots_file);
  if (!examples) return forward_error(examples);
  if (std::cmp_less(examples->size(), options.shots)) {
    return fail(ErrorCode::kInvalidArgument, "{}: {} problems, --shots asks for {}", options.shots_file,
                examples->size(), options.shots);
  }
  block = "Here are examples of solved problems.\n\n";
  for (int i = 0; i < options.shots; ++i) {
    const WorkedProblem& example = (*examples)[static_cast<std::size_t>(i)];
    block += fmt::format("Problem: {}\nSolution: {}\n\n", example.question, boxed_solution(example));
  }
  return block;
}

}  // namespace

Result<std::vector<Problem>> load_nano_gsm(const std::string& path) {
  ProblemList list;
  const Status read = read_jsonl(path, [&](const JsonLine& line) -> Status {
    const Result<std::string> id = line.text("id");
    if (!id) return forward_error(id);
    const Result<std::string> question = line.text("question");
    if (!question) return forward_error(question);
    const Result<std::string> answer = line.text("answer");
    if (!answer) return forward_error(answer);
    const std::optional<std::string> number = normalise_number(*answer);
    if (!number || *number != *answer)
      return fail(ErrorCode::kCorrupt, "{}: field \"answer\": expected a number, got \"{}\"", line.where(),
                  *answer);
    Problem problem;
    problem.id = *id;
    problem.messages = user_message(*question);
    problem.expected = ExpectedNumber{*number, ExpectedNumber::Rule::kExact};
    return list.add(line.where(), std::move(problem));
  });
  if (!read) return forward_error(read);
  return list.take(path);
}

Result<std::vector<Problem>> load_toolcall(const std::string& path) {
  ProblemList list;
  const Status read = read_jsonl(path, [&](const JsonLine& line) -> Status {
    const Result<std::string> id = line.text("id");
    if (!id) return forward_error(id);
    Result<json::array> tools = line.list("tools");
    if (!tools) return forward_error(tools);
    Result<json::array> messages = line.list("messages");
    if (!messages) return forward_error(messages);
    const Result<json::array> expected = line.list("expected");
    if (!expected) return forward_error(expected);
    const Result<bool> thinking = line.boolean("enable_thinking", true);
    if (!thinking) return forward_error(thinking);
    ExpectedCalls calls;
    for (const json::value& item : *expected) {
      const json::object* call = item.if_object();
      const json::value* name = call == nullptr ? nullptr : call->if_contains("name");
      const json::value* arguments = call == nullptr ? nullptr : call->if_contains("arguments");
      if (name == nullptr || !name->is_string() || arguments == nullptr || !arguments->is_object()) {
        return fail(ErrorCode::kCorrupt, "{}: field \"expected\": entry {}: expected a name and arguments",
                    line.where(), calls.calls.size());
      }
      const std::string called(name->get_string());
      if (!find_tool(*tools, called).declared) {
        return fail(ErrorCode::kCorrupt, "{}: field \"expected\": entry {}: no tool is called \"{}\"",
                    line.where(), calls.calls.size(), called);
      }
      calls.calls.push_back({called, arguments->get_object()});
    }
    Problem problem;
    problem.id = *id;
    problem.messages = std::move(*messages);
    problem.tools = std::move(*tools);
    if (line.object().contains("enable_thinking")) problem.enable_thinking = *thinking;
    problem.expected = std::move(calls);
    return list.add(line.where(), std::move(problem));
  });
  if (!read) return forward_error(read);
  return list.take(path);
}

Result<std::vector<Problem>> load_gsm8k(const std::string& path, const Gsm8kOptions& options) {
  const Result<std::vector<WorkedProblem>> worked = read_worked(path);
  if (!worked) return forward_error(worked);
  const bool completion = options.protocol == Gsm8kOptions::Protocol::kCompletion;
  std::string before;
  std::size_t first = 0;
  if (completion) {
    first = static_cast<std::size_t>(options.shots);
    if (first >= worked->size()) {
      return fail(ErrorCode::kInvalidArgument, "{}: {} problems, of which --shots {} leaves none", path,
                  worked->size(), options.shots);
    }
    for (std::size_t i = 0; i < first; ++i)
      before += fmt::format("Question: {}\nAnswer: {}\n\n", (*worked)[i].question, (*worked)[i].solution);
  } else {
    Result<std::string> block = example_block(options);
    if (!block) return forward_error(block);
    before = std::move(*block);
  }
  ProblemList list;
  for (std::size_t i = first; i < worked->size(); ++i) {
    const WorkedProblem& one = (*worked)[i];
    Problem problem;
    problem.id = fmt::format("gsm8k-{:04}", i + 1);
    if (completion) {
      problem.completion = fmt::format("{}Question: {}\nAnswer:", before, one.question);
      problem.stop = {"Question", "Assistant:", "<|separator|>"};
      problem.expected = ExpectedNumber{one.reference, ExpectedNumber::Rule::kLastInteger};
    } else {
      const std::string head = before.empty() ? "" : before + "Now solve this one.\n\nProblem: ";
      problem.messages = user_message(fmt::format("{}{}\n{}", head, one.question, kBoxInstruction));
      problem.expected = ExpectedNumber{one.reference, ExpectedNumber::Rule::kEvalscope};
    }
    if (const Status added = list.add(one.where, std::move(problem)); !added) return forward_error(added);
  }
  return list.take(path);
}

}  // namespace mimo
