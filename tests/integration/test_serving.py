"""The parts of `tgq serve` that need no service: children, their output, ports, what is printed."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from common.settings import DEFAULT_MODEL, Settings
from ops.columns import print_columns
from ops.embedded_redis import EmbeddedRedis, RedisUnavailable
from ops.ports import PortTaken, check_port, free_port
from ops.serving import child as child_module
from ops.serving import restarts
from ops.serving.child import Child, ChildFailed
from ops.serving.kept_redis import KeptRedis
from ops.serving.output import open_output, read_lines
from ops.serving.service import Service
from ops.serving.view import LinesOnly, LineView
from ops.serving.welcome import curl_line, local_address


class RecordingView:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, stage: str, fraction: float, detail: str = "") -> None: ...

    def done(self) -> None: ...


def child_running(program: str, view: RecordingView) -> Child:
    child = Child("worker", [], dict(os.environ), view)
    child._arguments = [sys.executable, "-c", program]
    return child


def tend_until_it_fails(child: Child, seconds: float = 30.0) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            child.tend()
        except ChildFailed as error:
            return str(error)
        time.sleep(0.01)
    raise AssertionError("it never failed")


def test_a_child_that_never_starts_fails_with_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "LONGEST_DELAY", 0.05)
    view = RecordingView()
    child = child_running("import sys; print('no such model', file=sys.stderr); sys.exit(1)", view)
    child.start()
    message = tend_until_it_fails(child)
    assert message.startswith("worker ended with exit status 1:")
    assert message.endswith("no such model")
    assert view.lines.count("no such model") == child_module.FIRST_STARTS


def test_a_bad_setting_is_not_tried_twice() -> None:
    view = RecordingView()
    child = child_running("import sys; print('tgq: PORT: no'); sys.exit(2)", view)
    child.start()
    assert tend_until_it_fails(child).endswith("tgq: PORT: no")
    assert view.lines.count("tgq: PORT: no") == 1


def test_a_child_that_has_worked_is_started_again_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    view = RecordingView()
    child = child_running("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", view)
    child.works = True
    child.start()
    deadline = time.monotonic() + 30
    while sum("starting it again" in line for line in view.lines) < 3:
        assert time.monotonic() < deadline
        monkeypatch.setattr(child, "_start_again_at", child._start_again_at and 0.0)  # No need to wait it out.
        child.tend()
    child.kill()
    assert [line.rpartition(" in ")[2] for line in view.lines] == ["0 s", "2 s", "4 s"]
    assert "was ended by SIGKILL" in view.lines[0]


def test_a_child_that_ends_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "LONGEST_DELAY", 0.01)
    view = RecordingView()
    child = child_running("import sys; print('out of luck', file=sys.stderr); sys.exit(7)", view)
    child.works = True
    child.start()
    message = tend_until_it_fails(child)
    assert message.startswith("worker ended with exit status 7 again and again:")
    assert message.endswith("out of luck")
    assert view.lines.count("out of luck") == restarts.QUICK_ENDS


def test_one_worker_of_several_may_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "LONGEST_DELAY", 0.01)
    view = RecordingView()
    dying = child_running("import sys; sys.exit(7)", view)
    living = child_running("import time; time.sleep(600)", view)
    service = Service(Settings.of(redis_url="redis://127.0.0.1:1/0", port=0), view)
    service._workers = [dying, living]
    for child in service._workers:
        child.works = True
        child.start()

    def tend_until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            service.look_after()
            time.sleep(0.01)

    try:
        tend_until(lambda: service._workers == [living])
        assert view.lines[-1].startswith(
            "tgq: going on without a worker: worker ended with exit status 7 again and again"
        )
        assert living.alive
        living._restarts = restarts.Restarts()
        living._arguments = dying._arguments
        living.kill()
        with pytest.raises(ChildFailed, match="exit status 7 again and again"):
            tend_until(lambda: False)
    finally:
        living.kill()
        shutil.rmtree(service._directory)


def test_a_service_goes_on_without_its_batch_runner() -> None:
    view = RecordingView()
    runner = child_running("import sys; print('tgq: no such storage'); sys.exit(2)", view)
    service = Service(Settings.of(redis_url="redis://127.0.0.1:1/0", port=0), view)
    service._runners = [runner]
    runner.start()
    try:
        deadline = time.monotonic() + 30
        while service._runners:
            assert time.monotonic() < deadline
            service.look_after()
            time.sleep(0.01)
        assert view.lines[-1].startswith("tgq: going on without a batch runner: worker ended with exit status 2")
        assert view.lines[-1].endswith("tgq: no such storage")
    finally:
        runner.kill()
        shutil.rmtree(service._directory)


def test_ends_are_only_quick_in_a_row() -> None:
    kept = restarts.Restarts()
    quick = [kept.ended(1.0) for _ in range(restarts.QUICK_ENDS - 1)]
    assert quick == [0.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert kept.ended(restarts.LASTING_SECONDS + 1) == 0.0
    assert kept.ended(1.0) == 2.0
    assert restarts.Restarts().ended(1.0, most=1) is None


def test_a_redis_that_ends_comes_back_until_it_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "LONGEST_DELAY", 0.01)
    view = RecordingView()
    with EmbeddedRedis(tmp_path) as server:
        kept = KeptRedis(server, view)
        url = server.url

        def tend_until(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 30
            while not condition():
                assert time.monotonic() < deadline
                kept.tend()
                time.sleep(0.005)

        for number in range(1, restarts.QUICK_ENDS):
            server.kill()
            tend_until(lambda: server.running)
            assert server.url == url
            assert len(view.lines) == number
        assert view.lines[0] == "tgq: the embedded Redis ended; starting it again in 0 s"
        server.kill()
        with pytest.raises(RedisUnavailable, match="the embedded Redis ended; given up after too many times in a row"):
            tend_until(lambda: server.running)


def test_kill_ends_what_the_child_started() -> None:
    program = "import subprocess; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    view = RecordingView()
    child = child_running(program, view)
    child.start()
    deadline = time.monotonic() + 30
    while not view.lines:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.kill()
    assert not child.alive
    stat = Path(f"/proc/{view.lines[0]}/stat")
    while stat.exists() and " Z " not in stat.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("terminal", [False, True])
def test_output_comes_line_by_line(*, terminal: bool) -> None:
    reading, writing = open_output(terminal=terminal)
    assert os.isatty(writing) is terminal
    lines: list[str] = []
    reader = read_lines(reading, lines.append)
    os.write(writing, "one\nzwölf\nlast".encode())
    os.close(writing)
    reader.join(10)
    assert lines == ["one", "zwölf", "last"]


def test_progress_lines_are_rare_and_name_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    view = LineView()
    for percent in range(100):
        view.progress("loading", percent / 100, f"{percent} of 100 MB")
    view.progress("ready", 1.0)
    view.progress("loading", 0.99)
    LinesOnly(view).progress("never", 0.5)
    LinesOnly(view).line("said")
    assert stderr.getvalue().splitlines() == ["tgq: loading: 0% (0 of 100 MB)", "tgq: ready: 100%", "said"]


def test_lines_from_several_threads_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    view = LineView()

    def write() -> None:
        for _ in range(50):
            view.line("x" * 100)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stderr.getvalue().splitlines() == ["x" * 100] * 200


@pytest.mark.parametrize(
    ("hostname", "address"),
    [("0.0.0.0", "http://127.0.0.1:80"), ("::", "http://[::1]:80"), ("10.0.0.7", "http://10.0.0.7:80")],
)
def test_the_address_is_one_this_machine_reaches(hostname: str, address: str) -> None:
    assert local_address(hostname, 80) == address


def test_the_curl_line_is_good_shell_and_good_json() -> None:
    words = shlex.split(curl_line(Settings.of(model_id=DEFAULT_MODEL), "http://127.0.0.1:80"))
    assert words[:2] == ["curl", "http://127.0.0.1:80/generate"]
    assert json.loads(words[-1])["inputs"].endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_the_curl_line_sends_the_key_without_showing_it() -> None:
    line = curl_line(Settings.of(model_id="scripted", api_key="hush"), "http://127.0.0.1:80")
    assert "hush" not in line
    assert '"Authorization: Bearer $API_KEY"' in line


def test_a_taken_port_is_noticed() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = rf"cannot listen on 127\.0\.0\.1 port {port}: Address already in use; PORT and HOSTNAME choose another address"
        with pytest.raises(PortTaken, match=words):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", free_port("127.0.0.1"))


def test_no_port_is_given_twice() -> None:
    """Who asked for one may not listen yet. By chance alone some eighty of these would be the same."""
    ports = [free_port("127.0.0.1") for _ in range(2000)]
    assert len(set(ports)) == len(ports)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(PortTaken, match=r"cannot listen on 192\.0\.2\.1"):
        free_port("192.0.2.1")


def test_columns_are_as_wide_as_their_cells(capsys: pytest.CaptureFixture[str]) -> None:
    print_columns([("ID", "STATE"), ("worker-17", "ready")])
    assert capsys.readouterr().out == "ID         STATE\nworker-17  ready\n"
