"""Benchmark: the CPU time that the server adds to a step of sixteen rows, without its clients."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch

from engine import testmodels
from engine.path import Rows
from phases.p2_engine_serve.harness import load_tokenizer
from phases.p2_engine_serve.hybrid_engine import Limits
from phases.p2_engine_serve.server import Server, address, bound
from phases.p2_engine_serve.service import Terms
from phases.p2_engine_serve.step_barrier import StepBarrier

ROWS, TOKENS, CONTEXT = 16, 24, 64
CLIENT_SCRIPT = """
import json, sys, threading, urllib.request
def read(number):
    body = {"model": "tiny", "prompt": [number + 1], "max_tokens": int(sys.argv[3]), "seed": number,
            "ignore_eos": True, "stream": True, "logprobs": 1}
    request = urllib.request.Request(sys.argv[1], json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as stream:
        stream.read()
crowd = [threading.Thread(target=read, args=(i,)) for i in range(int(sys.argv[2]))]
[one.start() for one in crowd]
[one.join() for one in crowd]
"""


def path_seconds(path: Any, model: Any) -> float:
    """Return the CPU seconds of TOKENS steps of the path by itself."""
    pool = model.new_pool(ROWS, CONTEXT)
    started = time.process_time()
    for position in range(TOKENS):
        path.step(model, pool, [position + row + 1 for row in range(ROWS)],
                  Rows.decode(range(ROWS), [position] * ROWS))
    return time.process_time() - started


def serving_seconds(path: Any, stack: Any, model: Any) -> float:
    """Return the CPU seconds of all threads while sixteen streams are served."""
    engine = stack.engine(model, path, Limits(ROWS, CONTEXT))
    service = stack.service(stack, engine, load_tokenizer(model.path), Terms("tiny"))
    barrier, listening = StepBarrier(service.scheduler), bound("127.0.0.1", 0)
    server = Server(service)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    barrier.hold()
    url = f"{address(listening)}/v1/completions"
    clients = subprocess.Popen([sys.executable, "-c", CLIENT_SCRIPT, url,
                                str(ROWS), str(TOKENS)])
    assert barrier.wait_for(lambda: barrier.accepted == ROWS)
    started = time.process_time()
    barrier.release()
    assert clients.wait() == 0
    seconds = time.process_time() - started
    assert service.scheduler.counts.formed == ROWS
    server.should_exit = True
    thread.join()
    listening.close()
    return seconds


@pytest.mark.parametrize("name", ["tiny"])
def test_server_overhead_at_sixteen_rows(name: str, benchmark: Any, path: Any, stack: Any) -> None:
    torch.set_num_threads(1)
    model = testmodels.load(name)
    path_times, server_times = [path_seconds(path, model)], list[float]()

    def setup() -> None:
        path_times.append(path_seconds(path, model))

    benchmark.pedantic(lambda: server_times.append(serving_seconds(path, stack, model)),
                       setup=setup, rounds=5)
    step, busy = min(path_times), min(server_times)  # other load on the host only adds time
    benchmark.extra_info["path"] = path.name
    benchmark.extra_info["cpu_ms_a_step_alone"] = round(1000 * step / TOKENS, 2)
    benchmark.extra_info["cpu_ms_a_step_served"] = round(1000 * busy / TOKENS, 2)
    benchmark.extra_info["overhead"] = round(busy / step - 1, 4)
