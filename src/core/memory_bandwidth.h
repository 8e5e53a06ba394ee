// The roof that generation is compared with.
#pragma once

#include "core/thread_pool.h"

namespace mimo {

// Highest rate (bytes a second) at which the pool's threads read memory that no cache holds: best of a few
// passes over `megabytes` MiB.
double measure_read_bandwidth(ThreadPool& pool, int megabytes);

}  // namespace mimo
