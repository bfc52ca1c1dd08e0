"""How servers other than plain Prometheus answer: limits, tenants, partial data, being busy. Told by a made-up server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from gpudiag.errors import InputError, StoreError
from gpudiag.storage.prometheus.client import Access, Client, Series
from gpudiag.storage.prometheus.reader import PrometheusReader

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
START = 1_790_000_000_000


@dataclass(frozen=True)
class Question:
    """A request as the server saw it; `span_ms` is the length of the time that it covers."""

    path: str
    headers: Mapping[str, str]
    asked: Mapping[str, str]

    @property
    def times_ms(self) -> range:
        begin, end, step = (round(float(self.asked[name]) * 1000) for name in ("start", "end", "step"))
        return range(begin, end + 1, step)

    @property
    def span_ms(self) -> int:
        if "start" in self.asked:
            return self.times_ms[-1] - self.times_ms[0]
        return int(self.asked["query"].rpartition("[")[2].removesuffix("ms]"))


Answer = tuple[int, Any] | tuple[int, Any, Mapping[str, str]]


@dataclass
class Server:
    """`rule` decides each answer; None leaves it to `success`."""

    url: str
    rule: Callable[[Question], Answer | None] = lambda question: None
    questions: list[Question] = field(default_factory=list)

    def answer(self, question: Question) -> Answer:
        self.questions.append(question)
        return self.rule(question) or success(question)


def success(question: Question, **more: Any) -> Answer:
    times = (
        question.times_ms if "start" in question.asked else [round(float(question.asked["time"]) * 1000) - 1]
    )
    values = [[at / 1000, "0.5"] for at in times]
    series = {"metric": {"__name__": "gpudiag_gpu_sm_active_ratio"}, "values": values}
    return 200, {"status": "success", "data": {"resultType": "matrix", "result": [series]}, **more}


def refused(code: int, reason: str, **headers: str) -> Answer:
    return code, {"status": "error", "errorType": "execution", "error": reason}, headers


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked = {name: values[0] for name, values in parse_qs(body).items()}
            code, content, *headers = made.answer(Question(self.path, dict(self.headers), asked))
            encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(code)
            for name, value in (headers[0] if headers else {}).items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, *_: object) -> None:
            pass

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    made = Server(f"http://127.0.0.1:{listening.server_port}")
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield made
    listening.shutdown()
    thread.join()
    listening.server_close()


def times(found: list[Series]) -> list[int]:
    return [int(at) for series in found for at in series.times_ms]


TOO_MUCH = [
    (400, "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution"),
    (422, "query processing would load too many samples into memory in query execution"),
    (
        422,
        "the query time range exceeds the limit (query length: 720h, limit: 1h) (err-mimir-max-query-length)",
    ),
    (422, "the query exceeded the maximum number of chunks (limit: 2000000 chunks)"),
    (503, "query timed out in expression evaluation"),
    (504, "gateway timeout"),
]


@pytest.mark.parametrize(("code", "reason"), TOO_MUCH)
def test_a_range_query_is_split_until_it_passes_and_no_point_is_lost_or_doubled(
    server: Server, code: int, reason: str
) -> None:
    server.rule = lambda question: refused(code, reason) if question.span_ms > HOUR else None
    found = Client(server.url).sampled("up", START, START + DAY, 15_000)
    assert times(found) == list(range(START, START + DAY + 1, 15_000))


@pytest.mark.parametrize(("code", "reason"), TOO_MUCH)
def test_raw_samples_are_read_in_smaller_slices(server: Server, code: int, reason: str) -> None:
    server.rule = lambda question: refused(code, reason) if question.span_ms > HOUR else None
    found = list(Client(server.url).raw("up", START, START + DAY))
    assert times(found)[-1] == START + DAY - 1
    assert sum(question.span_ms - 1 for question in server.questions if question.span_ms <= HOUR) == DAY


def test_no_question_is_longer_than_what_prometheus_answers(server: Server) -> None:
    found = Client(server.url).sampled("up", START, START + 30 * DAY, 60_000)
    assert max(len(question.times_ms) for question in server.questions) <= 11_000
    assert times(found) == list(range(START, START + 30 * DAY + 1, 60_000))


def test_a_server_that_refuses_even_a_minute_is_one_line(server: Server) -> None:
    server.rule = lambda _: refused(422, "too many samples")
    with pytest.raises(StoreError, match="too many samples"):
        list(Client(server.url).raw("up", START, START + HOUR))


def test_a_busy_server_is_asked_again_when_it_says(server: Server) -> None:
    answers: list[Answer] = [
        refused(
            429,
            "the request has been rejected because the tenant exceeded the request rate limit",
            Retry_After="7",
        ),
        (503, b"<html>no backend</html>"),
        refused(503, "too many outstanding requests"),
    ]
    server.rule = lambda _: answers.pop(0) if answers else None
    waited: list[float] = []
    found = Client(server.url, sleep=waited.append).sampled("up", START, START + MINUTE, 15_000)
    assert len(times(found)) == 5
    assert waited == [7, 2, 4]


def test_a_server_that_stays_busy_is_given_up(server: Server) -> None:
    server.rule = lambda _: refused(429, "slow down", Retry_After="3600")
    waited: list[float] = []
    with pytest.raises(StoreError, match=r"HTTP 429.*slow down"):
        Client(server.url, sleep=waited.append).sampled("up", START, START + MINUTE, 15_000)
    assert waited == [30.0] * 5


@pytest.mark.parametrize(
    "more",
    [{"warnings": ["No StoreAPIs matched for this query"]}, {"isPartial": True}],
    ids=["thanos", "victoria_metrics"],
)
def test_part_of_the_data_is_not_taken_for_all_of_it(server: Server, more: dict[str, Any]) -> None:
    server.rule = lambda question: success(question, **more)
    with pytest.raises(StoreError, match=r"only part of the data.*partial=yes"):
        Client(server.url).sampled("up", START, START + MINUTE, 15_000)
    assert server.questions[0].asked["partial_response"] == "false"
    found = Client(server.url, Access(partial=True)).sampled("up", START, START + MINUTE, 15_000)
    assert len(times(found)) == 5
    assert server.questions[1].asked["partial_response"] == "true"


def test_a_remark_about_the_query_does_not_make_the_data_partial(server: Server) -> None:
    server.rule = lambda question: success(question, warnings=["PromQL info: metric might not be a counter"])
    assert len(Client(server.url).sampled("up", START, START + MINUTE, 15_000)) == 1


def test_mimir_wants_a_path_a_tenant_and_a_token(server: Server, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    url = f"prometheus+{server.url}/prometheus?org=team%20a&token_file={tmp_path}/token&lookback=1d"
    PrometheusReader(url, now_ms=lambda: START).jobs()
    for question in server.questions:
        assert question.path.startswith("/prometheus/api/v1/query")
        assert question.headers["X-Scope-Orgid"] == "team a"
        assert question.headers["Authorization"] == "Bearer s3cret"


def test_a_plain_server_is_sent_no_tenant(server: Server) -> None:
    Client(server.url).sampled("up", START, START, 1000)
    assert not {"X-Scope-Orgid", "Authorization"} & set(server.questions[0].headers)


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (401, b"no org id\n", "HTTP 401"),
        (404, b"404 page not found\n", "under the path /prometheus"),
        (200, b'{"status":"success"}', "does not answer as Prometheus does"),
        (200, b"<html>log in</html>", "does not answer as Prometheus does"),
        (200, b"[]", "does not answer as Prometheus does"),
    ],
)
def test_anything_else_is_one_clear_line(server: Server, code: int, body: bytes, said: str) -> None:
    server.rule = lambda _: (code, body)
    with pytest.raises(StoreError, match=said) as caught:
        Client(server.url).sampled("up", START, START, 1000)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["partial=maybe", "token_file=/nowhere/token", "tenant=a"])
def test_a_wrong_option_says_what_was_expected(option: str) -> None:
    with pytest.raises(InputError, match="Prometheus URL"):
        PrometheusReader(f"prometheus+http://localhost?{option}")
