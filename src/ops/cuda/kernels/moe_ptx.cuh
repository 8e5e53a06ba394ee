// PTX that the expert kernels use: mbarriers, bulk copies, ldmatrix, mma.
#pragma once

#include <cstdint>

namespace mimo::cuda::ptx {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline void mbarrier_init(std::uint64_t* bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals)
               : "memory");
}
// After mbarrier_init, before a __syncthreads that lets others use the barriers.
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void mbarrier_arrive(std::uint64_t* bar) {
  asm volatile(
      "{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(shared_address(bar))
      : "memory");
}
__device__ inline void mbarrier_arrive_expect(std::uint64_t* bar, std::uint32_t bytes) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::"r"(
                   shared_address(bar)),
               "r"(bytes)
               : "memory");
}
// Waits until the phase of this parity is complete.
__device__ inline void mbarrier_wait(std::uint64_t* bar, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
}

__device__ inline std::uint64_t policy_evict_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// 16-byte aligned, a multiple of 16 bytes; completes on `bar`.
__device__ inline void bulk_copy(std::uint32_t to, const void* from, std::uint32_t bytes,
                                 std::uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(bar))
      : "memory");
}
__device__ inline void bulk_copy(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint64_t* bar,
                                 std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(to),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(bar)), "l"(policy)
      : "memory");
}
// Orders ordinary accesses before (acquired ones too) against bulk copies after.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

// The same for shared memory only: does not wait for copies from global memory that are under way.
__device__ inline void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void named_barrier(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline int load_acquire(const std::int32_t* p) {
  int v;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(p)) : "memory");
  return v;
}
__device__ inline void add_release(std::int32_t* p, int v) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "r"(v)
               : "memory");
}

// Programmatic dependent launch: until everything before this kernel is complete; lets the next one start to wait.
__device__ inline void wait_for_prior_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void let_next_grid_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Four 8x8 matrices of 16-bit elements; lane i names row i % 8 of matrix i / 8.
__device__ inline void ldmatrix_x4(std::uint32_t address, std::uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Four or two 8x8 matrices of 16-bit elements, transposed on the way; lane i names row i % 8 of matrix i / 8.
__device__ inline void stmatrix_x4_trans(std::uint32_t address, std::uint32_t a, std::uint32_t b,
                                         std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
__device__ inline void stmatrix_x2_trans(std::uint32_t address, std::uint32_t a, std::uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b)
               : "memory");
}

__device__ inline void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// (a & mask) | b in one instruction, which the compiler does not always find.
__device__ inline std::uint32_t masked_or(std::uint32_t a, std::uint32_t mask, std::uint32_t b) {
  std::uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(b));
  return d;
}

// Bytes of a (0..3) and b (4..7) by the nibbles of `which`, whose highest bits are 0 (__byte_perm would mask them).
__device__ inline std::uint32_t select_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t which) {
  std::uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(which));
  return d;
}

// Both halves of a times the same half of b (the compiler makes that an operand modifier).
template <int Half>
__device__ std::uint32_t mul_bf16x2_half(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  if constexpr (Half == 0) {
    asm("{\n.reg .b16 low, high;\n.reg .b32 both;\nmov.b32 {low, high}, %2;\nmov.b32 both, {low, low};\n"
        "mul.rn.bf16x2 %0, %1, both;\n}"
        : "=r"(d)
        : "r"(a), "r"(b));
  } else {
    asm("{\n.reg .b16 low, high;\n.reg .b32 both;\nmov.b32 {low, high}, %2;\nmov.b32 both, {high, high};\n"
        "mul.rn.bf16x2 %0, %1, both;\n}"
        : "=r"(d)
        : "r"(a), "r"(b));
  }
  return d;
}

}  // namespace mimo::cuda::ptx
