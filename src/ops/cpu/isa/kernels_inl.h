// All kernels of one instruction set. The including file defines MIMO_ISA and includes its vectors first. Included once
// per instruction set: no guard.

// clang-format off: each part uses the ones before it.
#include "ops/cpu/isa/gemm_inl.h"
#include "ops/cpu/isa/elementwise_inl.h"
#include "ops/cpu/isa/attention_inl.h"
// clang-format on
