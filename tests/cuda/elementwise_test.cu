#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/device_array.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kernels/elementwise.h"

namespace mimo::cuda {
namespace {

std::vector<float> normal(std::size_t count, std::mt19937& random) {
  std::normal_distribution<float> draw;
  std::vector<float> x(count);
  for (float& v : x) v = draw(random);
  return x;
}
float bf16(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }
std::uint16_t bits(float x) {
  const __nv_bfloat16 rounded = __float2bfloat16_rn(x);
  std::uint16_t out;
  std::memcpy(&out, &rounded, 2);
  return out;
}
float from_bits(std::uint16_t x) {
  const std::uint32_t word = std::uint32_t{x} << 16;
  float out;
  std::memcpy(&out, &word, 4);
  return out;
}

TEST(ElementwiseTest, RmsNorm) {
  std::mt19937 random(1);
  for (const int width : {4, 32, 128, 1000, 1002, 1024, 4096, 4100, 8192, 16384, 20000}) {
    for (const bool to_bf16 : {false, true}) {
      for (const int shift : {0, 1}) {  // elements by which arrays miss their alignment
        SCOPED_TRACE(::testing::Message() << width << " bf16 " << to_bf16 << " shift " << shift);
        constexpr int kRows = 5;
        const std::size_t w = static_cast<std::size_t>(width);
        const std::size_t stride = w + 8;
        std::vector<float> x = normal(kRows * w + 1, random);
        const std::vector<float> gain = normal(w, random);
        x[static_cast<std::size_t>(shift) + 3 * w + w / 2] = NAN;
        const DeviceArray<float> dx(x), dgain(gain);
        const DeviceArray<float> out(std::vector<float>(kRows * stride + 1, 777.0f));
        const int element = to_bf16 ? 2 : 4;
        const auto run = [&](int first, int rows) {
          void* to = reinterpret_cast<char*>(out.get()) + (shift + first * stride) * element;
          rms_norm(dx.get() + shift + first * w, rows, width, dgain.get(), 1e-5f, to,
                   to_bf16 ? ActType::kBF16 : ActType::kF32, stride, nullptr);
          MIMO_CUDA(cudaDeviceSynchronize());
        };
        run(0, kRows);
        const std::vector<float> raw = out.download();
        const auto value = [&](int r, std::size_t i) {
          const std::size_t at = static_cast<std::size_t>(shift) + r * stride + i;
          return to_bf16 ? from_bits(reinterpret_cast<const std::uint16_t*>(raw.data())[at]) : raw[at];
        };
        for (int r = 0; r < kRows; ++r) {
          double sum = 0;
          for (std::size_t i = 0; i < w; ++i) sum += std::pow(static_cast<double>(x[shift + r * w + i]), 2);
          const double scale = 1 / std::sqrt(sum / width + 1e-5);
          for (std::size_t i = 0; i < w; ++i) {
            const double expected = x[shift + r * w + i] * scale * gain[i];
            if (r == 3) {
              ASSERT_TRUE(std::isnan(value(r, i)));
            } else {
              ASSERT_NEAR(value(r, i), expected, std::fabs(expected) * (to_bf16 ? 0.0041 : 2e-6))
                  << r << " " << i;
            }
          }
          if (r + 1 < kRows && !to_bf16) {
            for (std::size_t i = w; i < stride; ++i) ASSERT_EQ(value(r, i), 777.0f);
          }
        }
        run(2, 1);  // alone
        const std::vector<float> again = out.download();
        EXPECT_EQ(std::memcmp(again.data(), raw.data(), raw.size() * 4), 0);
        if (!to_bf16) {  // in place
          const DeviceArray<float> place(x);
          rms_norm(place.get() + shift, kRows, width, dgain.get(), 1e-5f, place.get() + shift, ActType::kF32,
                   w, nullptr);
          MIMO_CUDA(cudaDeviceSynchronize());
          const std::vector<float> got = place.download();
          for (int r = 0; r < kRows; ++r) {
            EXPECT_EQ(std::memcmp(got.data() + shift + r * w, raw.data() + shift + r * stride, w * 4), 0)
                << r;
          }
        }
      }
    }
  }
}

struct RopeCase {
  int q_heads, kv_heads, qk_dim, v_dim, rotary, page_size;
  bool fp8, act_bf16;
};

void run_rope(const RopeCase& c, std::mt19937& random) {
  SCOPED_TRACE(::testing::Message() << c.q_heads << "/" << c.kv_heads << " x " << c.qk_dim << "," << c.v_dim
                                    << " rotary " << c.rotary << " page " << c.page_size << " fp8 " << c.fp8
                                    << " bf16 " << c.act_bf16);
  // Three sequences of 2, 1 and 3 rows, and two rows of padding.
  const std::vector<std::int32_t> row_begin = {0, 2, 3}, position = {c.page_size * 3 - 1, 0, 100000};
  const std::vector<std::int32_t> row_sequence = {0, 0, 1, 2, 2, 2, -1, -1};
  const int rows = static_cast<int>(row_sequence.size());
  const int stride = 100004 / c.page_size + 2;
  std::vector<std::int32_t> pages(3 * stride, -1);
  int next = 0;
  for (int r = 0; r < 6; ++r) {
    const int s = row_sequence[r];
    std::int32_t& page = pages[s * stride + (position[s] + r - row_begin[s]) / c.page_size];
    if (page < 0) page = next++;
  }
  for (std::int32_t& page : pages) page = page < 0 ? page : next - 1 - page;
  const std::size_t width = (c.q_heads + c.kv_heads) * c.qk_dim + c.kv_heads * c.v_dim;
  const std::size_t row_stride = width + 8;
  std::vector<float> x = normal(rows * row_stride, random);
  for (float& v : x) v = bf16(v);
  std::vector<float> frequencies;
  for (int i = 0; i < c.rotary / 2; ++i) frequencies.push_back(std::pow(1e4f, -2.0f * i / c.rotary));
  const int element = c.fp8 ? 1 : 2;
  const std::size_t slots = static_cast<std::size_t>(next) * c.kv_heads * c.page_size;
  const auto run = [&](const std::vector<std::int32_t>& sequence_of_row, std::vector<float>* out,
                       std::vector<std::uint8_t>* k, std::vector<std::uint8_t>* v, std::vector<float>* ks,
                       std::vector<float>* vs) {
    const DeviceArray<float> dx32(x);
    std::vector<std::uint16_t> x16(x.size());
    std::transform(x.begin(), x.end(), x16.begin(), bits);
    const DeviceArray<std::uint16_t> dx16(x16);
    const DeviceArray<std::uint8_t> dk(std::vector<std::uint8_t>(slots * c.qk_dim * element, 0xff));
    const DeviceArray<std::uint8_t> dv(std::vector<std::uint8_t>(slots * c.v_dim * element, 0xff));
    const DeviceArray<float> dks(std::vector<float>(slots, 777.0f)), dvs(std::vector<float>(slots, 777.0f));
    const DeviceArray<std::int32_t> drow_begin(row_begin), dposition(position), dpages(pages),
        dsequence(sequence_of_row);
    const DeviceArray<float> dfrequencies(frequencies);
    RopeStoreArgs args;
    args.qkv = c.act_bf16 ? static_cast<void*>(dx16.get()) : dx32.get();
    args.type = c.act_bf16 ? ActType::kBF16 : ActType::kF32;
    args.row_stride = row_stride;
    args.q_heads = c.q_heads;
    args.kv = {dk.get(),    dv.get(),   dks.get(), dvs.get(), next,
               c.page_size, c.kv_heads, c.qk_dim,  c.v_dim,   c.fp8};
    args.sequences.row_begin = drow_begin.get();
    args.sequences.position = dposition.get();
    args.sequences.pages = dpages.get();
    args.sequences.row_sequence = dsequence.get();
    args.sequences.page_stride = stride;
    args.sequences.sequences = 3;
    args.sequences.total_rows = rows;
    args.inverse_frequencies = dfrequencies.get();
    args.rotary_dims = c.rotary;
    args.value_scale = 0.707f;
    rope_and_store(args, nullptr);
    MIMO_CUDA(cudaDeviceSynchronize());
    if (c.act_bf16) {
      const std::vector<std::uint16_t> host = dx16.download();
      out->resize(host.size());
      std::transform(host.begin(), host.end(), out->begin(), from_bits);
    } else {
      *out = dx32.download();
    }
    *k = dk.download(), *v = dv.download(), *ks = dks.download(), *vs = dvs.download();
  };
  std::vector<float> got, ks, vs;
  std::vector<std::uint8_t> k, v;
  run(row_sequence, &got, &k, &v, &ks, &vs);

  std::vector<std::uint8_t> expected_k(k.size(), 0xff), expected_v(v.size(), 0xff);
  std::vector<float> expected_ks(slots, 777.0f), expected_vs(slots, 777.0f);
  // What the cache must hold follows exactly from the rotated keys, and from the values.
  const auto store = [&](const float* from, int count, float multiplier, std::size_t slot,
                         std::vector<std::uint8_t>* to, std::vector<float>* scales) {
    float top = 1e-10f;
    for (int i = 0; i < count; ++i) top = std::max(top, std::fabs(from[i] * multiplier));
    const float scale = top / 448.0f;
    for (int i = 0; i < count; ++i) {
      const float value = from[i] * multiplier;
      if (c.fp8) {
        (*to)[slot * count + i] = __nv_cvt_float_to_fp8(value / scale, __NV_SATFINITE, __NV_E4M3);
      } else {
        const std::uint16_t two = bits(value);
        std::memcpy(to->data() + (slot * count + i) * 2, &two, 2);
      }
    }
    if (c.fp8) (*scales)[slot] = scale;
  };
  for (int r = 0; r < rows; ++r) {
    const float* before = x.data() + r * row_stride;
    const float* after = got.data() + r * row_stride;
    const int s = row_sequence[r];
    if (s < 0) {
      EXPECT_EQ(std::memcmp(before, after, row_stride * 4), 0) << r;
      continue;
    }
    const int at = position[s] + r - row_begin[s];
    const int page = pages[s * stride + at / c.page_size];
    for (int h = 0; h < c.q_heads + c.kv_heads; ++h) {
      const float* a = before + h * c.qk_dim;
      const float* b = after + h * c.qk_dim;
      for (int i = 0; i < c.qk_dim; ++i) {
        if (i >= c.rotary) {
          ASSERT_EQ(a[i], b[i]) << r << " head " << h << " " << i;
          continue;
        }
        const int j = i % (c.rotary / 2);
        const double angle = static_cast<float>(at) * frequencies[j];
        const double low = a[j], high = a[j + c.rotary / 2];
        const double expected = i < c.rotary / 2 ? low * std::cos(angle) - high * std::sin(angle)
                                                 : high * std::cos(angle) + low * std::sin(angle);
        ASSERT_NEAR(b[i], expected, (c.act_bf16 ? 0.004 : 1e-6) * (std::fabs(low) + std::fabs(high)))
            << r << " head " << h << " " << i;
      }
    }
    for (int h = 0; h < c.kv_heads; ++h) {
      const std::size_t slot =
          (static_cast<std::size_t>(page) * c.kv_heads + h) * c.page_size + at % c.page_size;
      store(after + (c.q_heads + h) * c.qk_dim, c.qk_dim, 1.0f, slot, &expected_k, &expected_ks);
      store(before + (c.q_heads + c.kv_heads) * c.qk_dim + h * c.v_dim, c.v_dim, 0.707f, slot, &expected_v,
            &expected_vs);
    }
    EXPECT_EQ(std::memcmp(before + width, after + width, (row_stride - width) * 4), 0) << r;
  }
  EXPECT_EQ(k, expected_k);
  EXPECT_EQ(v, expected_v);
  EXPECT_EQ(ks, expected_ks);
  EXPECT_EQ(vs, expected_vs);

  // The last row of the last sequence alone.
  std::vector<float> alone;
  run({-1, -1, -1, -1, -1, 2, -1, -1}, &alone, &k, &v, &ks, &vs);
  for (int r = 0; r < rows; ++r) {
    const float* expected = (r == 5 ? got : x).data() + r * row_stride;
    EXPECT_EQ(std::memcmp(alone.data() + r * row_stride, expected, row_stride * 4), 0) << r;
  }
}

TEST(ElementwiseTest, RopeAndStore) {
  std::mt19937 random(2);
  for (const bool fp8 : {false, true}) {
    for (const bool act_bf16 : {true, false}) {
      for (const int page_size : {1, 3, 16, 64}) {
        run_rope({64, 4, 192, 128, 64, page_size, fp8, act_bf16}, random);
        run_rope({5, 1, 128, 128, 128, page_size, fp8, act_bf16}, random);
        run_rope({16, 2, 128, 128, 64, page_size, fp8, act_bf16}, random);
        run_rope({3, 3, 64, 32, 32, page_size, fp8, act_bf16}, random);  // by the kernel for any shape
        run_rope({3, 1, 192, 128, 48, page_size, fp8, act_bf16}, random);
      }
    }
  }
}

TEST(ElementwiseTest, GatherRows) {
  std::mt19937 random(3);
  for (const int words : {1, 3, 4, 1000, 4096, 70001}) {
    std::vector<std::uint32_t> from(7 * static_cast<std::size_t>(words));
    for (std::uint32_t& word : from) word = random();
    const std::vector<std::int32_t> index = {6, 0, 3, 3, 5};
    const DeviceArray<std::uint32_t> dfrom(from), to(std::vector<std::uint32_t>(index.size() * words, 7));
    const DeviceArray<std::int32_t> dindex(index);
    gather_rows(to.get(), dfrom.get(), static_cast<std::size_t>(words) * 4, dindex.get(), 5, nullptr);
    MIMO_CUDA(cudaDeviceSynchronize());
    const std::vector<std::uint32_t> got = to.download();
    for (std::size_t i = 0; i < index.size(); ++i) {
      EXPECT_TRUE(
          std::equal(got.begin() + i * words, got.begin() + (i + 1) * words, from.begin() + index[i] * words))
          << words << " " << i;
    }
  }
}

TEST(ElementwiseTest, EmbedRows) {
  std::mt19937 random(4);
  for (const LinearFormat format : {LinearFormat::kF32, LinearFormat::kBF16}) {
    for (const int cols : {1, 3, 8, 100, 200, 4096, 4100}) {
      LinearWeight table{format, 300, cols, nullptr, nullptr};
      const int element = linear_element_bytes(format);
      std::vector<std::uint8_t> data(linear_data_bytes(table), 0);
      const std::vector<float> dense = normal(300 * static_cast<std::size_t>(cols), random);
      for (int r = 0; r < 300; ++r) {
        for (int i = 0; i < cols; ++i) {
          const float value = dense[static_cast<std::size_t>(r) * cols + i];
          const std::uint16_t two = bits(value);
          std::memcpy(data.data() + linear_offset(r, i * element, linear_k_blocks(format, cols)),
                      format == LinearFormat::kF32 ? static_cast<const void*>(&value) : &two, element);
        }
      }
      const DeviceArray<std::uint8_t> ddata(data);
      table.data = ddata.get();
      const std::vector<std::int32_t> ids = {299, 0, 127, 128, 5};
      const DeviceArray<std::int32_t> dids(ids);
      const DeviceArray<float> out(std::vector<float>(ids.size() * cols + 8, 777.0f));
      embed_rows(table, dids.get(), 5, out.get(), nullptr);
      MIMO_CUDA(cudaDeviceSynchronize());
      const std::vector<float> got = out.download();
      for (std::size_t i = 0; i < got.size(); ++i) {
        const float value =
            i < ids.size() * cols ? dense[ids[i / cols] * static_cast<std::size_t>(cols) + i % cols] : 777.0f;
        ASSERT_EQ(got[i], format == LinearFormat::kF32 || value == 777.0f ? value : bf16(value))
            << cols << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace mimo::cuda
