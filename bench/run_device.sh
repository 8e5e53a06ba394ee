#!/usr/bin/env bash
# Everything that needs a GPU, in one command: builds, runs the kernel tests (also under compute-sanitizer), compares
# answers of the bundled model with the CPU's, and prints the tables of docs/performance.md.
#
#   bench/run_device.sh [--prebuilt DIR] [--out DIR] [--part NAME]...
#
# --prebuilt DIR  takes mimo, test_cuda_* and bench_cuda_* from DIR instead of building
# --out DIR       raw output, default: bench/results/device
# --part NAME     only these: tests, sanitizer, answers, kernels, model, seeds
set -uo pipefail
cd "$(dirname "$0")/.." || exit
root=$PWD prebuilt='' out=bench/results/device parts=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --prebuilt) prebuilt=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --part) parts+=("$2"); shift 2 ;;
    *) echo "run_device.sh: unknown argument '$1' (expected --prebuilt DIR, --out DIR or --part NAME)" >&2; exit 2 ;;
  esac
done
[[ ${#parts[@]} -gt 0 ]] || parts=(tests sanitizer answers kernels model seeds)
mkdir -p "$out"
export MIMO_SOURCE=$root
failed=0

if [[ -n $prebuilt ]]; then
  bin=$prebuilt
  [[ ! -d $bin/lib ]] || export LD_LIBRARY_PATH=$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
else
  scripts/setup --build
  cmake --preset cuda --log-level=WARNING >/dev/null && cmake --build build-cuda -j "$(nproc)" || exit 1
  bin=$out/bin
  mkdir -p "$bin"
  find build-cuda/mimo build-cuda/tests/test_cuda_* build-cuda/bench/bench_cuda_* -maxdepth 0 -type f -executable \
    -exec cp {} "$bin" \;
fi

say() { printf '\n== %s\n' "$*"; }
# limited SECONDS NAME COMMAND...: keeps what it prints in NAME.txt; one that hangs is ended.
limited() {
  local seconds=$1 name=$2 status
  shift 2
  timeout -s KILL "$seconds" "$@" >"$out/$name.txt" 2>&1
  status=$?
  [[ $status -eq 0 ]] || { failed=$((failed + 1)); echo "FAILED ($status): $name"; }
  return $status
}

# small_tests PROGRAM: the tests of it that have small cases of every kernel; nothing where there are none.
small_tests() {
  case $1 in
    test_cuda_activation_quant*) echo '*' ;;
    test_cuda_attention_decode*) echo '*.RandomShapesAgreeWithDouble:*.OtherShapesAreRefused' ;;
    test_cuda_attention_plain*) echo '*.RandomShapesAgreeWithDouble' ;;
    test_cuda_attention_prefill*) echo 'Seeds/AttentionPrefill.RandomShapesMatchDouble/0' ;;
    test_cuda_experts_plain*) echo '*' ;;
    test_cuda_experts*) echo 'Experts.Small:Experts.RefusesOtherShapes:PrefillExperts.Shapes' ;;
    test_cuda_linear_large* | test_cuda_linear_plain* | test_cuda_linear_small*) echo '*.MatchesDouble' ;;
    test_cuda_moe_route*) echo '*' ;;
    test_cuda_device*) echo '*.TheLastUploadToAPlaceStands' ;;
    test_cuda_sample*) echo '*.Greedy:*.RowsThatCannotBeSampled:*.CutsBetweenTies' ;;
    test_cuda_elementwise*) echo '*.GatherRows' ;;
    test_cuda_ops*) echo '*CudaOpsTest.LinearOfFusedChunks/Bf16:*CudaOpsTest.Route/Bf16:*CudaOpsTest.RopeAndStore/Bf16:*CudaOpsTest.Norms/Bf16' ;;
  esac
}

say "device"
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,memory.total --format=csv,noheader
date -u +%F

for part in "${parts[@]}"; do
  case $part in
    tests)
      say "kernel tests"
      for program in "$bin"/test_cuda_*; do
        name=$(basename "$program")
        limited 60 "$name" "$program" --gtest_brief=1
        printf '%-36s %s\n' "$name" "$(tail -n 1 "$out/$name.txt")"
      done
      ;;
    sanitizer)
      # Small cases (tests/cuda/small_cases.h): the checkers make kernels some hundred times slower, and starting a program
      # takes seconds, so that all run at once.
      for tool in memcheck racecheck; do
        say "compute-sanitizer $tool, 40 s for each program"
        for program in "$bin"/test_cuda_*; do
          name=$(basename "$program")
          small=$(small_tests "$name")
          [[ -n $small ]] || continue
          (
            MIMO_SMALL_CASES=1 timeout -s KILL 40 compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" \
              --gtest_brief=1 --gtest_filter="$small" >"$out/${tool}_$name.txt" 2>&1
            echo $? >"$out/${tool}_$name.status"
          ) &
        done
        wait
        for program in "$bin"/test_cuda_*; do
          name=$(basename "$program")
          [[ -n $(small_tests "$name") ]] || continue
          status=$(cat "$out/${tool}_$name.status")
          passed=$(grep -oE 'PASSED  \] [0-9]+ tests?' "$out/${tool}_$name.txt" | tail -n 1)
          if [[ $status -ne 0 || -z $passed || $passed == *' 0 tests' ]]; then
            failed=$((failed + 1))
            echo "FAILED ($status): $tool $name"
          fi
          printf '%-36s %s; %s\n' "$name" "${passed#PASSED  ] }" "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/${tool}_$name.txt" | tail -n 1)"
        done
      done
      ;;
    answers)
      say "the bundled model: answers as on the CPU"
      # The CPU's ids in its exact mode, BF16 and FP8 keys and values.
      for kv in bf16 fp8; do
        limited 120 "answers_cpu_$kv" "$bin/mimo" eval nano-gsm --model models/nano --limit 200 --device cpu --activations exact \
          --kv-cache-dtype $kv --speculative-algorithm NONE --concurrency 16 --output "$out/answers_cpu_$kv.jsonl"
        for mode in exact fast w4a8; do
          flags=(--activations $mode)
          [[ $mode != w4a8 ]] || flags=(--activations fast --expert-activations fp8)
          for drafter in NONE DFLASH MTP; do
            name=answers_${mode}_${kv}_$drafter
            limited 30 "$name" "$bin/mimo" eval nano-gsm --model models/nano --limit 200 --device cuda "${flags[@]}" \
              --kv-cache-dtype $kv --speculative-algorithm $drafter --concurrency 8 --output "$out/$name.jsonl" || continue
            "$bin/mimo" eval compare "$out/answers_cpu_$kv.jsonl" "$out/$name.jsonl" >"$out/$name.compare.txt" 2>&1
            printf '%-5s %-4s %-6s ' $mode $kv $drafter
            awk '/correct in B/ {c = $4 "/" $6} /identical ids/ {i = $3 "/" $5} END {printf "right %s identical %s ", c, i}' \
              "$out/$name.compare.txt"
            grep -oE 'generated.*' "$out/$name.txt"
            rm -f "$out/$name.jsonl"
          done
        done
        rm -f "$out/answers_cpu_$kv.jsonl"
      done
      ;;
    kernels)
      for program in "$bin"/bench_cuda_*; do
        name=$(basename "$program")
        say "$name"
        limited 60 "$name" "$program"
        cat "$out/$name.txt"
      done
      ;;
    model)
      say "12 layers of V2.6-Flash at full size, random weights"
      limited 150 model "$bin/mimo" bench model --load-format random --config bench/configs/v26-flash-12.json --device cuda \
        --speculative-algorithm DFLASH --speculative-draft-config bench/configs/v26-flash-12-dflash.json \
        -p 2048,8192 --chunked-prefill-size 8192 -n 16 -d 2048,46000,180000 -b 1,4,32 -w 1,8 -r 3
      tail -n 50 "$out/model.txt"
      say "the same prompts with FP8 activations before experts (W4A8)"
      limited 60 model_w4a8 "$bin/mimo" bench model --load-format random --config bench/configs/v26-flash-12.json --device cuda \
        --expert-activations fp8 -p 2048,8192 --chunked-prefill-size 8192 -n 0 -r 3
      tail -n 3 "$out/model_w4a8.txt"
      say "the fixed part of a step"
      limited 40 overhead python3 bench/step_overhead.py --mimo "$bin/mimo" --device cuda
      cat "$out/overhead.txt"
      ;;
    seeds)
      say "the portable path against the fast one, one request at a time"
      # Shorter answers on the portable path: a decoded token takes as long in each of them.
      limited 150 seeds python3 bench/portable_path.py --mimo "$bin/mimo" --device cuda --limit 140 --portable-output-len 256
      cat "$out/seeds.txt"
      ;;
    *) echo "run_device.sh: unknown part '$part'" >&2; exit 2 ;;
  esac
done
say "$failed failed"
[[ $failed -eq 0 ]]
