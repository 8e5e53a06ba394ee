// Records to lines of a results file and back.
#include <fmt/format.h>

#include "bench/load_summary.h"

namespace mimo {
namespace {

// FNV-1a of the ids: equal answers are found without their text.
std::string ids_hash(const std::vector<std::int32_t>& ids) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash ^= (static_cast<std::uint32_t>(id) >> shift) & 0xFF;
      hash *= 0x100000001b3;
    }
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace

json::object record_json(const SentRequest& record, bool with_text) {
  json::object out;
  out["type"] = "request";
  out["id"] = record.id;
  out["round"] = record.round;
  out["n_in"] = record.n_in;
  out["n_in_wanted"] = record.wanted_in;
  out["n_cached"] = record.n_cached ? json::value(*record.n_cached) : json::value(nullptr);
  out["n_out"] = record.n_out;
  out["n_out_wanted"] = record.wanted_out;
  out["n_cached_host"] = record.n_host;
  out["al"] = record.accept_length() ? json::value(*record.accept_length()) : json::value(nullptr);
  out["due"] = record.due;
  out["t0"] = record.t0;
  out["t1"] = record.t1 < 0 ? json::value(nullptr) : json::value(record.t1);
  out["tE"] = record.t_end;
  out["finish"] = record.finish;
  out["first_is_end"] = record.first_is_end;
  json::array events;
  for (const TextEvent& event : record.events) events.push_back(json::array{event.at, event.tokens});
  out["events"] = std::move(events);
  out["ids_hash"] =
      record.ids.empty() ? json::value(nullptr) : json::value(json::string(ids_hash(record.ids)));
  out["error"] = record.failed() ? json::value(json::string(record.error)) : json::value(nullptr);
  if (!with_text) return out;
  out["text"] = record.text;
  json::array ids;
  for (const std::int32_t id : record.ids) ids.emplace_back(id);
  out["token_ids"] = std::move(ids);
  return out;
}

Result<SentRequest> record_from_json(const json::object& line, const std::string& where) {
  SentRequest record;
  const char* missing = nullptr;
  const auto find = [&](const char* key) {
    const json::value* value = line.if_contains(key);
    if (value == nullptr && missing == nullptr) missing = key;
    return value;
  };
  const auto number = [&](const char* key, double otherwise) {
    const json::value* value = find(key);
    if (value == nullptr || !value->is_number()) return otherwise;
    return value->to_number<double>();
  };
  const auto count = [&](const char* key) { return static_cast<std::int64_t>(number(key, 0)); };
  const auto text = [&](const char* key) {
    const json::value* value = find(key);
    return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
  };
  record.id = text("id");
  record.round = static_cast<int>(count("round"));
  record.n_in = count("n_in");
  record.wanted_in = count("n_in_wanted");
  const json::value* cached = find("n_cached");
  if (cached != nullptr && cached->is_int64()) record.n_cached = cached->get_int64();
  record.n_host = count("n_cached_host");
  record.n_out = count("n_out");
  record.wanted_out = count("n_out_wanted");
  record.due = number("due", 0);
  record.t0 = number("t0", 0);
  record.t1 = number("t1", -1);
  record.t_end = number("tE", -1);
  record.finish = text("finish");
  const json::value* last = find("first_is_end");
  record.first_is_end = last != nullptr && last->is_bool() && last->get_bool();
  record.error = text("error");
  const json::value* events = find("events");
  if (missing != nullptr) return fail(ErrorCode::kCorrupt, "{}: no field \"{}\"", where, missing);
  const auto wrong = [&] {
    return fail(ErrorCode::kCorrupt, "{}: field \"events\": expected [time, tokens]", where);
  };
  if (!events->is_array()) return wrong();
  for (const json::value& item : events->get_array()) {
    const json::array* pair = item.if_array();
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_number() || !(*pair)[1].is_int64())
      return wrong();
    record.events.push_back({(*pair)[0].to_number<double>(), (*pair)[1].get_int64()});
  }
  return record;
}

}  // namespace mimo
