// The oracle backend: plain fp32 loops in the order of the equations, weights dequantised row by row from a
// copy of their stored bytes. Slow on purpose.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace mimo {

std::unique_ptr<Ops> make_reference_ops();

}  // namespace mimo
