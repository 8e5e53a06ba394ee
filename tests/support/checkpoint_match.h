// Compares everything a WeightSource hands out with the plain reader.
#pragma once

#include "checkpoint/weight_source.h"
#include "support/plain_checkpoint.h"

namespace mimo::testing {

// Adds GoogleTest failures for every view or vector that differs. `chunks`: stored chunks of a fused QKV
// matrix.
void expect_globals_match(WeightSource& source, const PlainCheckpoint& plain);
void expect_layer_matches(WeightSource& source, const PlainCheckpoint& plain, int layer, Shard shard,
                          int chunks);
void expect_mtp_matches(WeightSource& source, const PlainCheckpoint& plain, int head, Shard shard,
                        int chunks);

}  // namespace mimo::testing
