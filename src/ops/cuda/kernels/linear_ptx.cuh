// The Hopper instructions that the linear kernels are made of: mbarriers, bulk copies, dependent launches.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace mimo::cuda::ptx {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}

// After barrier_init, before other threads or the copy engine use the barriers.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives, and has the phase wait for so many bytes of copies.
__device__ __forceinline__ void barrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n\t"
      ".reg .pred done;\n\t"
      "again:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra finished;\n\t"
      "bra again;\n\t"
      "finished:\n\t"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// What is read once should not push out of L2 what is read again.
__device__ __forceinline__ std::uint64_t evict_first_policy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ std::uint64_t evict_last_policy() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Addresses and sizes are multiples of 16 bytes.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, std::uint32_t bytes,
                                          std::uint64_t* barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void copy_tile(void* to, const CUtensorMap* map, int column, int row,
                                          std::uint64_t* barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, "
      "{%3, %4}], "
      "[%2], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Programmatic dependent launch: nothing that the kernel before wrote may be read before wait; both do nothing in a
// launch without it.
__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// The same tile to the same place in every thread block of the cluster in `mask`, each of whose barriers counts it.
__device__ __forceinline__ void copy_tile_to(std::uint16_t mask, void* to, const CUtensorMap* map, int column,
                                             int row, std::uint64_t* barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::"
      "cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "h"(mask), "l"(policy)
      : "memory");
}

// Tiles from shared to global memory, in groups as a thread commits them. What other threads wrote to the tile must have
// been followed by their writes_done() and a barrier.
__device__ __forceinline__ void writes_done() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void store_tile(const CUtensorMap* map, int column, int row, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(column), "r"(row), "r"(shared_address(from))
               : "memory");
}
__device__ __forceinline__ void add_tile(const CUtensorMap* map, int column, int row, const void* from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(column), "r"(row), "r"(shared_address(from))
      : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all but so many of the last groups have been read from shared memory.
template <int kInFlight>
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kInFlight) : "memory");
}

// Four 8 x 8 matrices of 2-byte elements, each thread two neighbours of row lane / 4 of each; lane l names the place of
// row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(void* row, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                               std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ std::uint32_t cluster_size() {
  std::uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
  return size;
}

// All threads, of all blocks of the cluster, that have not ended.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Arrives at the barrier that block `rank` of the cluster has at the same place: after this thread's reads of what the
// barrier guards. (Ordered within the block only: a release to the cluster would wait for all memory of the GPU.)
__device__ __forceinline__ void barrier_arrive_at(std::uint32_t rank, std::uint64_t* barrier) {
  asm volatile(
      "{\n\t"
      ".reg .b32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n\t"
      "}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

// Writes to the same place in block `rank` of the cluster, whose barrier counts the bytes.
__device__ __forceinline__ void send_shared(std::uint32_t rank, float4* to, float4 v,
                                            std::uint64_t* barrier) {
  asm volatile(
      "{\n\t"
      ".reg .b32 place, counter;\n\t"
      "mapa.shared::cluster.u32 place, %0, %2;\n\t"
      "mapa.shared::cluster.u32 counter, %1, %2;\n\t"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [place], {%3, %4, %5, %6}, [counter];\n\t"
      "}" ::"r"(shared_address(to)),
      "r"(shared_address(barrier)), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}

// A flag in global memory. Publishing makes visible what this thread block wrote before a barrier before it.
__device__ __forceinline__ void publish(std::int32_t* flag, std::int32_t value) {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ std::int32_t observe(const std::int32_t* flag) {
  std::int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

template <int kCount>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Barrier of some warps of a block; `id` from 1 on.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace mimo::cuda::ptx
