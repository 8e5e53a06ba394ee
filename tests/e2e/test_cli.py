"""The command line around `generate`: help, version, inspect, plan and bench."""
import json
import re
import shutil

import pytest

from conftest import GOLDEN, ROOT, TINY

COMMANDS = [["generate"], ["inspect"], ["plan"], ["bench"], ["bench", "model"]]


def test_version(mimo):
    run = mimo("--version")
    assert run.status == 0
    assert re.fullmatch(r"mimo \d+\.\d+\.\d+\n", run.out)


def test_help_lists_the_commands(mimo):
    run = mimo("--help")
    assert run.status == 0 and run.err == ""
    for command in COMMANDS:
        assert command[0] in run.out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_a_command(mimo, command):
    run = mimo(*command, "--help")
    assert run.status == 0 and run.err == ""
    assert "--help" in run.out


@pytest.mark.parametrize("command", [["serve"], ["generate"], ["eval", "gsm8k"], ["bench", "model"]], ids=" ".join)
def test_help_names_the_attention_kernels(mimo, command):
    run = mimo(*command, "--help")
    phases = ["", "prefill-", "decode-", "speculative-draft-"]
    for phase in phases:
        assert f"--{phase}attention-backend" in run.out
    assert "blackwell_rtx" in run.out


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["--frobnicate"], ["bench"], ["bench", "frobnicate"],
                                       ["inspect"], ["plan", "DIR"]], ids=" ".join)
def test_incomplete_or_unknown_command(mimo, arguments):
    line = mimo(*arguments).refusal()
    if arguments and "frobnicate" in arguments[-1]:
        assert "frobnicate" in line


@pytest.mark.parametrize("directory, layers, qkv, chunks", [(GOLDEN / "v26_tiny", 7, "fused", 2), (TINY, 4, "fused", 2),
                                                            (GOLDEN / "v2flash_tiny", 6, None, None)],
                         ids=["v26_tiny", "tiny", "v2flash_tiny"])
def test_inspect(mimo, directory, layers, qkv, chunks):
    out = mimo("inspect", directory, "--json").json()
    config = json.loads((directory / "config.json").read_text())
    assert out["layers"] == layers == len(out["layer_table"])
    assert out["hidden"] == config["hidden_size"] and out["vocab"] == config["vocab_size"]
    assert out["complete"] is True and out["problems"] == []
    if qkv:  # the other one stores its router in bf16, which its config does not say
        assert out["bytes_stored"] == out["bytes_expected"]
        assert qkv in out["formats"]["qkv"] and out["formats"]["qkv_chunks"] == chunks
        assert out["formats"]["experts"] == "mxfp4"
    text = mimo("inspect", directory)
    assert text.status == 0
    assert out["member"] in text.out


def test_inspect_counts_the_bytes_of_the_files(mimo):
    index = json.loads((TINY / "model.safetensors.index.json").read_text())
    assert mimo("inspect", TINY, "--json").json()["bytes_stored"] == index["metadata"]["total_size"]


def test_inspect_shows_what_is_missing(mimo, tiny_copy):
    (tiny_copy / "model_pp0_ep1_shard0.safetensors").unlink()
    run = mimo("inspect", tiny_copy, "--json")
    assert run.status == 1
    out = json.loads(run.out)
    assert out["complete"] is False
    assert any("model_pp0_ep1_shard0.safetensors" in problem for problem in out["problems"])


def test_inspect_shows_the_drafter(mimo, tmp_path):
    config = json.loads((GOLDEN / "v26_tiny" / "dflash" / "config.json").read_text())
    drafter = mimo("inspect", GOLDEN / "v26_tiny", "--json").json()["drafter"]
    assert drafter["layers"] == config["num_hidden_layers"] and drafter["block"] == config["block_size"]
    assert drafter["target_layer_ids"] == config["dflash_config"]["target_layer_ids"]
    assert drafter["mask_embedding_norm"] > 0
    assert mimo("inspect", TINY, "--json").json()["drafter"] is None
    copy = shutil.copytree(GOLDEN / "v26_tiny", tmp_path / "copy")
    for name in ("mask_embedding.pt", "config.json"):
        (copy / "dflash" / name).write_text("{")
        run = mimo("inspect", copy, "--json")
        assert run.status == 1
        assert any(f"dflash/{name}" in problem for problem in json.loads(run.out)["problems"])
        assert "PROBLEM" in mimo("inspect", copy).out


def test_inspect_of_nothing(mimo, tmp_path):
    mimo("inspect", tmp_path / "nowhere").refusal("nowhere")
    mimo("inspect", tmp_path, "--json").refusal("config.json")


@pytest.mark.parametrize("directory", [GOLDEN / "v26_tiny", TINY], ids=["v26_tiny", "tiny"])
def test_plan(mimo, directory):
    out = mimo("plan", directory, "--memory", "1GiB", "--json").json()
    assert out["fits"] is True and out["memory_bytes"] == 2**30
    assert sum(row["bytes"] for row in out["rows"]) <= 2**30
    assert out["full_tokens"] >= out["context"] > 0
    assert mimo("plan", directory, "--memory", "1GiB").status == 0


def test_plan_follows_its_options(mimo):
    def plan(*options):
        return mimo("plan", TINY, "--memory", "256MiB", "--json", *options).json()

    bf16, fp8 = plan("--kv-cache-dtype", "bfloat16"), plan("--kv-cache-dtype", "fp8_e4m3")
    assert fp8["full_tokens"] > 1.5 * bf16["full_tokens"]
    many = plan("--max-running-requests", 64, "--context-length", 1024)
    assert many["max_running"] == 64 and many["context"] == 1024
    assert many["window_tokens"] > bf16["window_tokens"]


def test_plan_charges_the_drafter_that_would_run(mimo, tmp_path):
    shipped = GOLDEN / "v26_tiny"
    # The configs are enough. All layers of this drafter have a window, as the released ones do.
    (tmp_path / "dflash").mkdir()
    shutil.copy(shipped / "config.json", tmp_path)
    drafter = json.loads((shipped / "dflash" / "config.json").read_text())
    drafter["sliding_window"] = 64
    drafter["layer_types"] = ["sliding_attention"] * drafter["num_hidden_layers"]
    (tmp_path / "dflash" / "config.json").write_text(json.dumps(drafter))

    def plan(directory, *options):
        return mimo("plan", directory, "--memory", "256MiB", "--json", *options).json()

    def rows(*options):
        return {row["name"]: row["bytes"] for row in plan(tmp_path, *options)["rows"]}

    dflash, none = rows(), rows("--speculative-algorithm", "NONE")
    assert set(dflash) - set(none) == {"weights: drafter", "KV: drafter"}
    assert rows("--max-running-requests", 16)["KV: drafter"] == 2 * dflash["KV: drafter"]
    assert rows("--kv-cache-dtype", "fp8")["KV: drafter"] == dflash["KV: drafter"] / 2
    assert rows("--speculative-draft-model-path", tmp_path / "dflash") == dflash
    assert "drafter (8 x " in mimo("plan", tmp_path, "--memory", "256MiB").out
    # A drafter that sees all of the context needs as many tokens as the full layers.
    assert plan(shipped)["full_page_bytes"] > plan(shipped, "--speculative-algorithm", "NONE")["full_page_bytes"]
    assert "bytes a token" in mimo("plan", shipped, "--memory", "256MiB").out

    mimo("plan", TINY, "--memory", "1GiB", "--speculative-algorithm", "DFLASH").refusal("DFLASH", "dflash")
    mimo("plan", TINY, "--memory", "1GiB", "--speculative-algorithm", "NONE", "--speculative-draft-model-path",
         "x").refusal("--speculative-draft-model-path x", "no effect")
    (tmp_path / "dflash" / "config.json").unlink()
    mimo("plan", tmp_path, "--memory", "1GiB").refusal("dflash/config.json")


def test_plan_that_does_not_fit_says_what_would(mimo):
    run = mimo("plan", TINY, "--memory", "8MB", "--json")
    assert run.status == 1
    out = json.loads(run.out)
    assert out["fits"] is False and out["changes"]
    # What it proposes for the memory must hold.
    memory = next(change["value"] for change in out["changes"] if change["field"] == "memory")
    assert mimo("plan", TINY, "--memory", memory, "--json").json()["fits"] is True


@pytest.mark.parametrize("options, named", [
    (["--memory", "lots"], "lots"), (["--memory", "-1"], "-1"), (["--memory", "nan"], "nan"),
    (["--memory", "1e400"], "1e400"), (["--memory", "24XB"], "24XB"),
    (["--memory", "1GB", "--kv-cache-dtype", "int3"], "int3"), (["--memory", "1GB", "--max-running-requests", "0"], "0"),
    (["--memory", "1GB", "--context-length", "-5"], "-5"), (["--memory", "1GB", "--context-length", "9000"], "9000"),
])
def test_plan_refuses(mimo, options, named):
    mimo("plan", TINY, *options).refusal(named)


def test_bench_model_on_random_weights(mimo):
    out = mimo("bench", "model", "--load-format", "random", "--config", GOLDEN / "v26_tiny" / "config.json", "-p", 16, "-n",
               4, "-d", "0,8", "-t", 2, "-r", 1, "--json").json()
    assert [row["test"] for row in out["results"]] == ["pp16", "tg4 @ d0", "tg4 @ d8"]
    assert all(row["tokens_per_second"] > 0 for row in out["results"])
    assert out["results"][0]["ttft_seconds"] == pytest.approx(16 / out["results"][0]["tokens_per_second"])
    assert out["threads"] == 2
    # All that a token reads is part of what is stored.
    assert 0 < out["weight_bytes_per_token"] <= out["weight_bytes"]


def test_bench_model_of_batches_and_blocks(mimo):
    out = mimo("bench", "model", "--load-format", "random", "--config", GOLDEN / "v26_tiny" / "config.json", "-p", 0, "-n",
               2, "-d", 300, "-b", "1,3", "-w", "1,4", "-t", 2, "-r", 1, "--json").json()
    rows = {row["test"]: row for row in out["results"]}
    assert list(rows) == ["tg2 @ d300 b1", "verify4 @ d300 b1", "tg2 @ d300 b3", "verify4 @ d300 b3"]
    # A row of a larger step has a smaller share of the weights.
    assert rows["verify4 @ d300 b3"]["bytes_per_token"] < rows["verify4 @ d300 b1"]["bytes_per_token"]
    assert rows["verify4 @ d300 b1"]["bytes_per_token"] < rows["tg2 @ d300 b1"]["bytes_per_token"]
    assert all(row["step_seconds"] > 0 for row in rows.values())


def test_bench_model_of_whole_steps_with_drafts(mimo):
    options = ["--load-format", "random", "--config", ROOT / "models/nano/config.json", "--speculative-algorithm", "DFLASH",
               "--speculative-draft-config", ROOT / "models/nano/dflash/config.json", "-p", 16, "-n", 2, "-d", "0,300", "-b", "1,3",
               "-t", 2, "-r", 1]
    out = mimo("bench", "model", *options, "--json").json()
    steps = {row["test"]: row for row in out["draft_steps"]}
    assert list(steps) == ["DFLASH8 @ d0 b1", "DFLASH8 @ d0 b3", "DFLASH8 @ d300 b1", "DFLASH8 @ d300 b3"]
    assert out["drafter_weight_bytes"] > 1e6
    for step in steps.values():
        assert list(step["speedup_at_accept_length"]) == ["2", "3", "4", "5", "6"]
        assert step["speedup_at_accept_length"]["4"] == pytest.approx(4 * step["decode_step_seconds"] / step["step_seconds"])
        assert step["even_accept_length"] == pytest.approx(step["step_seconds"] / step["decode_step_seconds"])
    text = mimo("bench", "model", *options)
    assert text.status == 0 and "drafter DFLASH, 7 drafts a step" in text.err
    assert re.search(r"^\| pp16 \|.*\| TTFT [0-9.]+ \|", text.out, re.M)
    lines = [line for line in text.out.splitlines() if line.startswith(("| with drafts", "| DFLASH8"))]
    assert len(lines) == 5 and len({line.count("|") for line in lines}) == 1
    real = mimo("bench", "model", ROOT / "models/nano", "--speculative-algorithm", "MTP", "-p", 0, "-n", 2, "-r", 1, "--json").json()
    assert [row["test"] for row in real["draft_steps"]] == ["MTP4 @ d0"]


def test_bench_model_refuses(mimo):
    mimo("bench", "model").refusal("directory")
    mimo("bench", "model", TINY, "-p", "x").refusal("x")
    mimo("bench", "model", TINY, "-b", "0").refusal("0")
    mimo("bench", "model", TINY, "-w", "65").refusal("65")
    drafter = ROOT / "models/nano/dflash/config.json"
    mimo("bench", "model", TINY, "--speculative-draft-config", drafter).refusal("nothing is drafted")
    mimo("bench", "model", TINY, "-n", "0", "--speculative-algorithm", "DFLASH").refusal("--n-gen 0")
    mimo("bench", "model", TINY, "--speculative-algorithm", "DFLASH", "--speculative-draft-config", "no.json").refusal("no.json")
    mimo("bench", "model", TINY, "--speculative-algorithm", "DFLASH", "--speculative-draft-config", drafter,
         "--speculative-draft-model-path", drafter.parent).refusal("expected one of them")


def test_devices(mimo):
    # Nothing here has a GPU: one that is asked for is refused, whether or not CUDA was built in.
    mimo("bench", "model", TINY, "--device", "cuda").refusal("--device cuda")
    mimo("generate", TINY, "--prompt", "x", "--device", "cuda:1").refusal("--device cuda")
    mimo("generate", TINY, "--prompt", "x", "--device", "gpu").refusal("gpu")
    mimo("generate", TINY, "--prompt", "x", "--device", "cuda:x").refusal("cuda:x")
    mimo("generate", TINY, "--prompt", "x", "--device", "cuda", "--backend", "reference").refusal("--backend reference")


def test_bench_model_refuses_a_config_that_is_none(mimo):
    mimo("bench", "model", "--load-format", "random", "--config", ROOT / "LICENSE").refusal("LICENSE")
