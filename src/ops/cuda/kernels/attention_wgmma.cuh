// Warpgroup matrix products d (+)= A B, bf16 in, fp32 out: m64 nN k16. A comes from shared memory (a descriptor) or
// from registers, B from shared memory. An accumulator of a thread: rows r = 16 * warp + lane / 4 and r + 8, columns
// 8 j + 2 (lane % 4) and the next; d[4 j .. 4 j + 3] are (r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1).
#pragma once

#include <cstdint>

#include "ops/cuda/kernels/hopper.cuh"

namespace mimo::cuda::hopper {

// Before the first product after registers it reads or accumulates in were written.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps what was computed into these registers before what follows (the compiler would move a wait up over the
// arithmetic that is meant to run under it).
template <int kCount>
__device__ __forceinline__ void hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// clang-format off
#define MIMO_D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

// A and B from shared memory, both K-major.
__device__ __forceinline__ void wgmma_ss(float (&d)[40], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %42, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39"
      "}, %40, %41, p, 1, 1, 0, 0;\n}\n"
      : MIMO_D8(0), MIMO_D8(8), MIMO_D8(16), MIMO_D8(24), MIMO_D8(32)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// A and B from shared memory, both K-major.
__device__ __forceinline__ void wgmma_ss(float (&d)[48], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
      "}, %48, %49, p, 1, 1, 0, 0;\n}\n"
      : MIMO_D8(0), MIMO_D8(8), MIMO_D8(16), MIMO_D8(24), MIMO_D8(32), MIMO_D8(40)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// A and B from shared memory, both K-major.
__device__ __forceinline__ void wgmma_ss(float (&d)[56], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %58, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55"
      "}, %56, %57, p, 1, 1, 0, 0;\n}\n"
      : MIMO_D8(0), MIMO_D8(8), MIMO_D8(16), MIMO_D8(24), MIMO_D8(32), MIMO_D8(40), MIMO_D8(48)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// A and B from shared memory, both K-major.
__device__ __forceinline__ void wgmma_ss(float (&d)[64], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
      : MIMO_D8(0), MIMO_D8(8), MIMO_D8(16), MIMO_D8(24), MIMO_D8(32), MIMO_D8(40), MIMO_D8(48), MIMO_D8(56)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// A from registers, B from shared memory, MN-major.
__device__ __forceinline__ void wgmma_rs_mn(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
      : MIMO_D8(0), MIMO_D8(8), MIMO_D8(16), MIMO_D8(24), MIMO_D8(32), MIMO_D8(40), MIMO_D8(48), MIMO_D8(56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

// A and B from shared memory, both K-major; f16.
__device__ __forceinline__ void wgmma_ss_half(float (&d)[48], std::uint64_t a, std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
      "}, %48, %49, p, 1, 1, 0, 0;\n}\n"
      : MIMO_D8(0), MIMO_D8(8), MIMO_D8(16), MIMO_D8(24), MIMO_D8(32), MIMO_D8(40)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// A from registers, B from shared memory, MN-major; f16.
__device__ __forceinline__ void wgmma_rs_mn_half(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
      : MIMO_D8(0), MIMO_D8(8), MIMO_D8(16), MIMO_D8(24), MIMO_D8(32), MIMO_D8(40), MIMO_D8(48), MIMO_D8(56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's groups of copies are not done.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#undef MIMO_D8
// clang-format on

}  // namespace mimo::cuda::hopper
