// All kernels of one instruction set, each part using the ones before it. The including file defines MIMO_ISA
// and includes its vectors first. Included once per instruction set: no guard.

// clang-format off
#include "ops/cpu/isa/gemm_inl.h"
#include "ops/cpu/isa/elementwise_inl.h"
#include "ops/cpu/isa/attention_inl.h"
// clang-format on
