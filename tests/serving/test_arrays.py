"""`meshweave serve` for compiled programs: arrays by HTTP, its limits, and its end."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ROOT, meshweave
from depth import sampled

import meshweave as mw

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")
import aiohttp
from aiohttp.test_utils import TestClient
from serving.servers import post, served, talk

from meshweave.bundle import Port
from meshweave.errors import RankError
from meshweave.layout import Mesh
from meshweave.serving.application import hosts_for
from meshweave.serving.array_routes import add_array_routes
from meshweave.serving.array_service import ArrayService
from meshweave.serving.work import ServerLimits
from meshweave.tools import cli

MLP = ROOT / "examples" / "mlp"
DOUBLE = """module {
  "dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
  func.func @main(%a: tensor<4xf32> {dist.layout = #dist.layout<"[x]">}) -> tensor<4xf32> {
    %0 = arith.addf %a, %a : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""


def program_of(program: Any, most: int = 256) -> Any:
    """Serve a program with a queue of `most`."""

    def make(metrics: Any) -> Any:
        service = ArrayService(program, most, metrics.rank_failed)
        return service, lambda application: add_array_routes(application, service, "test.mlir")

    return make


class Gate:
    """A program of one number that waits until it is let go, and fails as often as it is told to."""

    inputs = outputs = (Port("x", "f32", (), (), ""),)
    mesh, engine = Mesh(), type("", (), {"name": "local"})

    def __init__(self, failures: tuple[Exception, ...] = ()) -> None:
        self.go, self.calls, self.failures = threading.Event(), 0, list(failures)

    def __call__(self, x: np.ndarray) -> tuple[np.ndarray]:
        self.calls += 1
        self.go.wait(20)
        if self.failures:
            raise self.failures.pop(0)
        return (x + 1,)

    def close(self) -> None:
        pass


def test_a_program_gives_what_it_gives_in_python() -> None:
    arguments = [np.load(MLP / f"in{i}.npy") for i in range(5)]
    program = mw.compile(MLP / "mlp.mlir", mesh="dp=2, tp=2")
    (wanted,) = program(*arguments)

    async def say(client: TestClient) -> None:
        about = await (await client.get("/v1/program")).json()
        assert about["mesh"] == "dp=2, tp=2" and about["program"] == "test.mlir"
        assert [p["shape"] for p in about["inputs"]] == [list(a.shape) for a in arguments]
        body = {"inputs": {p["name"]: a.tolist() for p, a in zip(about["inputs"], arguments)}}
        answer = await client.post("/v1/run", json=body)
        assert answer.status == 200
        (result,) = (await answer.json())["results"]
        np.testing.assert_array_equal(np.array(result["data"], np.float32), wanted)
        for _ in range(100):  # the reply may come before the request is counted as ended
            health = await (await client.get("/health")).json()
            if not health["running"]:
                break
            await asyncio.sleep(0.01)
        assert health == {"status": "ok", "queue": 0, "running": 0}
        text = await (await client.get("/metrics")).text()
        assert 'meshweave_requests_total{route="/v1/run",status="200"} 1.0' in text
        assert 'meshweave_request_seconds_count{route="/v1/run"} 1.0' in text
        assert "meshweave_queue_length 0.0" in text

    talk(program_of(program), say)


@pytest.mark.parametrize(
    ("body", "kind", "status", "message"),
    [
        (b"{", "application/json", 400, "the body is no JSON: Expecting property name .*"),
        (b"[NaN]", "application/json", 400, 'the body is no JSON: NaN is no JSON: "nan" is right'),
        (b"[" * 99999, "application/json", 400, "the body is nested too deep"),
        (b"\xff", "application/json", 400, "the body is no JSON: .*"),
        (b"{}", "text/plain", 400, "Content-Type text/plain: application/json is right"),
        (b"{}", "application/json", 400, "an object with inputs is needed"),
        (b'{"inputs": [1], "x": 1}', "application/json", 400, 'no field "x"; there are inputs .*'),
        (b'{"inputs": [[1]]}', "application/json", 400, r"x: shape 1, \(\) is right"),
        (b" " * 1001, "application/json", 413, "the body has more than 1000 bytes"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_one_line(body: bytes, kind: str, status: int, message: str) -> None:
    limit = 10**6 if body.startswith(b"[[") else 1000

    async def say(client: TestClient) -> None:
        answer = await client.post("/v1/run", data=body, headers={"Content-Type": kind})
        said = await answer.text()
        assert answer.status == status and "\n" not in said
        error = (await answer.json())["error"]
        assert error["code"] == status and error["type"] == "invalid_request_error"
        assert re.fullmatch(message, error["message"]), error["message"]

    talk(program_of(Gate()), say, ServerLimits(body=limit))


def test_routes_and_hosts_that_are_not_there() -> None:
    async def say(client: TestClient) -> None:
        for path, status in (("/v1/nothing", 404), ("/v1/run", 405)):
            answer = await client.get(path)
            assert answer.status == status
            assert (await answer.json())["error"]["message"].startswith(f"GET {path}: ")
        for host, status in (("evil.example", 403), ("localhost:80", 200), ("[::1]:80", 200)):
            answer = await client.get("/health", headers={"Host": host})
            assert answer.status == status

    gate = Gate()

    def make(metrics: Any) -> Any:
        service, add = program_of(gate)(metrics)

        def with_hosts(application: Any) -> None:
            application.hosts = hosts_for("127.0.0.1")
            add(application)

        return service, with_hosts

    talk(make, say)


def test_a_full_queue_says_when_to_come_back() -> None:
    gate = Gate()

    async def say(client: TestClient) -> None:
        begun = asyncio.create_task(client.post("/v1/run", json={"inputs": [1]}))
        while not gate.calls:
            await asyncio.sleep(0.01)
        waits = asyncio.create_task(client.post("/v1/run", json={"inputs": [2]}))
        while (await (await client.get("/health")).json())["queue"] != 1:
            await asyncio.sleep(0.01)
        answer = await client.post("/v1/run", json={"inputs": [3]})
        assert answer.status == 429 and int(answer.headers["Retry-After"]) >= 1
        error = (await answer.json())["error"]
        assert error["message"] == "the queue is full: 1 wait, 1 more are over 1"
        gate.go.set()
        for task, right in ((begun, 2), (waits, 3)):
            answer = await task
            assert (await answer.json())["results"][0]["data"] == right

    talk(program_of(gate, 1), say)


def test_a_request_has_a_limited_time_and_its_place_is_given_to_others() -> None:
    gate = Gate()

    async def say(client: TestClient) -> None:
        for _ in range(2):
            answer = await client.post("/v1/run", json={"inputs": [1]})
            assert answer.status == 504
            message = (await answer.json())["error"]["message"]
            assert message == "not done within 0.2 s, the most there is"
        gate.go.set()
        answer = await client.post("/v1/run", json={"inputs": [5]})
        assert (await answer.json())["results"][0]["data"] == 6

    talk(program_of(gate), say, ServerLimits(seconds=0.2))
    assert gate.calls == 2, "nobody waited for the second any more"


@pytest.mark.parametrize(
    ("failures", "status", "said"),
    [
        ([RankError("rank 1 died")], 200, ""),
        ([RankError("rank 1 died"), RankError("rank 0 died")], 503, "rank 0 died"),
        ([ValueError("secret")], 500, "an internal error; the server's log says more"),
    ],
)
def test_a_call_that_a_rank_fails_in_is_made_once_more(
    failures: list[Exception], status: int, said: str
) -> None:
    gate = Gate(tuple(failures))
    gate.go.set()

    async def say(client: TestClient) -> None:
        answer = await client.post("/v1/run", json={"inputs": [1]})
        assert answer.status == status
        if said:
            assert (await answer.json())["error"]["message"] == said
        again = await client.post("/v1/run", json={"inputs": [1]})
        assert (await again.json())["results"][0]["data"] == 2
        text = await (await client.get("/metrics")).text()
        ranks = sum(isinstance(failure, RankError) for failure in failures)
        assert f"meshweave_rank_failures_total {ranks}.0" in text

    talk(program_of(gate), say)


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of two ranks for engine mpi."""
    folder = tmp_path_factory.mktemp("serve")
    (folder / "double.mlir").write_text(DOUBLE)
    made = meshweave("compile", folder / "double.mlir", "--engine", "mpi", "-o", folder / "d.mwb")
    assert made.status == 0, made.err
    return folder / "d.mwb"


def test_two_hundred_at_once_while_a_rank_is_killed_and_then_a_graceful_end(double: Path) -> None:
    async def say(url: str, kill: int) -> list[tuple[int, Any]]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            bodies = [{"inputs": [[n, 1, 2, 3]]} for n in range(200)]
            tasks = [asyncio.create_task(post(session, f"{url}/v1/run", b)) for b in bodies]
            await tasks[3]
            os.kill(kill, signal.SIGKILL)
            return await asyncio.gather(*tasks)

    with served(double) as server:
        answers = asyncio.run(say(server.url, server.workers()[1]))
        for n, (status, answer) in enumerate(answers):
            assert status == 200, answer
            assert answer["results"][0]["data"] == [2 * n, 2, 4, 6]
        server.process.send_signal(signal.SIGTERM)
        _, err = server.process.communicate(timeout=100)
        assert server.process.returncode == 0
        assert err.count("rank 1 died") == 1 and "Traceback" not in err


def test_what_was_begun_is_finished_after_sigterm_and_nothing_else_is_begun(tmp_path: Path) -> None:
    """A server whose program waits for a file, in a process of its own."""
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, script, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )

    async def say(url: str) -> None:
        async with aiohttp.ClientSession() as session:
            begun = asyncio.create_task(post(session, f"{url}/v1/run", {"inputs": [1]}))
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            answer = {"status": "ok"}
            while answer["status"] != "stopping":
                async with session.get(f"{url}/health") as health:
                    answer = await health.json()
            assert health.status == 503
            status, answer = await post(session, f"{url}/v1/run", {"inputs": [2]})
            assert (status, answer["error"]["message"]) == (503, "the server is stopping")
            (tmp_path / "end").touch()
            status, answer = await begun
            assert status == 200 and answer["results"][0]["data"] == 2

    try:
        asyncio.run(say(process.stdout.readline().strip()))
        assert process.wait(100) == 0
    finally:
        process.kill()
        process.wait()


SLOW = """
import sys
import time
from pathlib import Path
from serving.test_arrays import Gate
from meshweave.serving.application import Application
from meshweave.serving.application import hosts_for
from meshweave.serving.array_routes import add_array_routes
from meshweave.serving.array_service import ArrayService
from meshweave.serving.metrics import ServerMetrics
from meshweave.serving.running import serve
from meshweave.serving.work import ServerLimits

folder = Path(sys.argv[1])

class Slow(Gate):
    def __call__(self, x):
        (folder / "begun").touch()
        while not (folder / "end").exists():
            time.sleep(0.01)
        return (x + 1,)

metrics = ServerMetrics()
service = ArrayService(Slow(), 9, metrics.rank_failed)
application = Application(service, ServerLimits(), metrics)
add_array_routes(application, service, "slow")
left = serve(application, "127.0.0.1", 0, lambda at: print(at, flush=True))
service.close()
raise SystemExit(left)
"""


@sampled(1)
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--port", "http"], 2, "--port http: a whole number of at least 0 is needed"),
        (["--port", 99999999], 2, "cannot listen on 127.0.0.1 port 99999999: "),
        (["--host", "192.0.2.1"], 2, "cannot listen on 192.0.2.1 port 8000: "),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[Any], status: int, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "one.mlir"
    file.write_text(
        "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }"
    )
    done = meshweave("serve", file, *arguments)
    assert done.status == status
    assert done.err.startswith(f"meshweave: error: {message}") and done.err.count("\n") == 1


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    status = cli.command(["serve", str(MLP / "mlp.mlir")])
    assert (status, capsys.readouterr().err) == (
        2,
        "meshweave: error: meshweave serve needs prometheus_client, which is not installed: "
        "pip install 'meshweave[serve]'\n",
    )
