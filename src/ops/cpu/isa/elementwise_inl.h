// Row-wise kernels: rounding of activations, norms, rotation, KV conversions. Included after gemm_inl.h.

namespace mimo::MIMO_ISA {
namespace {

// x[i .. i + 16) with zeros past the end.
inline F load_tail(const float* x, std::int64_t i, std::int64_t count) {
  if (i + 16 <= count) return f_load(x + i);
  float tail[16] = {};
  for (std::int64_t j = i; j < count; ++j) tail[j - i] = x[j];
  return f_load(tail);
}

// Integers of one group: q = round(x * limit / max|x|). A non-finite input turns the scale into NaN (0 * x is
// NaN for infinities and NaN alike), so that it reaches the output.
struct GroupScale {
  float scale;    // x = q * scale
  float inverse;  // q = x * inverse
};
inline GroupScale group_scale(I magnitudes, float limit) {
  constexpr std::int32_t kInfinity = 0x7F800000;
  const std::int32_t top = i_hmax(magnitudes);
  if (top >= kInfinity) return {__builtin_nanf(""), 0.0f};
  const float largest = as_float(static_cast<std::uint32_t>(top));
  // Below this the inverse would overflow; such a group is zero to any reader.
  if (largest <= 1e-35f) return {0.0f, 0.0f};
  return {largest / limit, limit / largest};
}

// The integers of one group, `plane` by plane: the second rounds what the first left over. `store(plane, i,
// v)` takes 16 integral floats for columns [i, i + 16) of the group; returns the scales.
template <int Size, class Store>
inline void quantize_group(const float* x, std::int64_t begin, std::int64_t count, float limit, int planes,
                           float* scale, std::size_t plane_stride, const Store& store) {
  F rest[Size / 16];
  for (int i = 0; i < Size / 16; ++i) rest[i] = load_tail(x, begin + i * 16, count);
  for (int plane = 0; plane < planes; ++plane) {
    I top = i_zero();
    for (int i = 0; i < Size / 16; ++i) top = i_max(top, i_magnitude(rest[i]));
    const GroupScale s = group_scale(top, limit);
    const F inverse = f_set(s.inverse);
    const F step = f_set(s.scale);
    for (int i = 0; i < Size / 16; ++i) {
      const F q = f_round(f_mul(rest[i], inverse));
      store(plane, i * 16, q);
      rest[i] = f_sub(rest[i], f_mul(q, step));
    }
    scale[static_cast<std::size_t>(plane) * plane_stride] = s.scale;
  }
}

inline void quantize(const PanelShape& shape, const float* x, std::uint32_t* q, float* scale,
                     std::int32_t* correction) {
  const std::int64_t k = shape.k;
  const std::int64_t padded = shape.k_padded;
  switch (shape.kind) {
    case PackedKind::kF32:
    case PackedKind::kBf16: {
      __builtin_memcpy(q, x, static_cast<std::size_t>(k) * sizeof(float));
      for (std::int64_t i = k; i < padded; ++i) q[i] = 0;
      return;
    }
    case PackedKind::kInt16:
    case PackedKind::kFp8: {
      auto* out = reinterpret_cast<std::uint16_t*>(q);
      const std::int64_t groups = padded / kWideGroup;
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::int64_t begin = g * kWideGroup;
        quantize_group<kWideGroup>(
            x, begin, k, 1023.0f, shape.planes, scale + g, static_cast<std::size_t>(groups),
            [&](int plane, int i, F v) { store_i16(out + plane * padded + begin + i, v); });
      }
      return;
    }
    case PackedKind::kInt8:
    case PackedKind::kMxfp4: {
      auto* out = reinterpret_cast<std::uint8_t*>(q);
      const std::int64_t groups = padded / kMxfp4Group;
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::int64_t begin = g * kMxfp4Group;
        F sums[2][2] = {{f_zero(), f_zero()}, {f_zero(), f_zero()}};  // [plane][block]; small integers: exact
        quantize_group<kMxfp4Group>(x, begin, k, 127.0f, shape.planes, scale + g,
                                    static_cast<std::size_t>(groups), [&](int plane, int i, F v) {
                                      F& sum = sums[plane][i / static_cast<int>(kMxfp4Block)];
                                      sum = f_add(sum, v);
                                      store_i8(out + plane * padded + begin + i, v);
                                    });
        for (int plane = 0; plane < shape.planes; ++plane) {
          const std::int64_t at = plane * groups + g;
          std::int32_t* to = correction + at * 3;
          // A poisoned group has a NaN scale; its integers only have to be defined.
          float sum[2] = {0.0f, 0.0f};
          if (scale[at] == scale[at]) f_hsum_pair(sums[plane][0], sums[plane][1], sum[0], sum[1]);
          const auto first = static_cast<std::int32_t>(sum[0]);
          const auto second = static_cast<std::int32_t>(sum[1]);
          to[0] = -12 * first;
          to[1] = -12 * second;
          to[2] = -kByteOffset * (first + second);
        }
      }
      return;
    }
  }
}

inline void rms_norm(const float* x, std::int64_t width, const float* weight, float eps, float* out) {
  F sums[4] = {f_zero(), f_zero(), f_zero(), f_zero()};
  for (std::int64_t i = 0; i < width; i += 16) {
    const F v = load_tail(x, i, width);
    F& sum = sums[(i / 16) % 4];
    sum = f_fma(v, v, sum);
  }
  const float total = f_hsum(f_add(f_add(sums[0], sums[1]), f_add(sums[2], sums[3])));
  const float scale = 1.0f / __builtin_sqrtf(total / static_cast<float>(width) + eps);
  const std::int64_t whole = width / 16 * 16;
  for (std::int64_t i = 0; i < whole; i += 16) {
    f_store(out + i, f_mul(f_mul(f_load(x + i), f_set(scale)), f_load(weight + i)));
  }
  for (std::int64_t i = whole; i < width; ++i) out[i] = x[i] * scale * weight[i];
}

inline void add_scaled(const float* x, std::int64_t count, float scale, float* y) {
  const std::int64_t whole = count / 16 * 16;
  const F factor = f_set(scale);
  for (std::int64_t i = 0; i < whole; i += 16) f_store(y + i, f_fma(factor, f_load(x + i), f_load(y + i)));
  for (std::int64_t i = whole; i < count; ++i) y[i] = __builtin_fmaf(scale, x[i], y[i]);
}

inline void best_token(const float* x, std::int64_t count, std::int32_t* id, float* probability) {
  const std::int64_t whole = count / 16 * 16;
  // A tail repeats the row's last logit, which changes no maximum.
  float tail[16];
  for (std::int64_t i = 0; i < 16; ++i) tail[i] = x[whole + i < count ? whole + i : count - 1];
  F top = f_load(tail);
  F poison = f_mul(top, f_zero());
  for (std::int64_t i = 0; i < whole; i += 16) {
    const F v = f_load(x + i);
    top = f_max(top, v);
    poison = f_fma(v, f_zero(), poison);
  }
  const float largest = f_hmax(top);
  if (!(f_hsum(poison) == 0.0f)) {
    *id = -1;
    if (probability != nullptr) *probability = __builtin_nanf("");
    return;
  }
  std::int64_t best = 0;
  while (x[best] != largest) ++best;
  *id = static_cast<std::int32_t>(best);
  if (probability == nullptr) return;
  F sum = f_zero();
  const F shift = f_set(largest);
  for (std::int64_t i = 0; i < whole; i += 16) sum = f_add(sum, f_exp(f_sub(f_load(x + i), shift)));
  float lanes[16];
  f_store(lanes, f_exp(f_sub(f_load(tail), shift)));
  float total = f_hsum(sum);
  for (std::int64_t i = whole; i < count; ++i) total += lanes[i - whole];
  *probability = 1.0f / total;
}

inline void rope(float* x, int heads, int stride, const float* cos, const float* sin, int dims) {
  const int half = dims / 2;
  for (int h = 0; h < heads; ++h) {
    float* first = x + static_cast<std::ptrdiff_t>(h) * stride;
    float* second = first + half;
    int i = 0;
    for (; i + 16 <= half; i += 16) {
      const F a = f_load(first + i);
      const F b = f_load(second + i);
      const F c = f_load(cos + i);
      const F s = f_load(sin + i);
      f_store(first + i, f_sub(f_mul(a, c), f_mul(b, s)));
      f_store(second + i, f_add(f_mul(b, c), f_mul(a, s)));
    }
    for (; i < half; ++i) {
      const float a = first[i];
      const float b = second[i];
      first[i] = a * cos[i] - b * sin[i];
      second[i] = b * cos[i] + a * sin[i];
    }
  }
}

inline void to_bf16(const float* x, std::int64_t count, float multiplier, std::uint16_t* out) {
  const std::int64_t whole = count / 16 * 16;
  const F m = f_set(multiplier);
  for (std::int64_t i = 0; i < whole; i += 16) store_bf16(out + i, f_mul(f_load(x + i), m));
  if (whole < count) {
    std::uint16_t tail[16];
    store_bf16(tail, f_mul(load_tail(x, whole, count), m));
    for (std::int64_t i = whole; i < count; ++i) out[i] = tail[i - whole];
  }
}

// E4M3 by adding a number that pushes the unwanted mantissa bits out: exact round-to-nearest-even for normals
// and subnormals alike.
inline std::uint8_t fp8_code(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  const std::uint32_t sign = bits >> 24 & 0x80u;
  float magnitude = __builtin_fabsf(x);
  if (!(magnitude <= 448.0f))
    return static_cast<std::uint8_t>(sign | (magnitude != magnitude ? 0x7Fu : 0x7Eu));
  std::uint32_t code;
  if (magnitude < 0.015625f) {
    const float shifted = magnitude + 16384.0f;  // the ulp of 2^14 is 2^-9, the E4M3 subnormal step
    std::uint32_t s;
    __builtin_memcpy(&s, &shifted, sizeof(s));
    code = s & 0xFu;
  } else {
    std::uint32_t m;
    __builtin_memcpy(&m, &magnitude, sizeof(m));
    m += 0x7FFFFu + (m >> 20 & 1u);
    code = (m >> 20) - (120u << 3);
    if (code > 0x7Eu) code = 0x7Eu;
  }
  return static_cast<std::uint8_t>(sign | code);
}

inline float to_fp8(const float* x, std::int64_t count, float multiplier, std::uint8_t* out) {
  F top = f_zero();
  F poison = f_zero();
  const F m = f_set(multiplier);
  for (std::int64_t i = 0; i < count; i += 16) {
    const F v = f_mul(load_tail(x, i, count), m);
    top = f_max(top, f_abs(v));
    poison = f_fma(v, f_zero(), poison);
  }
  const float largest = f_hmax(top);
  const float scale = (largest > 1e-10f ? largest : 1e-10f) / 448.0f + f_hsum(poison);
  for (std::int64_t i = 0; i < count; ++i) out[i] = fp8_code(x[i] * multiplier / scale);
  return scale;
}

inline void fp8_to_bf16(const std::uint8_t* x, std::int64_t count, std::uint16_t* out) {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) fp8_to_bf16_16(x + i, out + i);
  if (i < count) {
    std::uint8_t in[16] = {};
    std::uint16_t converted[16];
    for (std::int64_t j = i; j < count; ++j) in[j - i] = x[j];
    fp8_to_bf16_16(in, converted);
    for (std::int64_t j = i; j < count; ++j) out[j] = converted[j - i];
  }
}

inline void mask_tile(const std::uint16_t* k, const std::uint16_t* v, int qk_dim, int v_dim, int first,
                      int last, std::uint16_t* k_out, std::uint16_t* v_out) {
  alignas(64) std::uint32_t lanes[kTileKeys];
  for (int t = 0; t < kTileKeys; ++t) lanes[t] = t >= first && t < last ? 0xFFFFFFFFu : 0u;
  const I keep = v_load(lanes);
  for (int d = 0; d < qk_dim / 2; ++d) v_store(k_out + d * 32, i_and(v_load(k + d * 32), keep));
  for (int pair = 0; pair < kTileKeys / 2; ++pair) {
    const std::uint32_t both = (lanes[2 * pair] & 0xFFFFu) | (lanes[2 * pair + 1] & 0xFFFF0000u);
    const I mask = i_set(static_cast<std::int32_t>(both));
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(pair) * v_dim * 2;
    for (int d = 0; d < v_dim * 2; d += 32) v_store(v_out + row + d, i_and(v_load(v + row + d), mask));
  }
}

}  // namespace
}  // namespace mimo::MIMO_ISA
