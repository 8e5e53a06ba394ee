#include "ops/cpu/attention_runner.h"

#include <algorithm>
#include <cstring>

namespace mimo {
namespace {

// Query rows (tokens x query heads of a KV head) a task holds: scores of 64 rows x 256 keys stay in L2.
constexpr int kQueriesPerTask = 64;

// With up to this many rows the caller rotates and stores alone.
constexpr int kStoreRows = 8;

// Fewer query rows than this are not worth a task of their own: they share the loads of keys and values.
constexpr int kLeastQueries = 8;

// Sequences with at most this many new rows are cut along the keys, so that long contexts keep all threads
// busy.
constexpr int kSplitRows = 16;

// Keys that any of the rows [row, row + rows) sees: both ends of a row's range grow with the row.
KeyRange visible_to_any(const AttentionSpec& spec, const SequenceRows& sequence, int row, int rows) {
  return {visible_keys(spec, sequence, row).first, visible_keys(spec, sequence, row + rows - 1).last};
}

}  // namespace

struct AttentionRunner::Context {
  const float* qkv;
  std::size_t row_width;
  const AttentionSpec& spec;
  const CpuKv& kv;
  float* out;
  float* partial;  // [queries][2 + v_dim]: max, sum, accumulated values
};

AttentionRunner::AttentionRunner(const CpuKernels& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), scratch_(static_cast<std::size_t>(pool.threads())) {}

void AttentionRunner::rope_and_store(float* qkv, std::size_t row_width, const HostSequences& batch,
                                     const AttentionSpec& spec, float value_scale, CpuKv& kv) {
  const int k_offset = spec.q_heads * spec.qk_dim;
  const int v_offset = k_offset + spec.kv_heads * spec.qk_dim;
  const auto page_size = static_cast<std::int64_t>(kv.spec().page_size);
  const auto widest = static_cast<std::size_t>(std::max(spec.qk_dim, spec.v_dim));
  for (const SequenceRows& sequence : batch.sequences()) {
    // A task stores whole tiles: threads that write neighbouring positions would fight for the cache lines that hold
    // 16 of them (8 rows by two threads took 2.5 times as long as by one).
    const std::int64_t end = sequence.position + sequence.rows;
    const std::int64_t first_tile = sequence.position / kTileKeys;
    const std::int64_t tiles = (end - 1) / kTileKeys + 1 - first_tile;
    const auto store = [&](std::int64_t r, int worker) {
      const auto row = static_cast<std::size_t>(sequence.row_begin + r);
      float* x = qkv + row * row_width;
      kernels_.rope(x, spec.q_heads + spec.kv_heads, spec.qk_dim, batch.cos(row), batch.sin(row),
                    batch.rope().dims);
      const std::int64_t position = sequence.position + r;
      const std::int32_t page = sequence.pages[static_cast<std::size_t>(position / page_size)];
      auto* rounded = scratch_[static_cast<std::size_t>(worker)].get<std::uint16_t>(widest + 16);
      for (int h = 0; h < spec.kv_heads; ++h) {
        kv.write(kernels_, page, static_cast<int>(position % page_size), h, x + k_offset + h * spec.qk_dim,
                 x + v_offset + h * spec.v_dim, value_scale, rounded);
      }
    };
    pool_.for_each(tiles, sequence.rows <= kStoreRows ? tiles : 1, [&](std::int64_t tile, int worker) {
      const std::int64_t from = std::max((first_tile + tile) * kTileKeys, sequence.position);
      const std::int64_t to = std::min((first_tile + tile + 1) * kTileKeys, end);
      for (std::int64_t position = from; position < to; ++position)
        store(position - sequence.position, worker);
    });
  }
}

void AttentionRunner::plan(std::span<const SequenceRows> sequences, const AttentionSpec& spec) {
  tasks_.clear();
  merges_.clear();
  partial_queries_ = 0;
  const int group = spec.q_heads / spec.kv_heads;
  // A block of drafts of one request may have fewer heads than there are threads; the rows of a prompt see ever more
  // keys, which few tasks would not balance.
  const int most = std::max(1, kQueriesPerTask / group);
  const int least = std::max(1, kLeastQueries / group);
  const auto heads = static_cast<int>(sequences.size()) * spec.kv_heads;
  const auto share = [&](int rows) {
    const int wanted = rows > kSplitRows ? 4 * pool_.threads() : pool_.threads();
    const int parts = (wanted + heads - 1) / heads;
    return std::clamp((rows + parts - 1) / parts, least, most);
  };
  for (const SequenceRows& sequence : sequences) {
    const int rows_per_task = share(sequence.rows);
    for (int head = 0; head < spec.kv_heads; ++head) {
      for (int row = 0; row < sequence.rows; row += rows_per_task) {
        Task task;
        task.sequence = &sequence;
        task.head = head;
        task.row = row;
        task.rows = std::min(rows_per_task, sequence.rows - row);
        const KeyRange keys = visible_to_any(spec, sequence, row, task.rows);
        task.chunk_begin = keys.first / kChunkKeys;
        task.chunk_end = (keys.last + kChunkKeys - 1) / kChunkKeys;
        if (sequence.rows > kSplitRows || task.chunk_end - task.chunk_begin == 1) {
          tasks_.push_back(task);
          continue;
        }
        merges_.push_back(tasks_.size());
        task.cut = true;
        const std::int64_t end = task.chunk_end;
        for (std::int64_t chunk = task.chunk_begin; chunk < end; ++chunk) {
          task.chunk_begin = chunk;
          task.chunk_end = chunk + 1;
          task.partial = partial_queries_;
          partial_queries_ += static_cast<std::size_t>(task.rows * group);
          tasks_.push_back(task);
        }
      }
    }
  }
}

void AttentionRunner::run_task(const Context& context, const Task& task, int worker) {
  const AttentionSpec& spec = context.spec;
  const SequenceRows& sequence = *task.sequence;
  const int group = spec.q_heads / spec.kv_heads;
  const int queries = task.rows * group;
  const auto count = static_cast<std::size_t>(queries);
  const auto qk = static_cast<std::size_t>(spec.qk_dim);
  const auto v = static_cast<std::size_t>(spec.v_dim);

  // Scratch: chunk buffer | q | first, last | chunk results | running results | kernel scratch
  const std::size_t buffer = context.kv.chunk_buffer_bytes();
  const std::size_t q_bytes = (count * qk * sizeof(float) + 63) / 64 * 64;
  const std::size_t limits = (count * 2 * sizeof(std::int32_t) + 63) / 64 * 64;
  const std::size_t result = (count * (v + 2) * sizeof(float) + 63) / 64 * 64;
  std::uint8_t* at = scratch_[static_cast<std::size_t>(worker)].get<std::uint8_t>(
      buffer + q_bytes + limits + 2 * result + attention_scratch_bytes(queries, spec.qk_dim));
  const auto take = [&](std::size_t bytes) {
    std::uint8_t* p = at;
    at += bytes;
    return p;
  };
  std::uint8_t* tiles_buffer = take(buffer);
  auto* q = reinterpret_cast<float*>(take(q_bytes));
  auto* first = reinterpret_cast<std::int32_t*>(take(limits));
  auto* last = first + count;
  auto* chunk_out = reinterpret_cast<float*>(take(result));
  auto* running = reinterpret_cast<float*>(take(result));

  for (int r = 0; r < task.rows; ++r) {
    const float* row = context.qkv +
                       static_cast<std::size_t>(sequence.row_begin + task.row + r) * context.row_width +
                       static_cast<std::size_t>(task.head * group) * qk;
    std::memcpy(q + static_cast<std::size_t>(r * group) * qk, row,
                static_cast<std::size_t>(group) * qk * sizeof(float));
  }

  AttentionChunk chunk;
  chunk.wide = context.kv.wide();
  chunk.queries = queries;
  chunk.qk_dim = spec.qk_dim;
  chunk.v_dim = spec.v_dim;
  chunk.scale = spec.scale;
  chunk.q = q;
  chunk.first = first;
  chunk.last = last;
  chunk.max = chunk_out;
  chunk.sum = chunk_out + count;
  chunk.out = chunk_out + 2 * count;
  chunk.scratch = at;
  float* max = running;
  float* sum = running + count;
  float* acc = running + 2 * count;

  const KeyRange any = visible_to_any(spec, sequence, task.row, task.rows);
  CpuKv::ChunkTiles tiles;
  for (std::int64_t index = task.chunk_begin; index < task.chunk_end; ++index) {
    const std::int64_t base = index * kChunkKeys;
    for (int m = 0; m < queries; ++m) {
      const KeyRange keys = visible_keys(spec, sequence, task.row + m / group);
      first[m] = static_cast<std::int32_t>(std::clamp<std::int64_t>(keys.first - base, 0, kChunkKeys));
      last[m] = static_cast<std::int32_t>(std::clamp<std::int64_t>(keys.last - base, 0, kChunkKeys));
    }
    context.kv.read_chunk(kernels_, sequence.pages, base, any.first, any.last, task.head, tiles_buffer,
                          tiles);
    chunk.tiles = tiles.tiles;
    chunk.k_tiles = tiles.k;
    chunk.v_tiles = tiles.v;
    chunk.k_scale = tiles.scaled ? tiles.k_scale : nullptr;
    chunk.v_scale = tiles.scaled ? tiles.v_scale : nullptr;
    kernels_.attention_chunk(chunk);
    if (index == task.chunk_begin) {
      std::memcpy(running, chunk_out, count * (v + 2) * sizeof(float));
      continue;
    }
    for (std::size_t m = 0; m < count; ++m) {
      kernels_.attention_merge(&max[m], &sum[m], acc + m * v, chunk.max[m], chunk.sum[m], chunk.out + m * v,
                               spec.v_dim);
    }
  }

  if (task.cut) {
    std::memcpy(context.partial + task.partial * (v + 2), running, count * (v + 2) * sizeof(float));
    return;
  }
  finish(context, task, running);
}

// Divides the sums of a task's queries ([max | sum | values], as the merges leave them) and writes them out.
void AttentionRunner::finish(const Context& context, const Task& task, const float* result) const {
  const AttentionSpec& spec = context.spec;
  const auto group = static_cast<std::size_t>(spec.q_heads / spec.kv_heads);
  const auto v = static_cast<std::size_t>(spec.v_dim);
  const std::size_t count = static_cast<std::size_t>(task.rows) * group;
  for (std::size_t m = 0; m < count; ++m) {
    const std::size_t row = static_cast<std::size_t>(task.sequence->row_begin + task.row) + m / group;
    const std::size_t head = static_cast<std::size_t>(task.head) * group + m % group;
    kernels_.attention_finish(
        result[m], result[count + m], result + 2 * count + m * v,
        spec.sinks == nullptr || spec.sinks->empty() ? nullptr : spec.sinks->data() + head, spec.v_dim,
        context.out + (row * static_cast<std::size_t>(spec.q_heads) + head) * v);
  }
}

void AttentionRunner::run(const float* qkv, std::size_t row_width, std::span<const SequenceRows> sequences,
                          const AttentionSpec& spec, const CpuKv& kv, float* out) {
  plan(sequences, spec);
  const auto v = static_cast<std::size_t>(spec.v_dim);
  const Context context{qkv, row_width, spec, kv, out, partial_.get<float>(partial_queries_ * (v + 2) + 1)};
  pool_.for_each(static_cast<std::int64_t>(tasks_.size()), 1, [&](std::int64_t index, int worker) {
    run_task(context, tasks_[static_cast<std::size_t>(index)], worker);
  });

  // Chunks are merged in key order, the same order in which an uncut task meets them.
  const int group = spec.q_heads / spec.kv_heads;
  for (const std::size_t begin : merges_) {
    const Task& lead = tasks_[begin];
    const auto count = static_cast<std::size_t>(lead.rows * group);
    float* running = context.partial + lead.partial * (v + 2);
    std::size_t index = begin + 1;
    while (index < tasks_.size() && tasks_[index].sequence == lead.sequence &&
           tasks_[index].head == lead.head && tasks_[index].row == lead.row) {
      const float* part = context.partial + tasks_[index].partial * (v + 2);
      for (std::size_t m = 0; m < count; ++m) {
        kernels_.attention_merge(&running[m], &running[count + m], running + 2 * count + m * v, part[m],
                                 part[count + m], part + 2 * count + m * v, spec.v_dim);
      }
      ++index;
    }
    finish(context, lead, running);
  }
}

}  // namespace mimo
