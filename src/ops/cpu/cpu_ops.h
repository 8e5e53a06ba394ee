// The CPU backend: packed weights in checkpoint precision, kernels chosen by instruction set, one thread pool.
//
// Rounding inside operations (all else is fp32; bounds in docs/architecture.md, "Number formats"):
//   MXFP4 matrices   activations to int8 with a scale per 64 columns; weights exact
//   FP8 matrices     activations to 11-bit integers with a scale per 128 columns; weights to within 3.5e-5 of
//                    the largest E4M3 value
//   BF16 matrices    the same; weights to within 6.1e-5 of the largest of 16 rows x 128 columns
//   of a drafter     activations as MXFP4; weights to int8 with a scale per row and 64 columns
//   router           fp32 arithmetic on exact weights
//   attention        fp32 on stored keys and values; on AVX-512 without FP16 (Zen 4) q and softmax weights are
//                    rounded to bf16, where the pair-dot instruction is the fast one
// With ActivationPrecision::kExact activations have 15 and 21 bits, and BF16 matrices use fp32 arithmetic.
#pragma once

#include <memory>

#include "core/cpu_features.h"
#include "core/result.h"
#include "ops/cpu/packed_matrix.h"
#include "ops/host_ops.h"

namespace mimo {

struct CpuOptions {
  int threads = 0;  // 0: one per available CPU
  bool pin = true;  // bind threads to CPUs
  ActivationPrecision precision = ActivationPrecision::kFast;
};

// Fails when the machine lacks the lowest instruction set, or MIMO_CPU_LEVEL asks for one it does not have.
Result<std::unique_ptr<Ops>> make_cpu_ops(const CpuOptions& options);

}  // namespace mimo
