#include "bench/sbs.h"

#include <algorithm>
#include <utility>

#include "bench/distribution.h"

namespace mimo {
namespace {

// Of a warm prompt the last window may be computed again besides a page.
constexpr std::int64_t kWindow = 128;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

class Row {
 public:
  Row(LoadTarget& target, const RequestStyle& style, const SbsOptions& options,
      std::vector<LoadPrompt> prompts)
      : target_(target), style_(style), options_(options), prompts_(std::move(prompts)) {
    style_.stream = false;
    style_.ignore_eos = true;
  }

  Status measure(SbsRow& row) {
    if (Status cold = measure_prefill(row); !cold) return cold;
    const std::size_t streams = prompts_.size();
    std::vector<std::vector<double>> shorts(streams);
    std::vector<std::vector<double>> longs(streams);
    std::vector<double> rates;
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      const Result<std::vector<double>> less = answers(row, options_.short_answer, repeat);
      if (!less) return forward_error(less);
      const Result<std::vector<double>> more = answers(row, options_.long_answer, repeat);
      if (!more) return forward_error(more);
      double difference = 0;
      for (std::size_t i = 0; i < streams; ++i) {
        shorts[i].push_back((*less)[i]);
        longs[i].push_back((*more)[i]);
        difference += (*more)[i] - (*less)[i];
      }
      rates.push_back(rate(difference));
    }
    double difference = 0;
    for (std::size_t i = 0; i < streams; ++i) difference += median(longs[i]) - median(shorts[i]);
    row.decode = rate(difference);
    row.decode_low = *std::min_element(rates.begin(), rates.end());
    row.decode_high = *std::max_element(rates.begin(), rates.end());
    // Noise can turn the sign on a short difference.
    if (row.decode_low <= 0 || row.decode <= 0)
      return fail(ErrorCode::kInternal, "a long answer took no longer than a short one: use longer answers");
    return {};
  }

 private:
  // Tokens a second of all streams, from the summed differences of their times: k streams * tokens / mean.
  double rate(double difference) const {
    const auto streams = static_cast<double>(prompts_.size());
    const auto tokens = static_cast<double>(options_.long_answer - options_.short_answer);
    return difference == 0 ? 0 : tokens * streams / (difference / streams);
  }

  Result<std::vector<SentRequest>> send(SbsRow& row, std::int64_t output, int round) {
    for (LoadPrompt& prompt : prompts_) prompt.output_tokens = output;
    LoadResult result = run_load(*target_.client, style_, prompts_, {});
    for (SentRequest& record : result.records) {
      record.round = round;
      row.records.push_back(record);
    }
    for (const SentRequest& record : result.records) {
      if (record.failed()) return fail(ErrorCode::kUnavailable, "{}", record.error);
      if (record.n_out != output) {
        return fail(ErrorCode::kInvalidArgument,
                    "an answer has {} tokens instead of {}: does the server know ignore_eos?", record.n_out,
                    output);
      }
    }
    return std::move(result.records);
  }

  Status measure_prefill(SbsRow& row) {
    const Result<std::vector<SentRequest>> records = send(row, 1, 0);
    if (!records) return forward_error(records);
    double begin = records->front().t0;
    double end = records->front().t_end;
    std::int64_t tokens = 0;
    std::int64_t uncached = 0;
    for (const SentRequest& record : *records) {
      begin = std::min(begin, record.t0);
      end = std::max(end, record.t_end);
      tokens += record.n_in;
      uncached += record.n_in - record.n_cached.value_or(0);
      row.ttft += record.latency() / static_cast<double>(records->size());
    }
    row.context = records->front().n_in;
    row.prefill_nominal = static_cast<double>(tokens) / (end - begin);
    row.prefill_uncached = static_cast<double>(uncached) / (end - begin);
    return {};
  }

  // Seconds of each stream.
  Result<std::vector<double>> answers(SbsRow& row, std::int64_t output, int repeat) {
    const Result<std::vector<SentRequest>> records = send(row, output, repeat + 1);
    if (!records) return forward_error(records);
    std::vector<double> seconds;
    for (const SentRequest& record : *records) {
      seconds.push_back(record.latency());
      if (!record.n_cached) continue;
      row.cache_checked = true;
      if (*record.n_cached < record.n_in - options_.page - kWindow) {
        return fail(
            ErrorCode::kInvalidArgument,
            "the prefix is not warm: {} of {} prompt tokens were cached (prefix cache on? --page-size?)",
            *record.n_cached, record.n_in);
      }
    }
    return seconds;
  }

  LoadTarget& target_;
  RequestStyle style_;
  const SbsOptions& options_;
  std::vector<LoadPrompt> prompts_;
};

}  // namespace

std::vector<SbsRow> run_sbs(LoadTarget& target, const RequestStyle& style, const SbsOptions& options,
                            const PromptSource& prompts, const std::function<void(const SbsRow&)>& ended) {
  std::vector<SbsRow> rows;
  int which = 0;
  for (const std::int64_t context : options.contexts) {
    for (const int streams : options.streams) {
      SbsRow row;
      row.context = context;
      row.streams = streams;
      std::vector<LoadPrompt> own;
      Status done;
      for (int i = 0; i < streams && done; ++i) {
        Result<LoadPrompt> prompt = prompts(context, which++);
        if (prompt) {
          own.push_back(std::move(*prompt));
        } else {
          done = forward_error(prompt);
        }
      }
      if (done) done = Row(target, style, options, std::move(own)).measure(row);
      if (!done) row.error = done.error().message;
      ended(row);
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

json::object sbs_json(const SbsRow& row) {
  json::object out;
  out["context"] = row.context;
  out["streams"] = row.streams;
  out["status"] = row.error.empty() ? "ok" : "FAILED";
  if (!row.error.empty()) {
    out["first_error"] = row.error;
    return out;
  }
  out["prefill_nominal"] = row.prefill_nominal;
  out["prefill_uncached"] = row.prefill_uncached;
  out["ttft_s"] = row.ttft;
  out["decode"] = row.decode;
  out["decode_low"] = row.decode_low;
  out["decode_high"] = row.decode_high;
  out["cache_checked"] = row.cache_checked;
  return out;
}

std::string sbs_head() {
  return "| context | streams | prefill tok/s | uncached tok/s | TTFT s | decode tok/s | range |\n"
         "|---|---|---|---|---|---|---|\n";
}

std::string sbs_line(const SbsRow& row) {
  if (!row.error.empty())
    return fmt::format("| {} | {} | FAILED: {} | | | | |\n", row.context, row.streams, row.error);
  return fmt::format("| {} | {} | {:.1f} | {:.1f} | {:.3f} | {:.1f}{} | {:.1f}-{:.1f} |\n", row.context,
                     row.streams, row.prefill_nominal, row.prefill_uncached, row.ttft, row.decode,
                     row.cache_checked ? "" : " (cache not checked)", row.decode_low, row.decode_high);
}

}  // namespace mimo
