#include "ops/ops.h"

namespace mimo {

const char* kv_dtype_name(KvDType dtype) {
  switch (dtype) {
    case KvDType::kF32:
      return "f32";
    case KvDType::kBF16:
      return "bf16";
    case KvDType::kFp8:
      return "fp8_e4m3";
  }
  return "?";
}

}  // namespace mimo
