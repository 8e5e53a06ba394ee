"""`mimo eval` with the model of this process: the form of its output, and what it must refuse."""
import json
import shutil
import subprocess

import pytest

from conftest import BINARY, TINY

TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def gsm(tmp_path):
    """A file of word problems."""
    path = tmp_path / "gsm.jsonl"
    path.write_text("".join(json.dumps({"id": f"p-{i}", "question": f"What is {i} + {i * i}?", "answer": str(i + i * i)}) + "\n"
                            for i in range(12)))
    return path


@pytest.fixture
def needle(tmp_path):
    path = tmp_path / "needle.json"
    path.write_text(json.dumps({"needle": "The secret code of {name} is {code}.",
                                "question": "What is the secret code of {name}?", "names": ["Ada", "Linus"]}))
    (tmp_path / "haystack.txt").write_text("".join(f"Sentence number {i} tells of hills and of {i % 7} rivers.\n" for i in range(300)))
    return path


def answers(out):
    return {item["prompt_id"]: item["token_ids"] for item in out["items"]}


def test_the_last_line_is_the_whole_result(mimo, gsm, tmp_path):
    results = tmp_path / "results.jsonl"
    out = mimo("eval", "nano-gsm", "--model", TINY, "--data", gsm, "-n", 16, "--json", "--output", results).json()
    assert out["accuracy"] == out["correct"] / 12
    assert 0 <= out["accuracy_low"] <= out["accuracy"] <= out["accuracy_high"] <= 1
    assert out["problems"] == 12 and out["failed"] == 0
    assert out["accept_length"] is None  # the checkpoint has no drafter
    assert out["tokens_per_second"] == pytest.approx(out["generated_tokens"] / out["wall_seconds"])
    assert out["generated_tokens"] == sum(len(ids) for ids in answers(out).values())
    assert [item["prompt_id"] for item in out["items"]] == [f"p-{i}" for i in range(12)]
    for item in out["items"]:
        assert isinstance(item["correct"], bool)
        assert 1 <= len(item["token_ids"]) <= 16 and item["completion_tokens"] == len(item["token_ids"])
        assert item["prompt_tokens"] > 0
        assert item["truncated"] == (len(item["token_ids"]) == 16)
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert {line["prompt_id"]: line["token_ids"] for line in lines} == answers(out)


def test_the_table_is_for_people(mimo, gsm):
    run = mimo("eval", "nano-gsm", "--model", TINY, "--data", gsm, "-n", 4)
    assert run.status == 0
    for word in ("accuracy", "95% interval", "truncated", "invalid", "tokens/s"):
        assert word in run.out
    assert "\r" not in run.err  # no progress bar without a terminal


def test_answers_do_not_depend_on_limit_or_concurrency(mimo, gsm):
    def ids(*more):
        return answers(mimo("eval", "nano-gsm", "--model", TINY, "--data", gsm, "-n", 12, "--json", *more).json())

    alone = ids("--concurrency", 1)
    assert len(alone) == 12
    assert ids("--concurrency", 7, "--chunked-prefill-size", 33) == alone
    assert ids("--limit", 5) == {f"p-{i}": alone[f"p-{i}"] for i in range(5)}


def test_sampled_answers_follow_the_seed_and_not_the_order(mimo, gsm, tmp_path):
    def ids(seed, *more):
        return answers(mimo("eval", "nano-gsm", "--model", TINY, "--data", gsm, "-n", 12, "--temperature", 1,
                            "--sample-seed", seed, "--json", *more).json())

    first = ids(1, "--concurrency", 12)
    assert first == ids(1, "--concurrency", 1)
    assert first != ids(2)


def test_the_thinking_switch_reaches_the_prompt(mimo, gsm):
    def prompt_tokens(*more):
        out = mimo("eval", "nano-gsm", "--model", TINY, "--data", gsm, "-n", 1, "--limit", 1, "--json", *more).json()
        return out["items"][0]["prompt_tokens"]

    assert prompt_tokens() == prompt_tokens("--thinking")
    assert prompt_tokens("--no-thinking") == prompt_tokens() + 2  # <think></think>


def test_gsm8k_protocols(mimo, tmp_path):
    data = tmp_path / "test.jsonl"
    data.write_text("".join(json.dumps({"question": f"What is {i} + 1?", "answer": f"{i}+1={i + 1}\n#### {i + 1}"}) + "\n" for i in range(8)))
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "What is 5 + 5?", "answer": "#### 10"}) + "\n")

    def run(*more):
        return mimo("eval", "gsm8k", "--model", TINY, "--data", data, "-n", 8, "--json", *more).json()

    plain, shot = run(), run("--shots", 1)
    assert plain["problems"] == shot["problems"] == 8
    assert shot["prompt_tokens"] > plain["prompt_tokens"]
    few = run("--protocol", "p3")
    assert [item["prompt_id"] for item in few["items"]] == ["gsm8k-0006", "gsm8k-0007", "gsm8k-0008"]
    mimo("eval", "gsm8k", "--model", TINY).refusal("--data")


def test_needle_prompts_have_exactly_their_length(mimo, needle):
    out = mimo("eval", "needle", "--model", TINY, "--data", needle, "--lengths", "400,1001", "--depths", "0.1,0.9",
               "--samples", 2, "-n", 4, "--json").json()
    assert [item["prompt_tokens"] for item in out["items"]] == [400] * 4 + [1001] * 4
    assert len(out["groups"]) == 4 and all(group["problems"] == 2 for group in out["groups"])
    assert len({item["expected"] for item in out["items"]}) > 1


def test_toolcall(mimo, tmp_path):
    data = tmp_path / "tools.jsonl"
    line = {"tools": TOOLS, "messages": [{"role": "user", "content": "What time is it?"}], "enable_thinking": False}
    data.write_text(json.dumps({"id": "a", "expected": [{"name": "now", "arguments": {}}], **line}) + "\n" +
                    json.dumps({"id": "b", "expected": [], **line}) + "\n")
    out = mimo("eval", "toolcall", "--model", TINY, "--data", data, "-n", 8, "--json").json()
    assert out["items"][0]["correct"] is False and out["items"][0]["tool_calls"] == []
    assert out["items"][0]["expected"] == [{"name": "now", "arguments": {}}]


def test_a_problem_that_cannot_be_asked_fails_alone(mimo, gsm):
    with gsm.open("a") as file:
        file.write(json.dumps({"id": "long", "question": "word " * 20000, "answer": "1"}) + "\n")
    run = mimo("eval", "nano-gsm", "--model", TINY, "--data", gsm, "-n", 4, "--json")
    assert run.status == 1
    out = json.loads(run.out.splitlines()[-1])
    assert out["failed"] == 1 and out["problems"] == 13
    assert "8192" in out["items"][-1]["error"] and out["items"][0]["error"] is None
    assert "1 of 13 problems got no answer" in run.err and "long" in run.err


def test_refusals(mimo, gsm, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "a", "question": "q", "answer": "1"}\nnot json\n')
    run = ("eval", "nano-gsm", "--model", TINY)
    mimo(*run, "--data", bad).refusal(f"{bad}:2")
    mimo(*run, "--data", tmp_path / "none.jsonl").refusal(tmp_path / "none.jsonl")
    mimo(*run, "--data", gsm, "--output", tmp_path / "no" / "where.jsonl").refusal("--output", "where.jsonl")
    mimo(*run, "--data", gsm, "--url", "http://localhost:1").refusal("--model", "--url")
    mimo(*run, "--data", gsm, "--api-key", "k").refusal("--api-key", "--url")
    mimo(*run, "--data", gsm, "--concurrency", 0).refusal("--concurrency")
    mimo(*run, "--data", gsm, "--thinking", "--no-thinking").refusal("thinking")
    mimo("eval", "nano-gsm", "--data", gsm, "--threads", 2, "--url", "http://localhost:1").refusal("--threads", "--url")
    mimo("eval", "nano-gsm", "--data", gsm, "--url", "https://localhost").refusal("https")
    mimo("eval", "nano-gsm", "--model", tmp_path / "nowhere", "--data", gsm).refusal("nowhere")
    mimo("eval", "needle", "--model", TINY, "--data", gsm).refusal(gsm)
    for option in ("--url", "--data", "--output", "--model"):
        mimo("eval", "nano-gsm", "--data", gsm, option, "").refusal(option)
    for option in ("--temperature", "--top-p", "--timeout"):
        mimo(*run, "--data", gsm, option, "nan").refusal(option.strip("-").replace("-", "_"), "nan")
    mimo(*run, "--data", gsm, "--top-p", 0).refusal("top_p", "0")


def test_options_that_would_be_ignored_are_refused(mimo, gsm):
    mimo("eval", "nano-gsm", "--model", TINY, "--data", gsm, "--timeout", 3).refusal("--timeout", "--url")
    run = ("eval", "gsm8k", "--model", TINY, "--data", gsm)
    mimo(*run, "--shots-data", gsm).refusal("--shots-data", "--shots")
    mimo(*run, "--shots-data", gsm, "--protocol", "p3").refusal("--shots-data", "p3")
    mimo(*run, "--strict", "--protocol", "p3").refusal("--strict", "p3")


def test_needle_refuses_a_place_twice_and_no_place(mimo, needle):
    run = ("eval", "needle", "--model", TINY, "--data", needle, "--samples", 1)
    mimo(*run, "--lengths", "300,300", "--depths", 0.5).refusal("--lengths", "needle-300-0.5-000")
    mimo(*run, "--lengths", 300, "--depths", "nan").refusal("--depths", "nan")


def test_the_bundled_model_is_the_default(mimo, gsm, tmp_path, monkeypatch):
    monkeypatch.setenv("MIMO_MODEL", str(TINY))
    named = mimo("eval", "nano-gsm", "--model", TINY, "--data", gsm, "-n", 4, "--json").json()
    assert answers(mimo("eval", "nano-gsm", "--data", gsm, "-n", 4, "--json").json()) == answers(named)
    assert mimo("generate", "--prompt", "One day", "--max-tokens", 2, "--json").json()["token_ids"]
    monkeypatch.setenv("MIMO_MODEL", str(tmp_path))
    mimo("generate", "--prompt", "One day").refusal("MIMO_MODEL", tmp_path)
    monkeypatch.delenv("MIMO_MODEL")
    # Beside a copy of the program, whose own folders decide.
    (tmp_path / "build").mkdir()
    copy = shutil.copy2(BINARY, tmp_path / "build" / "mimo")

    def run():
        return subprocess.run([copy, "generate", "--prompt", "One day", "--max-tokens", "2", "--json"],
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60, text=True)

    missing = run()
    assert missing.returncode == 1 and "MIMO_MODEL" in missing.stderr and missing.stdout == ""
    shutil.copytree(TINY, tmp_path / "models" / "nano")
    assert json.loads(run().stdout.splitlines()[-1])["token_ids"]


def test_compare(mimo, gsm, tmp_path):
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl")]
    for path, tokens in zip(files, (6, 6, 7)):
        mimo("eval", "nano-gsm", "--model", TINY, "--data", gsm, "-n", tokens, "--json", "--output", path).json()
    same = mimo("eval", "compare", files[0], files[1], "--require-identical", "--json").json()
    assert same["problems"] == same["identical_token_ids"] == 12 and same["p"] == 1
    longer = mimo("eval", "compare", files[0], files[2], "--json").json()
    ended = [item for item in longer["differences"]]
    assert ended and all(item["position"] == 6 and item["a"] is None for item in ended)
    assert mimo("eval", "compare", files[0], files[2]).status == 0
    run = mimo("eval", "compare", files[0], files[2], "--require-identical")
    assert run.status == 1 and "identical ids" in run.out
    mimo("eval", "compare", files[0], gsm).refusal(f"{gsm}:1", "prompt_id")
