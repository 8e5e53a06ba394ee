#include "support/model_driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace mimo {

std::int32_t argmax(std::span<const float> row) {
  return static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

ModelDriver::ModelDriver(const std::string& directory, std::unique_ptr<Ops> ops, const DriverOptions& options)
    : options_(options),
      ops_(std::move(ops)),
      full_("full", options.tokens / options.page_size),
      window_("window", options.tokens / options.page_size) {
  Result<std::unique_ptr<WeightSource>> source = open_checkpoint(directory, {});
  if (!source) throw std::runtime_error(source.error().message);
  Result<TargetModel> model = TargetModel::load(**source, *ops_, {});
  if (!model) throw std::runtime_error(model.error().message);
  model_ = std::make_unique<TargetModel>(std::move(*model));
  Result<ModelKv> kv = ModelKv::make(*ops_, model_->config(),
                                     {.dtype = options.kv,
                                      .page_size = options.page_size,
                                      .full_pages = full_.capacity(),
                                      .window_pages = window_.capacity()});
  if (!kv) throw std::runtime_error(kv.error().message);
  kv_ = std::make_unique<ModelKv>(std::move(*kv));
  if (options.poison) {
    for (std::int32_t page = 0; page < full_.capacity(); ++page) {
      kv_->poison(model_->config(), LayerKind::kFull, page);
      kv_->poison(model_->config(), LayerKind::kWindow, page);
    }
  }
}

int ModelDriver::add_sequence() {
  const PageLayout layout{options_.page_size, model_->config().window.window};
  sequences_.push_back(std::make_unique<SequencePages>(layout, full_, window_));
  return static_cast<int>(sequences_.size()) - 1;
}

std::vector<float> ModelDriver::step(const std::vector<int>& sequences,
                                     const std::vector<std::vector<std::int32_t>>& tokens,
                                     const TapRows& taps) {
  std::vector<std::int32_t> flat;
  std::vector<SequenceRows> full;
  std::vector<SequenceRows> window;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    SequencePages& pages = *sequences_[static_cast<std::size_t>(sequences[i])];
    const auto count = static_cast<std::int64_t>(tokens[i].size());
    const Status room = pages.extend(count);
    if (!room) throw std::runtime_error(room.error().message);
    const SequenceRows rows{static_cast<int>(flat.size()), static_cast<int>(count), pages.length(), {}};
    full.push_back(rows);
    window.push_back(rows);
    flat.insert(flat.end(), tokens[i].begin(), tokens[i].end());
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const SequencePages& pages = *sequences_[static_cast<std::size_t>(sequences[i])];
    full[i].pages = pages.full_pages();
    window[i].pages = pages.window_pages();
  }
  std::vector<std::int32_t> rows(flat.size());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
  std::vector<float> logits(flat.size() * static_cast<std::size_t>(vocab()));
  model_->forward({flat, full, window, rows, taps}, *kv_, logits);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    SequencePages& pages = *sequences_[static_cast<std::size_t>(sequences[i])];
    const std::vector<std::int32_t> before(pages.window_pages().begin(), pages.window_pages().end());
    pages.commit(static_cast<std::int64_t>(tokens[i].size()));
    if (!options_.poison) continue;
    for (std::size_t p = 0; p < before.size(); ++p) {
      if (before[p] >= 0 && pages.window_pages()[p] < 0) {
        kv_->poison(model_->config(), LayerKind::kWindow, before[p]);
      }
    }
  }
  return logits;
}

std::vector<std::int32_t> ModelDriver::greedy(std::span<const std::int32_t> prompt, int count, int chunk) {
  const int sequence = add_sequence();
  std::vector<float> logits;
  std::size_t last_rows = 0;
  for (std::size_t at = 0; at < prompt.size(); at += static_cast<std::size_t>(chunk)) {
    const auto size = std::min(static_cast<std::size_t>(chunk), prompt.size() - at);
    logits = step({sequence}, {{prompt.begin() + static_cast<std::ptrdiff_t>(at),
                                prompt.begin() + static_cast<std::ptrdiff_t>(at + size)}});
    last_rows = size;
  }
  std::vector<std::int32_t> out;
  const auto width = static_cast<std::size_t>(vocab());
  while (static_cast<int>(out.size()) < count) {
    out.push_back(argmax({logits.data() + (last_rows - 1) * width, width}));
    if (static_cast<int>(out.size()) == count) break;
    logits = step({sequence}, {{out.back()}});
    last_rows = 1;
  }
  return out;
}

}  // namespace mimo
