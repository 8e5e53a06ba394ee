#include "support/plain_checkpoint.h"

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace mimo::testing {
namespace {

float bf16(const std::uint8_t* p) {
  const std::uint32_t bits = static_cast<std::uint32_t>(p[0] | (p[1] << 8)) << 16;
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

float fp32(const std::uint8_t* p) {
  float value = 0;
  std::memcpy(&value, p, 4);
  return value;
}

float e4m3(std::uint8_t b) {
  const int e = (b >> 3) & 15;
  const int m = b & 7;
  const double magnitude = e == 0 ? m / 8.0 * std::pow(2.0, -6) : (1.0 + m / 8.0) * std::pow(2.0, e - 7);
  return static_cast<float>((b & 128) != 0 ? -magnitude : magnitude);
}

float e2m1(int code) {
  const float table[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return (code & 8) != 0 ? -table[code & 7] : table[code & 7];
}

}  // namespace

PlainMatrix PlainMatrix::row_range(std::int64_t begin, std::int64_t count) const {
  PlainMatrix part{count, cols, {}};
  part.values.assign(values.begin() + begin * cols, values.begin() + (begin + count) * cols);
  return part;
}

PlainMatrix PlainMatrix::column_range(std::int64_t begin, std::int64_t count) const {
  PlainMatrix part{rows, count, {}};
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = values.begin() + r * cols + begin;
    part.values.insert(part.values.end(), row, row + count);
  }
  return part;
}

void PlainMatrix::append_rows(const PlainMatrix& other) {
  cols = other.cols;
  rows += other.rows;
  values.insert(values.end(), other.values.begin(), other.values.end());
}

PlainCheckpoint::PlainCheckpoint(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    const boost::json::value header = boost::json::parse(boost::json::string_view(bytes.data() + 8, length));
    for (const auto& [key, value] : header.as_object()) {
      if (key == "__metadata__") continue;
      PlainTensor tensor;
      tensor.dtype = value.at("dtype").as_string().c_str();
      for (const auto& dim : value.at("shape").as_array()) tensor.shape.push_back(dim.as_int64());
      const auto begin = value.at("data_offsets").as_array()[0].as_int64();
      const auto end = value.at("data_offsets").as_array()[1].as_int64();
      const char* data = bytes.data() + 8 + length;
      tensor.bytes.assign(data + begin, data + end);
      tensors_[std::string(key)] = std::move(tensor);
    }
  }
  if (tensors_.empty()) throw std::runtime_error(directory + ": no tensors");
}

std::vector<float> PlainCheckpoint::vector(const std::string& name) const {
  const PlainTensor& t = tensor(name);
  std::vector<float> values;
  for (std::int64_t i = 0; i < t.shape.at(0); ++i) {
    values.push_back(t.dtype == "F32" ? fp32(&t.bytes[static_cast<std::size_t>(4 * i)])
                                      : bf16(&t.bytes[static_cast<std::size_t>(2 * i)]));
  }
  return values;
}

const PlainMatrix& PlainCheckpoint::matrix(const std::string& module, int chunks) const {
  PlainMatrix& m = matrices_[{module, chunks}];
  if (m.rows != 0) return m;
  const PlainTensor& t = tensor(module + ".weight");
  m.rows = t.shape.at(0);
  m.cols = t.dtype == "U8" ? 2 * t.shape.at(1) : t.shape.at(1);
  const std::int64_t rows_per_chunk = m.rows / chunks;
  const std::int64_t scale_rows_per_chunk = (rows_per_chunk + 127) / 128;
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c = 0; c < m.cols; ++c) {
      const auto at = static_cast<std::size_t>(r * m.cols + c);
      if (t.dtype == "BF16") {
        m.values.push_back(bf16(&t.bytes[2 * at]));
      } else if (t.dtype == "F32") {
        m.values.push_back(fp32(&t.bytes[4 * at]));
      } else if (t.dtype == "F8_E4M3") {
        const PlainTensor& s = tensor(module + ".weight_scale_inv");
        const std::int64_t scale_row = r / rows_per_chunk * scale_rows_per_chunk + r % rows_per_chunk / 128;
        const auto scale_at = static_cast<std::size_t>(scale_row * s.shape.at(1) + c / 128);
        m.values.push_back(e4m3(t.bytes[at]) * fp32(&s.bytes.at(4 * scale_at)));
      } else {
        const PlainTensor& s = tensor(module + ".weight_scale");
        const std::uint8_t pair = t.bytes[at / 2];
        const int exponent = s.bytes[static_cast<std::size_t>(r * s.shape.at(1) + c / 32)] - 127;
        m.values.push_back(e2m1(c % 2 == 0 ? pair & 15 : pair >> 4) *
                           static_cast<float>(std::pow(2.0, exponent)));
      }
    }
  }
  return m;
}

PlainCheckpoint::Qkv PlainCheckpoint::qkv(const std::string& prefix, const AttentionShape& shape,
                                          int chunks) const {
  if (!has(prefix + "qkv_proj.weight")) {
    return {matrix(prefix + "q_proj"), matrix(prefix + "k_proj"), matrix(prefix + "v_proj")};
  }
  const PlainMatrix fused = matrix(prefix + "qkv_proj", chunks);
  Qkv out;
  const std::int64_t q = std::int64_t{shape.q_heads / chunks} * shape.qk_dim;
  const std::int64_t k = std::int64_t{shape.kv_heads / chunks} * shape.qk_dim;
  const std::int64_t v = std::int64_t{shape.kv_heads / chunks} * shape.v_dim;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t base = chunk * (q + k + v);
    out.q.append_rows(fused.row_range(base, q));
    out.k.append_rows(fused.row_range(base + q, k));
    out.v.append_rows(fused.row_range(base + q + k, v));
  }
  return out;
}

PlainMatrix to_matrix(const WeightView& view) {
  PlainMatrix m{view.rows, view.cols, std::vector<float>(static_cast<std::size_t>(view.rows * view.cols))};
  for (std::int64_t r = 0; r < view.rows; ++r) dequantize_row(view, r, m.values.data() + r * view.cols);
  return m;
}

}  // namespace mimo::testing
