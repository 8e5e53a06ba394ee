// Uploads: many in a launch, in order where they meet, and none to memory that is gone.
#include "ops/cuda/device.h"

#include <gtest/gtest.h>

#include <numeric>

namespace mimo::cuda {
namespace {

std::unique_ptr<Device> open_device() {
  Result<std::unique_ptr<Device>> device = Device::open(0);
  if (!device) throw std::runtime_error(device.error().message);
  return std::move(*device);
}

std::vector<std::uint8_t> bytes_of(std::size_t count, int seed) {
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(i * 7 + i / 251 + seed);
  return bytes;
}

std::unique_ptr<Buffer> buffer_of(Device& device, std::size_t bytes) {
  Result<std::unique_ptr<Buffer>> buffer = device.allocate(bytes);
  if (!buffer) throw std::runtime_error(buffer.error().message);
  return std::move(*buffer);
}

TEST(DeviceTest, UploadsOfAllSizesArrive) {
  const auto device = open_device();
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<std::vector<std::uint8_t>> sent;
    for (const std::size_t size : {4U,  3U,    20U,      1U, 4096U, 65540U, 262144U, 262148U, 12U, 16U,
                                   64U, 1028U, 9000000U, 8U, 40U,   44U,    48U,     52U,     56U, 60U}) {
      sent.push_back(bytes_of(size, round));
      buffers.push_back(buffer_of(*device, size + 4));
      // Every other one begins at a multiple of 4 only.
      auto* to = static_cast<std::byte*>(buffers.back()->data()) + sent.size() % 2 * 4;
      std::vector<std::uint8_t> changed = sent.back();
      device->upload(to, changed.data(), size);
      std::fill(changed.begin(), changed.end(), std::uint8_t{0xee});  // the caller's memory is its own again
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
      std::vector<std::uint8_t> got(sent[i].size());
      device->download(got.data(), static_cast<std::byte*>(buffers[i]->data()) + (i + 1) % 2 * 4, got.size());
      EXPECT_EQ(got, sent[i]) << sent[i].size() << " bytes";
    }
  }
}

TEST(DeviceTest, TheLastUploadToAPlaceStands) {
  const auto device = open_device();
  const auto buffer = buffer_of(*device, 4096);
  for (int seed = 0; seed < 40; ++seed) {
    const auto all = bytes_of(4096, seed);
    const auto part = bytes_of(400, seed + 1);
    device->upload(buffer->data(), all.data(), all.size());
    device->upload(static_cast<std::byte*>(buffer->data()) + 100, part.data(), part.size());
  }
  std::vector<std::uint8_t> expected = bytes_of(4096, 39);
  const auto part = bytes_of(400, 40);
  std::copy(part.begin(), part.end(), expected.begin() + 100);
  std::vector<std::uint8_t> got(4096);
  device->download(got.data(), buffer->data(), got.size());
  EXPECT_EQ(got, expected);
}

TEST(DeviceTest, UploadsToFreedMemoryAreDropped) {
  const auto device = open_device();
  const auto kept = buffer_of(*device, 1024);
  const auto bytes = bytes_of(1024, 5);
  for (int i = 0; i < 100; ++i) {
    auto gone = buffer_of(*device, 32 << 20);
    device->upload(static_cast<std::byte*>(gone->data()) + 4096, bytes.data(), bytes.size());
    device->upload(kept->data(), bytes.data(), bytes.size());
    gone.reset();
    device->wait();
  }
  std::vector<std::uint8_t> got(1024);
  device->download(got.data(), kept->data(), got.size());
  EXPECT_EQ(got, bytes);
}

}  // namespace
}  // namespace mimo::cuda
