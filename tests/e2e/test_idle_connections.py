"""2,000 connections of event streams that have nothing to say cost less than 100 MB: streams that wait in the queue, and
connections that are kept after a stream has ended."""
import json
import re
import resource
import socket
import time
from pathlib import Path

import pytest
from serving import serving

COUNT = 2000


def resident(server):
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())[1]) / 1024


def request(body):
    data = json.dumps(body).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data


def test_2000_idle_streams_cost_less_than_100_mb(mimo, tmp_path, record_property):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * COUNT:
        pytest.skip(f"the limit of open files is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * COUNT), hard))
    try:
        with serving(tmp_path, "--max-running-requests", 1, "--max-queued-requests", 4096, "--speculative-algorithm", "NONE",
                     "--disable-log-requests") as server:
            kept = idle_after_a_stream(server)
            waiting = waiting_in_the_queue(server)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(f"{COUNT} connections: kept after a stream {kept:.1f} MB, waiting in the queue {waiting:.1f} MB")
    record_property("kept_mb", kept)
    record_property("waiting_mb", waiting)
    assert kept < 100 and waiting < 100


def settle(server):
    server.wait_for(server.idle, 60)
    time.sleep(0.5)
    return resident(server)


def idle_after_a_stream(server):
    """One streamed answer on each connection; then nothing."""
    ask = request({"prompt": "x", "max_tokens": 1, "stream": True})
    with socket.create_connection(("127.0.0.1", server.port)) as sock:  # what the first answer needs is not the connections'
        sock.sendall(ask)
        read_to_done(sock)
    before = settle(server)
    sockets = []
    for _ in range(COUNT):
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        sock.sendall(ask)
        read_to_done(sock)
        sockets.append(sock)
    cost = settle(server) - before
    sockets[0].sendall(ask)  # they still work
    read_to_done(sockets[0])
    for sock in sockets:
        sock.close()
    return cost


def read_to_done(sock):
    text = b""
    while not text.endswith(b"\r\n0\r\n\r\n"):
        piece = sock.recv(4096)
        assert piece
        text += piece
    assert b"[DONE]" in text


def waiting_in_the_queue(server):
    """Behind one that computes for long."""
    blocker = socket.create_connection(("127.0.0.1", server.port))
    blocker.sendall(request({"prompt": "The", "max_tokens": 30000, "ignore_eos": True}))
    server.wait_for(lambda: server.metric("mimo:num_requests_running") == 1)
    before = resident(server)
    ask = request({"prompt": "A question that waits.", "max_tokens": 100, "stream": True})
    sockets = []
    for _ in range(COUNT):
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        sock.sendall(ask)
        sockets.append(sock)
    server.wait_for(lambda: server.metric("mimo:num_requests_waiting") == COUNT, 60)
    cost = resident(server) - before
    assert server.metric("mimo:num_requests_running") == 1
    for sock in [*sockets, blocker]:
        sock.close()
    server.wait_for(server.idle, 60)
    return cost
