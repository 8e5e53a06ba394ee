"""Requests made from the server's own description of its API (openapi.json), valid ones and broken ones, against the
real server: nothing is a 5xx, nothing hangs, and what is answered conforms to the description.

MIMO_FUZZ_EXAMPLES=N makes N requests for each operation, other ones in every run; without it a run is repeatable."""
import json
import os

import pytest
from conftest import ROOT, TINY
from serving import serving

schemathesis = pytest.importorskip("schemathesis")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: E402

EXAMPLES = int(os.environ.get("MIMO_FUZZ_EXAMPLES", 0))
DESCRIPTION = json.loads((ROOT / "src" / "server" / "openapi.json").read_text())
SCHEMA = schemathesis.openapi.from_dict(DESCRIPTION)
SECONDS = 60  # of one request; all are small, but machines can be busy
# What fields demand of each other (one form of the answer, ids below the vocabulary, a tool that is declared) is not in
# the description: a 400 for valid data is no fault.
EXCLUDED = [positive_data_acceptance]


# Other names of routes that are here, and one that is not served.
LEFT_OUT = {"/v1/tokenize", "/v1/detokenize", "/get_server_info", "/reset_prefix_cache", "/ping", "/v1/responses"}


def cases():
    """(operation, mode); where there is no body, nothing can be broken."""
    found = [result.ok() for result in SCHEMA.get_all_operations()]
    return [pytest.param(operation, mode, id=f"{operation.label} {mode.value}")
            for operation in found if operation.path not in LEFT_OUT
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
            if operation.body or mode == GenerationMode.POSITIVE]


@pytest.fixture(scope="module")
def server(mimo, tmp_path_factory):
    # A small context bounds answers without max_tokens.
    with serving(tmp_path_factory.mktemp("fuzz"), "--context-length", 192, "--max-running-requests", 32, model=TINY) as running:
        yield running
        assert running.process.poll() is None
        running.wait_for(running.idle)
        free = running.metric("mimo:kv_available_tokens") + running.metric("mimo:kv_evictable_tokens")
        assert free == running.metric("mimo:kv_total_tokens")


def bounded(case):
    """128 answers are legal and slow."""
    if isinstance(case.body, dict) and isinstance(case.body.get("n"), (int, float)) and 3 < case.body["n"] <= 128:
        case.body["n"] = 3


@pytest.mark.parametrize("operation,mode", cases())
def test_requests_from_the_description(server, operation, mode):
    examples = EXAMPLES or (20 if operation.body else 3)

    @settings(max_examples=examples, deadline=None, derandomize=not EXAMPLES, database=None,
              suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case):
        bounded(case)
        response = case.call(base_url=server.url, timeout=SECONDS)
        case.validate_response(response, excluded_checks=EXCLUDED)

    run()
