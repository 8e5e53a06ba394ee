// Hopper's asynchronous machinery as plain functions: transaction barriers, tensor-map copies, proxy fences, named
// barriers and shared-memory matrix descriptors. sm_90a only.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace mimo::cuda::hopper {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- transaction barriers (mbarrier) ----

__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives and announces `bytes` that copies will bring.
__device__ __forceinline__ void barrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ bool barrier_try(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// Waits for the phase of this parity to complete. (A bound that traps would make the compiler ignore setmaxnreg. With
// MIMO_BOUNDED_WAITS a wait gives up after about a second: a wrong result instead of a hang, for development.)
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
#ifdef MIMO_BOUNDED_WAITS
  for (int tries = 0; tries < (1 << 20) && !barrier_try(barrier, parity); ++tries) {
  }
#else
  while (!barrier_try(barrier, parity)) {
  }
#endif
}

// ---- tensor-map copies ----

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies a box of a five-dimensional tensor to shared memory; a box outside of the tensor arrives as zeros.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap* map, std::uint64_t* barrier, int c0,
                                         int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// Brings a box to the L2 cache.
__device__ __forceinline__ void prefetch_box(const CUtensorMap* map, int c0, int c1, int c2, int c3, int c4) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(map),
               "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
               : "memory");
}

// ---- asynchronous copies by threads ----

// Copies 16 bytes, or writes zeros if there is nothing to copy (then `from` is not read).
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0)
               : "memory");
}
// Arrives when all copies that this thread has started are done (one of the arrivals the barrier was made for).
__device__ __forceinline__ void barrier_arrive_after_copies(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// ---- ordering ----

// Orders this thread's ordinary shared-memory accesses before what tensor cores and the copy engine do next.
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void named_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void registers_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void registers_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- matrix descriptors ----

// A matrix in shared memory made of atoms of 8 rows x 128 bytes, swizzled over 128 bytes (16-byte chunk c of row r
// stands at chunk c ^ r). Atoms are aligned to 1024 bytes.
//   K-major operand (a row holds 64 elements of the contracted dimension): `stride` is the distance of the next 8
//     rows; `lead` is unused.
//   MN-major operand (a row holds 64 elements of the other dimension, one row an element of the contracted one):
//     `stride` is the distance of the next 8 rows, `lead` that of the next 64 elements of a row.
__device__ __forceinline__ std::uint64_t swizzled_descriptor(std::uint32_t address, int lead, int stride) {
  return static_cast<std::uint64_t>((address & 0x3ffff) >> 4) |
         static_cast<std::uint64_t>((lead >> 4) & 0x3fff) << 16 |
         static_cast<std::uint64_t>((stride >> 4) & 0x3fff) << 32 | std::uint64_t{1} << 62;
}
// The descriptor of the same matrix `bytes` further on.
__device__ __forceinline__ std::uint64_t advanced(std::uint64_t descriptor, int bytes) {
  return descriptor + static_cast<std::uint64_t>(bytes >> 4);
}

}  // namespace mimo::cuda::hopper
