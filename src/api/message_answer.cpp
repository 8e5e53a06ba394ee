#include "api/message_answer.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "api/json_writer.h"
#include "api/random_id.h"

namespace mimo {
namespace {

// Clients send it back and we do not read it: there is nothing secret in our own reasoning.
std::string thinking_signature() { return random_id("", 96); }

std::string tool_use_id() { return random_id("toolu_", 24); }

void begin_event(std::string_view type, std::string& out) {
  fmt::format_to(std::back_inserter(out), "event: {0}\ndata: {{\"type\":\"{0}\"", type);
}

void end_event(std::string& out) { out += "}\n\n"; }

// "stop_reason" and "stop_sequence" with their values.
void append_stop(std::string& out, const AnswerPlan& plan, const AnswerEnd& end) {
  const std::string_view reason = stop_reason(end);
  fmt::format_to(std::back_inserter(out), R"("stop_reason":"{}","stop_sequence":)", reason);
  if (reason == "stop_sequence") {
    plan.append_stop_reason(out, end);
  } else {
    out += "null";
  }
}

// Members of a message up to its content.
void append_message_head(std::string& out, const AnswerPlan& plan) {
  out += R"("id":)";
  append_json_string(out, plan.head.id);
  out += R"(,"type":"message","role":"assistant","model":)";
  append_json_string(out, plan.request.model);
}

}  // namespace

MessageStream::MessageStream(AnswerPlan plan) : plan_(std::move(plan)), choices_(plan_) {}

void MessageStream::start_message(std::string& out) {
  if (std::exchange(started_, true)) return;
  UsageTotals usage = choices_.usage();
  // Tokens of this first step are counted in message_delta, with all others.
  usage.completion_tokens = 0;
  begin_event("message_start", out);
  out += R"(,"message":{)";
  append_message_head(out, plan_);
  out += R"(,"content":[],"stop_reason":null,"stop_sequence":null,"usage":)";
  append_anthropic_usage(out, usage);
  out += '}';
  end_event(out);
}

void MessageStream::enter(Block block, std::string_view name, std::string& out) {
  if (block == block_ && block != Block::kToolUse) return;
  close_block(out);
  block_ = block;
  begin_event("content_block_start", out);
  fmt::format_to(std::back_inserter(out), R"(,"index":{},"content_block":)", ++index_);
  switch (block) {
    case Block::kThinking:
      out += R"({"type":"thinking","thinking":"","signature":""})";
      break;
    case Block::kText:
      out += R"({"type":"text","text":""})";
      break;
    case Block::kToolUse:
      fmt::format_to(std::back_inserter(out), R"({{"type":"tool_use","id":"{}","name":)", tool_use_id());
      append_json_string(out, name);
      out += R"(,"input":{}})";
      break;
    case Block::kNone:
      break;
  }
  end_event(out);
}

void MessageStream::close_block(std::string& out) {
  if (block_ == Block::kNone) return;
  if (block_ == Block::kThinking) {
    begin_event("content_block_delta", out);
    fmt::format_to(std::back_inserter(out),
                   R"(,"index":{},"delta":{{"type":"signature_delta","signature":"{}"}})", index_,
                   thinking_signature());
    end_event(out);
  }
  begin_event("content_block_stop", out);
  fmt::format_to(std::back_inserter(out), R"(,"index":{})", index_);
  end_event(out);
  block_ = Block::kNone;
}

void MessageStream::block_delta(std::string_view type, std::string_view member,
                                std::span<const AnswerDelta> run, std::string& out) const {
  begin_event("content_block_delta", out);
  fmt::format_to(std::back_inserter(out), R"(,"index":{},"delta":{{"type":"{}","{}":")", index_, type,
                 member);
  for (const AnswerDelta& delta : run) append_json_escaped(out, delta.text);
  out += "\"}";
  end_event(out);
}

void MessageStream::push(std::int64_t choice, const AnswerPart& part, std::string& out) {
  if (!choices_.running(choice)) return;
  choices_.note(choice, part.usage);
  start_message(out);
  for (std::span<const AnswerDelta> rest = part.deltas; !rest.empty();) {
    const std::span<const AnswerDelta> run = rest.first(same_kind_run(rest));
    switch (run.front().kind) {
      case DeltaKind::kReasoning:
        enter(Block::kThinking, {}, out);
        block_delta("thinking_delta", "thinking", run, out);
        break;
      case DeltaKind::kContent:
        enter(Block::kText, {}, out);
        block_delta("text_delta", "text", run, out);
        break;
      case DeltaKind::kToolStart:
        enter(Block::kToolUse, run.front().name, out);
        break;
      case DeltaKind::kToolArguments:
        block_delta("input_json_delta", "partial_json", run, out);
        break;
      case DeltaKind::kToolEnd:
      case DeltaKind::kToolBroken:
        close_block(out);
        break;
    }
    rest = rest.subspan(run.size());
  }
}

void MessageStream::finish(std::int64_t choice, const AnswerEnd& end, std::string& out) {
  if (!choices_.running(choice)) return;
  if (end.aborted) return fail(api_error(503, "the answer was aborted by the server"), out);
  start_message(out);
  close_block(out);
  begin_event("message_delta", out);
  out += R"(,"delta":{)";
  append_stop(out, plan_, end);
  out += R"(},"usage":)";
  append_anthropic_usage(out, choices_.usage());
  if (plan_.timings) {
    out += R"(,"timings":)";
    append_timings(out, choices_.usage());
  }
  end_event(out);
  begin_event("message_stop", out);
  end_event(out);
  choices_.end_all();
}

void MessageStream::fail(const ApiError& error, std::string& out) {
  if (complete()) return;
  out += "event: error\ndata: ";
  out += anthropic_error_body(error);
  out += "\n\n";
  choices_.end_all();
}

MessageCollector::MessageCollector(AnswerPlan plan) : plan_(std::move(plan)), choices_(plan_) {}

void MessageCollector::add_text(DeltaKind kind, std::string_view text) {
  if (blocks_.empty() || blocks_.back().kind != kind)
    blocks_.push_back({.kind = kind, .text = {}, .name = {}});
  blocks_.back().text += text;
}

void MessageCollector::add(const AnswerDelta& delta) {
  switch (delta.kind) {
    case DeltaKind::kReasoning:
    case DeltaKind::kContent:
      return add_text(delta.kind, delta.text);
    case DeltaKind::kToolStart:
      blocks_.push_back({.kind = DeltaKind::kToolStart, .text = {}, .name = delta.name});
      return;
    case DeltaKind::kToolArguments:
      blocks_.back().text += delta.text;
      return;
    case DeltaKind::kToolBroken:
      blocks_.pop_back();
      return add_text(DeltaKind::kContent, delta.text);
    case DeltaKind::kToolEnd:
      return;
  }
}

void MessageCollector::push(std::int64_t choice, const AnswerPart& part, std::string& /*out*/) {
  if (!choices_.running(choice)) return;
  choices_.note(choice, part.usage);
  for (const AnswerDelta& delta : part.deltas) add(delta);
}

void MessageCollector::finish(std::int64_t choice, const AnswerEnd& end, std::string& out) {
  if (!choices_.running(choice)) return;
  if (end.aborted) return fail(api_error(503, "the answer was aborted by the server"), out);
  out += '{';
  append_message_head(out, plan_);
  out += R"(,"content":[)";
  for (const Block& block : blocks_) {
    if (&block != &blocks_.front()) out += ',';
    if (block.kind == DeltaKind::kReasoning) {
      out += R"({"type":"thinking","thinking":)";
      append_json_string(out, block.text);
      fmt::format_to(std::back_inserter(out), R"(,"signature":"{}"}})", thinking_signature());
    } else if (block.kind == DeltaKind::kContent) {
      out += R"({"type":"text","text":)";
      append_json_string(out, block.text);
      out += '}';
    } else {
      fmt::format_to(std::back_inserter(out), R"({{"type":"tool_use","id":"{}","name":)", tool_use_id());
      append_json_string(out, block.name);
      out += R"(,"input":)";
      out += block.text;
      out += '}';
    }
  }
  out += "],";
  append_stop(out, plan_, end);
  out += R"(,"usage":)";
  append_anthropic_usage(out, choices_.usage());
  if (plan_.timings) {
    out += R"(,"timings":)";
    append_timings(out, choices_.usage());
  }
  out += '}';
  choices_.end_all();
}

void MessageCollector::fail(const ApiError& error, std::string& out) {
  if (complete()) return;
  out += anthropic_error_body(error);
  choices_.end_all();
}

}  // namespace mimo
