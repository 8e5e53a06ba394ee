"""Speculation from the command line: answers that do not depend on it, what is reported, and what is refused."""
import json
import shutil

import pytest

from conftest import GOLDEN, TINY

DRAFTED = GOLDEN / "v26_tiny"  # ships dflash/
IDS = [3, 14, 15, 92, 65, 35] * 4
COMMON = ("--max-tokens", 60, "--ignore-eos", "--json")


@pytest.fixture
def run(mimo, write_json):
    def call(*arguments, model=DRAFTED):
        return mimo("generate", model, "--token-ids", write_json(IDS), *COMMON, *arguments)

    return call


@pytest.fixture
def random_mtp(tmp_path):
    """Arguments for a random model with three MTP heads."""
    config = json.loads((TINY / "config.json").read_text())
    config["num_nextn_predict_layers"] = 3
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return "--load-format", "random", "--config", path


@pytest.mark.parametrize("sampling", [("--temperature", 0),
                                      ("--temperature", 0.8, "--top-p", 0.9, "--presence-penalty", 1,
                                       "--sample-seed", 7)])
def test_the_drafter_changes_no_token(run, sampling):
    plain = run("--speculative-algorithm", "NONE", *sampling).json()
    assert "speculation" not in plain
    for flags in [(), *(("--speculative-num-draft-tokens", n) for n in (1, 3, 7)),
                  ("--speculative-dflash-final-tap", "post_norm"), ("--speculative-dflash-window", "anchor"),
                  ("--speculative-batch-widths", "1:2"), ("--speculative-adaptive-width", "off"),
                  ("--speculative-confidence-threshold", 0.01),
                  ("--speculative-max-context", 40), ("--speculative-min-accept-length", 0)]:
        out = run(*sampling, *flags).json()
        assert out["token_ids"] == plain["token_ids"], flags
        assert [entry["logprob"] for entry in out["logprobs"]] == [entry["logprob"] for entry in plain["logprobs"]]
        assert out["usage"] == plain["usage"]
        assert out["speculation"]["algorithm"] == "DFLASH"


def test_counters_add_up(run):
    out = run("--temperature", 0, "--speculative-adaptive-width", "off", "--speculative-min-accept-length", 0).json()
    counters = out["speculation"]
    assert counters["emitted"] + counters["plain_steps"] + 1 == len(out["token_ids"])
    assert sum(counters["accepted_histogram"]) == counters["verify_steps"] > 0
    assert sum(n * steps for n, steps in enumerate(counters["accepted_histogram"])) == counters["accepted"]
    assert counters["accept_length"] == pytest.approx(1 + counters["accepted"] / counters["verify_steps"])
    assert counters["failures"] == 0


def test_options_that_limit_drafting_do(run):
    def proposed(*flags):
        width = () if "--speculative-adaptive-width" in flags else ("--speculative-adaptive-width", "off")
        counters = run("--temperature", 0, "--speculative-min-accept-length", 0, *width, *flags).json()["speculation"]
        return counters["proposed"], counters["verify_steps"]

    drafts, steps = proposed("--speculative-num-draft-tokens", 2)
    assert steps <= drafts <= 2 * steps
    assert proposed("--speculative-batch-widths", "1:0") == (0, 0)
    assert proposed("--speculative-max-context", len(IDS)) == (0, 0)
    assert 0 < proposed("--speculative-max-context", len(IDS) + 10)[0] < proposed()[0]
    assert proposed("--speculative-confidence-threshold", 0.9999)[0] < proposed()[0]
    # A drafter that is never right. How soon that is known depends on times.
    assert 0 < proposed("--speculative-adaptive-width", "on")[0] < proposed()[0]


def test_mtp(mimo, write_json, random_mtp):
    ids = write_json(IDS, "ids.json")
    arguments = ("generate", *random_mtp, "--token-ids", ids, *COMMON, "--temperature", 0)
    plain = mimo(*arguments).json()
    assert "speculation" not in plain  # AUTO is for dflash/
    for drafts in (None, 1, 2, 3):
        flags = () if drafts is None else ("--speculative-num-draft-tokens", drafts)
        run = mimo(*arguments, "--speculative-algorithm", "MTP", "--speculative-min-accept-length", 0, *flags)
        out = run.json()
        assert out["token_ids"] == plain["token_ids"]
        assert out["speculation"]["algorithm"] == "MTP"
        assert f"drafter MTP, {drafts or 3} drafts a step" in run.err
    mimo(*arguments, "--speculative-algorithm", "MTP", "--speculative-num-draft-tokens", 4).refusal(
        "--speculative-num-draft-tokens: got 4, expected 1 to 3")


def test_start_up_says_who_drafts_and_why(mimo, write_json, run):
    assert "drafter DFLASH, 7 drafts a step" in run().err
    assert "ships dflash/" in run().err
    assert "drafter none (--speculative-algorithm NONE)" in run("--speculative-algorithm", "NONE").err
    assert "drafter none (the checkpoint ships no dflash/)" in run(model=TINY).err
    plain = mimo("generate", DRAFTED, "--token-ids", write_json(IDS), "--max-tokens", 9, "--ignore-eos")
    assert "DFLASH: accept length" in plain.err


@pytest.mark.parametrize("model, flags, named", [
    (TINY, ("--speculative-algorithm", "DFLASH"), ["--speculative-algorithm DFLASH", "dflash not found",
                                                   "--speculative-draft-model-path"]),
    (TINY, ("--speculative-algorithm", "MTP"), ["--speculative-algorithm MTP", "no MTP heads"]),
    (TINY, ("--speculative-num-draft-tokens", 3), ["--speculative-num-draft-tokens 3", "no effect", "dflash/"]),
    (DRAFTED, ("--speculative-algorithm", "NONE", "--speculative-max-context", 9),
     ["--speculative-max-context 9", "no effect"]),
    (DRAFTED, ("--speculative-algorithm", "NONE", "--speculative-dflash-window", "row"),
     ["--speculative-dflash-window row", "no effect"]),
    (DRAFTED, ("--speculative-algorithm", "EAGLE"), ["--speculative-algorithm", "EAGLE", "DFLASH"]),
    (DRAFTED, ("--speculative-num-draft-tokens", 8), ["--speculative-num-draft-tokens: got 8, expected 1 to 7"]),
    (DRAFTED, ("--speculative-num-draft-tokens", 0), ["--speculative-num-draft-tokens"]),
    (DRAFTED, ("--speculative-batch-widths", "1:8"), ["--speculative-batch-widths 1:8", "at most 7"]),
    (DRAFTED, ("--speculative-batch-widths", "4:1,2:3"), ["--speculative-batch-widths", "2:3"]),
    (DRAFTED, ("--speculative-batch-widths", "many"), ["--speculative-batch-widths", "many", "BATCH:DRAFTS"]),
    (DRAFTED, ("--speculative-confidence-threshold", "nan"), ["--speculative-confidence-threshold", "nan"]),
    (DRAFTED, ("--speculative-confidence-threshold", 1), ["--speculative-confidence-threshold", "1"]),
    (DRAFTED, ("--speculative-confidence-threshold", -0.5), ["--speculative-confidence-threshold"]),
    (DRAFTED, ("--speculative-adaptive-width", "maybe"), ["--speculative-adaptive-width", "maybe"]),
    (TINY, ("--speculative-adaptive-width", "on"), ["--speculative-adaptive-width on", "no effect"]),
    (DRAFTED, ("--speculative-max-context", -1), ["--speculative-max-context"]),
    (DRAFTED, ("--speculative-min-accept-length", 9), ["--speculative-min-accept-length", "9"]),
    (DRAFTED, ("--speculative-dflash-final-tap", "mid"), ["--speculative-dflash-final-tap", "mid"]),
    (DRAFTED, ("--speculative-dflash-window", "both"), ["--speculative-dflash-window", "both"]),
    (DRAFTED, ("--speculative-draft-model-path", "/nowhere"), ["/nowhere", "--speculative-algorithm NONE"]),
])
def test_refused(run, model, flags, named):
    run(*flags, model=model).refusal(*named)


def test_a_drafter_copied_in_part_is_refused(run, tmp_path):
    copy = shutil.copytree(DRAFTED, tmp_path / "model")
    for name in ("mask_embedding.pt", "config.json"):
        (copy / "dflash" / name).unlink()
        run(model=copy).refusal(f"dflash/{name}", "--speculative-algorithm NONE")
