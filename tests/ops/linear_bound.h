// How far a matrix product of the CPU backend may be from the exact one, computed from its documented
// rounding (ops/cpu/cpu_ops.h) for every output.
//
// Rounding errors of activations are uniform in one step and independent, and a sum of such terms is
// sub-Gaussian with its own variance: beyond kDeviations standard deviations lies at most 2
// exp(-kDeviations^2 / 2) = 3e-14, so that no honest output of a test run is ever outside. Errors of weights
// are fixed, but meet activations of random sign. Sums in fp32 use the same factor with sqrt(terms) (the
// probabilistic bound of Higham and Mary).
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/weight_view.h"
#include "ops/cpu/packed_matrix.h"

namespace mimo::testing {

inline constexpr double kDeviations = 8.0;
inline constexpr double kUnit = 0x1p-24;  // unit roundoff of fp32

class LinearBound {
 public:
  LinearBound(const WeightView& view, MatrixUse use, ActivationPrecision precision)
      : cols_(view.cols), exact_(precision == ActivationPrecision::kExact) {
    integer_ = view.format == WeightFormat::kMxfp4 || view.format == WeightFormat::kFp8 ||
               (view.format == WeightFormat::kBF16 && use != MatrixUse::kVocabulary && !exact_);
    const bool drafter = view.format == WeightFormat::kBF16 && use == MatrixUse::kDrafter && integer_;
    const bool narrow = view.format == WeightFormat::kMxfp4 || drafter;
    limit_ = narrow ? 127.0 : 1023.0;
    group_ = narrow ? 64 : 128;
    groups_ = (cols_ + group_ - 1) / group_;
    rows_ = view.rows;
    const auto size = static_cast<std::size_t>(rows_ * groups_);
    norm_.resize(size);
    error_.resize(size);
    dropped_.resize(size);
    std::vector<double> largest(size);
    std::vector<float> row(static_cast<std::size_t>(cols_));
    for (std::int64_t n = 0; n < rows_; ++n) {
      dequantize_row(view, n, row.data());
      for (std::int64_t g = 0; g < groups_; ++g) {
        double sum = 0;
        double top = 0;
        for (std::int64_t k = g * group_; k < std::min(cols_, (g + 1) * group_); ++k) {
          const double w = row[static_cast<std::size_t>(k)];
          sum += w * w;
          top = std::max(top, std::fabs(w));
        }
        norm_[index(n, g)] = std::sqrt(sum);
        largest[index(n, g)] = top;
      }
      if (view.format == WeightFormat::kFp8) fp8_errors(view, n);
      if (view.format == WeightFormat::kMxfp4) mxfp4_dropped(view, n);
    }
    if (drafter) {
      // Half a step of a 96th of the row's largest in the group.
      for (std::size_t i = 0; i < size; ++i) error_[i] = largest[i] / (2 * kInt8Limit);
    } else if (view.format == WeightFormat::kBF16 && integer_) {
      bf16_errors(largest);
    }
  }

  // Bounds of one row of activations, [view.rows].
  std::vector<double> row(const float* x) const {
    std::vector<double> step(static_cast<std::size_t>(groups_));
    std::vector<double> norm(static_cast<std::size_t>(groups_));
    for (std::int64_t g = 0; g < groups_; ++g) {
      double top = 0;
      double sum = 0;
      for (std::int64_t k = g * group_; k < std::min(cols_, (g + 1) * group_); ++k) {
        top = std::max(top, std::fabs(static_cast<double>(x[k])));
        sum += static_cast<double>(x[k]) * x[k];
      }
      step[static_cast<std::size_t>(g)] = top / limit_;
      norm[static_cast<std::size_t>(g)] = std::sqrt(sum);
    }
    // The second integer rounds a rest of at most half a step.
    const double finer = exact_ ? 1.0 / (2.0 * limit_) : 1.0;
    const double planes = exact_ ? 2.0 : 1.0;
    const double terms =
        integer_ ? static_cast<double>(groups_) * planes + 6 : static_cast<double>(cols_) / 2 + 2;
    std::vector<double> bounds(static_cast<std::size_t>(rows_));
    for (std::int64_t n = 0; n < rows_; ++n) {
      double variance = 0;
      double dropped = 0;
      double product = 0;  // at least sum |w x|
      for (std::int64_t g = 0; g < groups_; ++g) {
        const std::size_t at = index(n, g);
        const double s = step[static_cast<std::size_t>(g)];
        const double xg = norm[static_cast<std::size_t>(g)];
        product += norm_[at] * xg;
        if (!integer_) continue;
        const double rounding = norm_[at] * s * finer;
        variance += rounding * rounding / 12 + xg * xg * error_[at] * error_[at];
        dropped += dropped_[at] * s * planes;
      }
      // 1.001: products of two errors
      bounds[static_cast<std::size_t>(n)] = 1.001 * (kDeviations * std::sqrt(variance) + dropped) +
                                            kDeviations * std::sqrt(terms) * kUnit * product + 1e-37;
    }
    return bounds;
  }

 private:
  std::size_t index(std::int64_t n, std::int64_t g) const {
    return static_cast<std::size_t>(n * groups_ + g);
  }

  // Integers are round(32 * value): 2^-6 off at most, before the scale.
  void fp8_errors(const WeightView& view, std::int64_t n) {
    std::int64_t r = n;
    const WeightSegment* segment = view.segments.data();
    while (r >= segment->rows) r -= (segment++)->rows;
    const float* scales =
        segment->scales_f32 +
        static_cast<std::size_t>((segment->grid_row + r) / kFp8Block) * segment->scale_stride;
    for (std::int64_t g = 0; g < groups_; ++g) error_[index(n, g)] = static_cast<double>(scales[g]) / 64;
  }

  // Steps of 2^(E - 14) where 2^E is the power of two at or above the largest of 16 rows x 128 columns.
  void bf16_errors(const std::vector<double>& largest) {
    for (std::int64_t n = 0; n < rows_; ++n) {
      for (std::int64_t g = 0; g < groups_; ++g) {
        double top = 0;
        const std::int64_t begin = n / kPanelRows * kPanelRows;
        for (std::int64_t i = begin; i < std::min<std::int64_t>(rows_, begin + kPanelRows); ++i) {
          top = std::max(top, largest[index(i, g)]);
        }
        error_[index(n, g)] = top == 0 ? 0 : std::exp2(std::ceil(std::log2(top)) - 15);
      }
    }
  }

  // Of two blocks more than 14 octaves apart the smaller loses what is below 2^-14 of a unit of the larger;
  // units are half of the larger scale.
  void mxfp4_dropped(const WeightView& view, std::int64_t n) {
    const WeightSegment& segment = view.segments.front();
    const std::uint8_t* codes = segment.scales_u8 + static_cast<std::size_t>(n) * segment.scale_stride;
    for (std::int64_t g = 0; g < groups_; ++g) {
      if ((2 * g + 1) * kMxfp4Block >= cols_) continue;
      const int a = codes[2 * g];
      const int b = codes[2 * g + 1];
      if (std::abs(a - b) > 14) dropped_[index(n, g)] = std::exp2(std::max(a, b) - 127 - 1 - 14);
    }
  }

  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  bool exact_ = false;
  bool integer_ = false;  // activations become integers
  double limit_ = 1;
  std::int64_t group_ = 0;
  std::int64_t groups_ = 0;
  std::vector<double> norm_;     // [rows, groups] 2-norm of the weights
  std::vector<double> error_;    // [rows, groups] largest error of a packed weight
  std::vector<double> dropped_;  // [rows, groups] truncation of far-apart blocks, in activation steps
};

}  // namespace mimo::testing
