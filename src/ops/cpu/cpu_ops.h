// The CPU backend: packed weights in checkpoint precision, kernels chosen by instruction set, one thread pool.
//
// Rounding inside operations (all else is fp32; bounds in docs/architecture.md, "Number formats"):
//   MXFP4 matrices  activations to int8 with a scale per 32 columns; weights exact
//   FP8 matrices    activations to 11-bit integers with a scale per 128 columns; weights to within 3.5e-5 of the
//                   largest E4M3 value
//   BF16, F32       fp32 arithmetic on exact weights (also the router)
//   attention       q and softmax weights to bf16; scores, softmax and sums in fp32
#pragma once

#include <memory>

#include "core/cpu_features.h"
#include "core/result.h"
#include "ops/ops.h"

namespace mimo {

struct CpuOptions {
  int threads = 0;    // 0: one per available CPU
  bool pin = true;    // bind threads to CPUs
};

// Fails when the machine lacks the lowest instruction set, or MIMO_CPU_LEVEL asks for one it does not have.
Result<std::unique_ptr<Ops>> make_cpu_ops(const CpuOptions& options);

}  // namespace mimo
