"""`mimo bench` against a running `mimo serve`: what it reports must agree with what the server did."""
import json

import pytest
from serving import serving

LOAD = ["--num-prompts", 4, "--output-len", 8, "--ignore-eos", "--max-concurrency", 2, "--json"]
SMALL = [*LOAD, "--input-len", 160]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("bench"), "--max-running-requests", "8", "--page-size", "16") as running:
        yield running


@pytest.fixture
def bench(mimo, server):
    def run(name, *arguments):
        return mimo("bench", name, "--url", server.url, *arguments)

    return run


def test_c94_runs_repeated_are_cold_unless_asked_to_be_warm(bench):
    shares = [bench("serve", *SMALL, "--dataset", "random-ids").json()["rounds"][0]["cached_share"] for _ in range(2)]
    assert all(share < 0.01 for share in shares), shares
    warm = bench("serve", *SMALL, "--dataset", "random-ids", "--warm")
    assert warm.json()["prompts"] == "warm"
    assert warm.json()["rounds"][0]["cached_share"] > 0.8
    assert "% cached)" in warm.err
    # The same seed is the same text: now nothing has to be sent before.
    again = bench("serve", *SMALL, "--dataset", "random-ids", "--warm").json()["rounds"][0]
    assert again["cached_share"] > 0.8
    flushed = bench("serve", *SMALL, "--dataset", "random-ids", "--flush-cache").json()["rounds"][0]
    assert flushed["cached_share"] < 0.01


@pytest.mark.parametrize("endpoint", ["completions", "chat", "messages"])
def test_counts_are_those_of_the_server(bench, server, endpoint):
    names = ("mimo:prompt_tokens_total", "mimo:generation_tokens_total", "mimo:num_requests_total")
    before = [server.metric(name) for name in names]
    row = bench("serve", *SMALL, "--endpoint", endpoint, "--warmup-requests", 2).json()["rounds"][0]
    prompts, output, requests = (server.metric(name) - old for name, old in zip(names, before))
    assert row["status"] == "ok" and row["warnings"] == []
    assert row["prompt_tokens"] == 4 * 160 and row["output_tokens"] == 4 * 8
    assert row["other_input_length"] == row["cut_short"] == 0
    # Two warm-ups, and where there is a template one request that measures it.
    probes = 0 if endpoint == "completions" else 1
    assert requests == 4 + 2 + probes
    assert output == 6 * 8 + probes
    assert prompts >= 6 * 160
    for name in ("ttft_ms", "tpot_ms", "latency_ms"):
        d = row[name]
        assert d["n"] == 4 and 0 < d["median"] <= d["p90"] <= d["p95"] <= d["p99"] <= d["max"]
    assert row["ttft_ms"]["max"] <= row["latency_ms"]["max"]
    assert row["peak_output_throughput"] is None or row["peak_output_throughput"] >= row["output_throughput"]
    assert row["accept_length"] is None or 1 <= row["accept_length"] <= 8


def test_a_results_file_gives_the_same_figures_again(bench, mimo, tmp_path):
    path = tmp_path / "run.jsonl"
    live = bench("serve", *SMALL, "--rounds", 2, "--output-file", path, "--save-outputs", "--return-token-ids",
                 "--goodput", "ttft:60000", "tpot:60000").json()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["type"] for line in lines] == ["run"] + (["request"] * 4 + ["result"]) * 2
    assert lines[0]["server"]["version"] and lines[0]["command"][1:3] == ["bench", "serve"]
    for line in lines:
        if line["type"] == "request":
            assert len(line["token_ids"]) == line["n_out"] == 8
            assert line["due"] <= line["t0"] <= line["t1"] <= line["tE"]
            assert sum(tokens for _, tokens in line["events"]) <= 8
    again = json.loads(mimo("bench", "report", path, "--json", "--goodput", "ttft:60000").out)
    assert len(again) == 2
    for old, new in zip(live["rounds"], again):
        for key in ("wall_s", "output_throughput", "goodput", "ttft_ms", "tpot_ms", "event_itl_ms", "token_itl_ms"):
            assert new[key] == pytest.approx(old[key]), key


def test_an_open_load_sends_at_its_rate(bench):
    row = bench("serve", "--num-prompts", 20, "--input-len", 64, "--output-len", 2, "--request-rate", 20, "--json",
                "--endpoint", "chat", "--no-stream").json()["rounds"][0]
    assert row["wall_s"] > 0.8
    assert row["ttft_ms"] is None and row["latency_ms"]["n"] == 20


def test_the_other_benchmarks(bench):
    sbs = bench("sbs", "--input-len", "400", "--streams", "1,2", "--short", 4, "--long", 40, "--repeats", 2,
                "--page-size", 16, "--json").json()
    assert [(row["context"], row["streams"], row["status"]) for row in sbs["results"]] == [(400, 1, "ok"), (400, 2, "ok")]
    for row in sbs["results"]:
        assert row["cache_checked"] and 0 < row["decode_low"] <= row["decode_high"]
        assert row["prefill_uncached"] == pytest.approx(row["prefill_nominal"], rel=0.01)

    prefill = bench("prefill", "--input-len", "100,100000", "--concurrency", "1,4", "--num-prompts", 4, "--json").json()
    assert [row["status"] for row in prefill["results"]] == ["ok", "ok", "context", "context"]
    assert prefill["results"][0]["cached_share"] < 0.01

    fanout = bench("fanout", "--agents", 3, "--turns", 2, "--shared-len", 64, "--first-len", 256, "--growth-len", 64,
                   "--turn-output-len", 16, "--json").json()
    assert fanout["status"] == "ok" and fanout["requests"] == 6
    assert fanout["ideal_prefill_tokens"] == 64 + 3 * 192 + 3 * 64
    # Nothing but pieces of pages is computed twice: the shared beginning at first too, where no page ends.
    assert fanout["prefilled_over_ideal"] < 1.2
    assert fanout["retractions"] == 0

    goodput = bench("goodput", "--target-ttft", 60000, "--input-len", 32, "--output-len", 2, "--probe-seconds", 0.1,
                    "--probe-requests", 3, "--warmup-requests", 0, "--start-rate", 5, "--max-rate", 20, "--json")
    assert goodput.json()["rate"] == 20 and len(goodput.json()["probes"]) == 5


def test_failures_end_with_a_status(bench, mimo, server):
    failed = bench("serve", *LOAD, "--input-len", 50000)
    assert failed.status == 1 and "context" in failed.err
    wrong = bench("serve", *SMALL, "--extra-body", '{"temperature": "hot"}')
    assert wrong.status == 1 and "temperature" in wrong.err
    strict = bench("fanout", "--agents", 2, "--turns", 1, "--shared-len", 8, "--first-len", 40, "--turn-output-len", 2,
                   "--max-ratio", 0.5, "--json")
    assert strict.status == 1 and json.loads(strict.out)["status"] == "FAILED"
    mimo("bench", "serve", "--url", "http://127.0.0.1:1").refusal("127.0.0.1:1", "connect")
    bench("serve", "--request-rate", "fast").refusal("--request-rate fast")
    bench("serve", "--dataset", "file").refusal("--dataset-path")
    bench("serve", "--goodput", "itl:3").refusal("itl:3")
    bench("serve", "--dataset", "random-ids", "--endpoint", "chat").refusal("random-ids", "completions")
    bench("serve", "--save-outputs").refusal("--save-outputs", "--output-file")
    bench("sbs", "--short", 9, "--long", 8).refusal("--long 8", "--short 9")
    server.wait_for(server.idle)
