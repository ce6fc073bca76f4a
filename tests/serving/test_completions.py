"""`meshweave serve` for models that decode: completions as OpenAI's clients ask for them."""

import asyncio
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ROOT, meshweave
from depth import deep, sampled

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")
import aiohttp
from aiohttp.test_utils import TestClient
from serving.decoders import PlainDecoder, continued
from serving.servers import post, served, talk

from meshweave.errors import RankError
from meshweave.serving.completion_routes import CompletionRoutes
from meshweave.serving.slot_service import SlotService
from meshweave.serving.work import ServerLimits


class Letters:
    """A tokenizer of 64 letters."""

    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,"

    def encode(self, text: str) -> list[int]:
        return [self.letters.index(letter) for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.letters[token] for token in tokens)


LETTERS = Letters()


def after(text: str, count: int) -> str:
    """Return what comes behind a text."""
    return LETTERS.decode(continued(LETTERS.encode(text), count))


def model_of(decoder: PlainDecoder, tokenizer: Any = LETTERS, most: int = 256) -> Any:
    """Serve a decoder as model "plain"."""

    def make(metrics: Any) -> Any:
        service = SlotService(decoder, most, metrics.rank_failed, metrics.count_tokens)
        return service, lambda application: CompletionRoutes(
            application, service, "plain", tokenizer
        )

    return make


async def events(client: Any, body: dict[str, Any], url: str = "") -> list[Any]:
    """Return what a stream says, the last of it "[DONE]"."""
    async with client.post(f"{url}/v1/completions", json={**body, "stream": True}) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        text = (await answer.read()).decode()
    said = [re.fullmatch(r"data: (.*)", part) for part in text.split("\n\n")[:-1]]
    assert all(said) and said[-1][1] == "[DONE]"
    return [json.loads(part[1]) for part in said[:-1]]


def test_a_completion_and_its_stream() -> None:
    wanted = after("abc", 20)
    body = {"prompt": "abc", "max_tokens": 20, "temperature": 0}

    async def say(client: TestClient) -> None:
        models = await (await client.get("/v1/models")).json()
        assert [model["id"] for model in models["data"]] == ["plain"]
        answer = await (await client.post("/v1/completions", json=body)).json()
        assert answer["object"] == "text_completion" and answer["model"] == "plain"
        (choice,) = answer["choices"]
        assert choice == {"index": 0, "text": wanted, "logprobs": None, "finish_reason": "length"}
        assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 20, "total_tokens": 23}
        said = await events(client, {**body, "stream_options": {"include_usage": True}})
        assert said.pop()["usage"] == answer["usage"]
        assert len({event["id"] for event in said}) == 1 and len(said) == 21
        assert "".join(event["choices"][0]["text"] for event in said) == wanted
        assert [event["choices"][0]["finish_reason"] for event in said] == [None] * 20 + ["length"]
        text = await (await client.get("/metrics")).text()
        assert 'meshweave_tokens_total{kind="completion"} 40.0' in text
        assert 'meshweave_tokens_total{kind="prompt"} 6.0' in text
        assert "meshweave_first_token_seconds_count 2.0" in text

    talk(model_of(PlainDecoder()), say)


def test_prompts_of_all_forms_and_stops() -> None:
    whole = after("abc", 20)
    stop = whole[4:6]
    cut = whole[: whole.index(stop)]
    tokens = LETTERS.encode("abc")

    async def say(client: TestClient) -> None:
        for prompt, count in (("abc", 1), (tokens, 1), (["abc", "abc"], 2), ([tokens, tokens], 2)):
            body = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "stop": [stop, "nowhere"]}
            answer = await (await client.post("/v1/completions", json=body)).json()
            assert [c["text"] for c in answer["choices"]] == [cut] * count
            assert [c["finish_reason"] for c in answer["choices"]] == ["stop"] * count
            said = await events(client, body)
            for index in range(count):
                mine = [e["choices"][0] for e in said if e["choices"][0]["index"] == index]
                assert "".join(c["text"] for c in mine) == cut
        ended = {"prompt": "abc", "max_tokens": 3, "temperature": 0, "stop": whole[2] + "!"}
        answer = await (await client.post("/v1/completions", json=ended)).json()
        assert answer["choices"][0]["text"] == whole[:3], "what was held back is given at the end"

    talk(model_of(PlainDecoder()), say)


def test_without_a_tokenizer_tokens_go_in_and_out() -> None:
    async def say(client: TestClient) -> None:
        body = {"prompt": [1, 2], "max_tokens": 5, "temperature": 0}
        (choice,) = (await (await client.post("/v1/completions", json=body)).json())["choices"]
        assert choice["tokens"] == continued([1, 2], 5) and choice["text"] == ""
        said = await events(client, body)
        assert [e["choices"][0]["tokens"] for e in said[:5]] == [[t] for t in choice["tokens"]]
        answer = await client.post("/v1/completions", json={"prompt": "text"})
        message = (await answer.json())["error"]["message"]
        assert message == "prompt: the server has no tokenizer: a list of tokens is needed"

    talk(model_of(PlainDecoder(), None), say)


def test_a_seed_repeats_a_sample() -> None:
    async def say(client: TestClient) -> None:
        async def text(seed: int) -> str:
            body = {"prompt": "abc", "max_tokens": 20, "temperature": 2, "seed": seed}
            answer = await (await client.post("/v1/completions", json=body)).json()
            return str(answer["choices"][0]["text"])

        first, other, again = await asyncio.gather(text(1), text(2), text(1))
        assert first == again != other

    talk(model_of(PlainDecoder()), say)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "an object with a prompt is needed"),
        ({}, "prompt: text, a list of tokens, or a list of either, is needed"),
        ({"prompt": ""}, "prompt: it has no tokens, one is needed"),
        ({"prompt": [1, 64]}, "prompt: token 64: 0 to 63 are there"),
        ({"prompt": [1, "a"]}, "prompt: [1, 'a']: text, or a list of tokens, is needed"),
        ({"prompt": ["a"] * 65}, "prompt: 65 prompts, 64 are the most"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens: 0: a whole number of at least 1 is right"),
        ({"prompt": "a", "max_tokens": 128}, "prompt of 1 tokens and max_tokens 128: 128 together is the most"),
        ({"prompt": "a", "temperature": 3}, "temperature: 3: a number from 0 to 2 is right"),
        ({"prompt": "a", "top_p": True}, "top_p: True: a number from 0 to 1 is right"),
        ({"prompt": "a", "stream": 1}, "stream: 1: true or false is right"),
        ({"prompt": "a", "stop": 1}, "stop: 1: text, or a list of texts, is right"),
        ({"prompt": "a", "stop": ["a"] * 5}, "stop: 5 texts, 4 are the most"),
        ({"prompt": "a", "n": 2}, "n: 2 is not supported"),
        ({"prompt": "a", "logprobs": 1}, "logprobs: 1 is not supported"),
        ({"prompt": "a", "stream_options": {"x": 1}}, "stream_options: only include_usage is known"),
        ({"prompt": "a", "maxtokens": 1}, 'no field "maxtokens"; there are model, prompt, max_tokens, '),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_by_name(body: Any, message: str) -> None:
    async def say(client: TestClient) -> None:
        answer = await client.post("/v1/completions", json=body)
        assert answer.status == 400
        assert (await answer.json())["error"]["message"].startswith(message)

    talk(model_of(PlainDecoder()), say)


@pytest.mark.parametrize("stream", [False, True])
def test_ranks_that_fail_twice_are_told(stream: bool) -> None:
    failures = [None, None, RankError("rank 1 died"), RankError("rank 0 died")]

    async def say(client: TestClient) -> None:
        body = {"prompt": "abc", "max_tokens": 9, "temperature": 0}
        if stream:
            said = await events(client, body)
            assert said[-1]["error"] == {
                "message": "rank 0 died",
                "type": "server_error",
                "code": 503,
            }
        else:
            answer = await client.post("/v1/completions", json=body)
            assert answer.status == 503 and "Retry-After" in answer.headers
            assert (await answer.json())["error"]["message"] == "rank 0 died"
        answer = await (await client.post("/v1/completions", json=body)).json()
        assert answer["choices"][0]["text"] == after("abc", 9)

    talk(model_of(PlainDecoder(failures=failures)), say)


def test_a_client_that_leaves_frees_its_slot(times: int) -> None:
    decoder = PlainDecoder(slots=1, seconds=0.02 * times)

    async def say(client: TestClient) -> None:
        body = {"prompt": "a", "max_tokens": 127, "temperature": 0, "stream": True}
        answer = await client.post("/v1/completions", json=body)
        await answer.content.readline()
        answer.close()
        short = await client.post("/v1/completions", json={"prompt": "b", "max_tokens": 1})
        assert short.status == 200

    talk(model_of(decoder), say)
    assert decoder.steps < 60


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_has_a_limited_time_too(stream: bool, times: int) -> None:
    async def say(client: TestClient) -> None:
        body = {"prompt": "a", "max_tokens": 100, "temperature": 0}
        right = {
            "message": f"not done within {0.3 * times:g} s, the most there is",
            "type": "server_error",
            "code": 504,
        }
        if stream:
            said = await events(client, body)
            assert said[0]["choices"][0]["text"] == after("a", 1) and said[-1]["error"] == right
        else:
            answer = await client.post("/v1/completions", json=body)
            assert answer.status == 504 and (await answer.json())["error"] == right

    talk(model_of(PlainDecoder(seconds=0.02 * times)), say, ServerLimits(seconds=0.3 * times))


MODEL = """
import sys
sys.path.insert(0, {generate!r})
from llama_jax import Config, parameters
from slots import SlotDecoder

def decoder(mesh="", engine="local", slots=4, timeout=None):
    config = Config(1, 16, 2, 2, 24, 40, 32)
    return SlotDecoder(config, parameters(config), slots, mesh, engine, timeout)
"""


def one_by_one(prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Return what JAX decodes greedily behind each prompt of the model above, with the whole text in every step."""
    import jax

    sys.path.insert(0, str(ROOT / "examples" / "generate"))
    from llama_jax import Config, empty_cache, forward, parameters

    config = Config(1, 16, 2, 2, 24, 40, 32)
    params, cache = jax.tree.map(jax.numpy.asarray, (parameters(config), empty_cache(config, 1)))
    step = jax.jit(lambda cache, token, place: forward(config, params, cache, token, place))
    found = []
    for prompt in prompts:
        tokens, held = list(prompt), cache
        for place in range(len(prompt) + count - 1):
            held, logits = step(held, np.array([[tokens[place]]], np.int32), np.int32(place))
            tokens += [int(np.argmax(logits))] if place + 1 == len(tokens) else []
        found.append(tokens[len(prompt) :])
    return found


@deep  # test_arrays.py has as many at once
def test_two_hundred_at_once_on_ranks_of_which_one_is_killed(tmp_path: Path) -> None:
    """Half of them as streams, on the model of examples/generate, on two processes: none is lost or wrong."""
    pytest.importorskip("jax")
    file = tmp_path / "model.py"
    file.write_text(MODEL.format(generate=str(ROOT / "examples" / "generate")))
    prompts = [[n % 40, 7, *range(n % 19)] for n in range(20)]
    wanted = one_by_one(prompts, 6)
    killed = threading.Event()

    async def one(session: Any, server: Any, number: int) -> list[int]:
        body = {"prompt": prompts[number % 20], "max_tokens": 6, "temperature": 0}
        if number % 2:
            said = [e["choices"][0] for e in await events(session, body, server.url)]
            tokens = [token for choice in said for token in choice["tokens"]]
        else:
            status, answer = await post(session, f"{server.url}/v1/completions", body)
            assert status == 200, answer
            tokens = answer["choices"][0]["tokens"]
        if number == 40 and not killed.is_set():
            killed.set()
            os.kill(server.workers()[1], signal.SIGKILL)
        return list(tokens)

    async def say(server: Any) -> list[list[int]]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            return await asyncio.gather(*(one(session, server, n) for n in range(200)))

    with served(file, "--mesh", "tp=2", "--engine", "mpi", "--slots", 8) as server:
        answers = asyncio.run(say(server))
        assert answers == [wanted[n % 20] for n in range(200)]
        server.process.send_signal(signal.SIGTERM)
        _, err = server.process.communicate(timeout=100)
        assert server.process.returncode == 0
        assert killed.is_set() and err.count(" died") == 1 and "Traceback" not in err


@sampled(1)
@pytest.mark.parametrize(
    ("text", "arguments", "status", "message"),
    [
        ("", [], 1, "{file}: no function `decoder`, which returns what is to be served"),
        ("def decoder():\n    return 1", [], 1, "{file}: int has no slots, length, "),
        ("import nothing_here", [], 1, "{file}:1: ModuleNotFoundError: No module named 'nothing_here'"),
        ("x = 1\ndef decoder():\n    return 1 / 0", [], 1, "{file}:3: ZeroDivisionError: division by zero"),
        ("def decoder(", [], 1, "{file}: SyntaxError: "),
        ("def decoder(mesh=''): ...", ["--slots", 2], 2, "--slots: decoder of {file} takes no slots"),
        ("", ["--target", "gpu"], 2, "--target goes with a program, not with a Python file"),
        ("", ["--tokenizer", "none.json"], 1, "none.json: no tokenizer: "),
    ],
)  # fmt: skip
def test_a_file_that_is_no_model_is_refused(
    text: str, arguments: list[Any], status: int, message: str, tmp_path: Path
) -> None:
    pytest.importorskip("tokenizers")
    file = tmp_path / "model.py"
    file.write_text(text)
    done = meshweave("serve", file, *arguments)
    assert (done.status, done.err.count("\n")) == (status, 1), done.err
    assert done.err.startswith(f"meshweave: error: {message.format(file=file)}")
