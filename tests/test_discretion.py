"""What must not be said is left out of messages, wherever they come from, and nothing else is."""

from __future__ import annotations

import logging
import random
import string
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import requests
import urllib3

from streamops.model.definitions import Http
from streamops.model.discretion import without_credentials
from streamops.model.errors import RefusedError, UnreachableError
from streamops.operations import follow
from streamops.operations.operation import Request
from streamops.store import joblogs
from streamops_runtime.shipping import Discreet

PLAIN = string.ascii_letters + string.digits
ENCODED = f"{PLAIN}-._~%!$*+"
BACKSLASH = "\\"
UNENCODED = f"{ENCODED}/?#:@=,&;()[]{{}}|^`äß✓{BACKSLASH}"
PLACES = [  # where a password stands, of what it may consist there, and what is said
    ("http://ada:{}@pings.example:8000/pings", UNENCODED, "http://***@pings.example:8000/pings"),
    ("get https://{}@pings.example/pings, again", ENCODED, "get https://***@pings.example/pings, again"),
    ("postgresql://ada:{}@[::1]/pings", UNENCODED, "postgresql://***@[::1]/pings"),
    (
        "jdbc:postgresql://db/pings?password={}&ssl=1",
        f"{ENCODED}/?#:@()",
        "jdbc:postgresql://db/pings?password=***&ssl=1",
    ),
    (
        "jdbc:sqlserver://db;password={};encrypt=true",
        f"{ENCODED}/?#:()",
        "jdbc:sqlserver://db;password=***;encrypt=true",
    ),
    ("jdbc:sqlserver://db;password={{{}}};encrypt=1", f"{ENCODED};& ", "jdbc:sqlserver://db;password=***;encrypt=1"),
    ("jdbc:oracle:thin:ada/{}@db.example:1521/pings", UNENCODED, "jdbc:oracle:thin:***@db.example:1521/pings"),
    ("GET /pings?since=1&access_token={} HTTP/1.1", ENCODED, "GET /pings?since=1&access_token=*** HTTP/1.1"),
    ("/key?X-Amz-Signature={}&X-Amz-Date=1", ENCODED, "/key?X-Amz-Signature=***&X-Amz-Date=1"),
    ("fs.s3a.secret.key = {}", f"{ENCODED}/?#:@(){{}}|^`äß✓", "fs.s3a.secret.key = ***"),
    (
        'Required username="ada" password="{}";',
        f"{UNENCODED.replace(BACKSLASH, '')} '",
        'Required username="ada" password=***;',
    ),
    ("{{'sasl.password': '{}', 'a': 1}}", f'{UNENCODED.replace(BACKSLASH, "")} "', "{'sasl.password': ***, 'a': 1}"),
    ('{{"user": "ada", "apiKey": "{}"}}', f"{UNENCODED.replace(BACKSLASH, '')} '", '{"user": "ada", "apiKey": ***}'),
    ("Settings(user=ada, token={}, org=here)", f"{ENCODED}/:@", "Settings(user=ada, token=***, org=here)"),
    ("Authorization: Basic {}", f"{PLAIN}+/=", "Authorization: ***"),
    ("{{'Authorization': 'Bearer {}'}}", f"{PLAIN}+/=.-_", "{'Authorization': ***}"),
    ("-H Bearer p0123456{}", f"{PLAIN}+/=.-_", "-H Bearer ***"),
    ("[('spark.authenticate.secret', '{}')]", PLAIN, "[('spark.authenticate.secret', ***)]"),
    ("(spark.authenticate.secret,{})", PLAIN, "(spark.authenticate.secret,***)"),
    ("spark.authenticate.secret {}", PLAIN, "spark.authenticate.secret ***"),
]


@pytest.mark.parametrize(("place", "alphabet", "said"), PLACES)
def test_a_password_is_left_out_wherever_it_stands_and_the_rest_is_said(
    place: str, alphabet: str, said: str, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        text = place.format(f"p{''.join(chance.choices(alphabet, k=chance.randint(8, 40)))}w")
        assert without_credentials(text) == said, text
    assert without_credentials(said) == said


@pytest.mark.parametrize(
    "text",
    [
        "InfluxDB at http://127.0.0.1:8086 refused a query on bucket ops (401 no); check bucket, token and data.",
        "stages.averages.sinks.0.influxdb.secret: Field required",
        "There is no secret other here: /node.env lacks OTHER_TOKEN, OTHER_URL; add these lines.",
        "Source trades reads trades@broker.example:9092, from http://host:8080/path/@v1 and s3a://bucket/jobs/a/b",
        "Address '/data/day=3' of source alpha; lag 1,234; batch 7 in 12 ms",
        "jdbc:oracle:thin:@db.example:1521/pings",
        "password: not given",
    ],
)
def test_what_is_no_password_is_said(text: str) -> None:
    assert without_credentials(text) == text


def test_no_line_takes_long() -> None:
    began = time.process_time()
    for part in (
        "a.",
        "a://",
        "a://a:",
        "token",
        "token=,a",
        "a://b:c",
        "jdbc:a:b/",
        "password='",
        "{",
        "x@",
        "Token ",
        "=\\'",
    ):
        without_credentials(part * (60_000 // len(part)))
    assert time.process_time() - began < 10


ADDRESS = "http://ada:hunter2@127.0.0.1:9/pings?password=hunter2&since=1"


@pytest.mark.parametrize(
    "ask",
    [
        lambda: urllib3.PoolManager(retries=False).request("GET", ADDRESS),
        lambda: urllib3.PoolManager(retries=1).request("GET", ADDRESS),
        lambda: requests.get(ADDRESS, timeout=1),
        lambda: requests.get("http://ada:hunter2@[x/", timeout=1),
        lambda: httpx.get(ADDRESS.replace(":9/", ":nine/"), trust_env=False),
        lambda: urllib.request.urlopen("ftp://ada:hunter2@127.0.0.1:9/pings", timeout=1),
    ],
)
def test_errors_of_other_libraries_are_quoted_without_what_they_tell(ask: Callable[[], object]) -> None:
    with pytest.raises(Exception) as raised:
        ask()
    error = UnreachableError(f"{ADDRESS} did not answer ({raised.value!r}); retry.")
    assert "hunter2" not in f"{error} {error!r} {error.args}"
    assert "127.0.0.1:9/pings" in str(error)
    record = logging.LogRecord("source.pings", logging.ERROR, __file__, 1, "%s failed", (ADDRESS,), raised._excinfo)
    assert "hunter2" not in Discreet("%(message)s").format(record)
    for line in raised.exconly().splitlines():
        assert "hunter2" not in joblogs.parse(line, joblogs.Line(time="2026-01-01T00:00:00Z", text="")).text


def test_rows_of_a_log_sink_are_data() -> None:
    row = "token=4 http://a:b@c"
    assert Discreet().format(logging.LogRecord("sink.pings", logging.INFO, __file__, 1, row, (), None)) == row


def test_an_address_with_a_password_is_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    url = "http://ada:hunter2@pings.example/pings"
    with pytest.raises(ValueError, match="a user or a password"):
        Http(url=url)
    assert Http(url="http://pings.example:8000/a@b").url
    with pytest.raises(RefusedError, match=r"addresses\.alpha: .*a user or a password") as refused:
        follow.request("deploy_job", job="a", version="v1", addresses={"alpha": url})
    assert "hunter2" not in str(refused.value)
    stored = {"runbook": "deploy_job", "job": "a", "version": "v1", "addresses": {"alpha": url}}
    assert Request.recorded(stored).addresses == {"alpha": url}  # what was accepted once can still be read
    assert follow.request("deploy_job", job="a", version="v1", addresses={"alpha": "/data/token=3"})
