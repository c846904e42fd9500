"""The servers, the proxy's faults and the machines do what the other tests rely on."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import botocore.exceptions
import fsspec
import pytest
from machines import running
from servers import S3, Fault, Proxy
from waiting import PATIENCE, eventually

DATA = bytes(range(256)) * 1024


def s3fs_of(server: S3, **options: Any) -> Any:
    return fsspec.filesystem("s3", **server.storage_options, **options)


def once(proxy: Proxy) -> Any:
    """A filesystem that tries once."""
    config = {"connect_timeout": PATIENCE, "read_timeout": PATIENCE, "retries": {"max_attempts": 0}}
    filesystem = s3fs_of(proxy, config_kwargs=config)
    filesystem.retries = 1
    return filesystem


def get(proxy: Proxy, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(proxy.endpoint).netloc, timeout=PATIENCE)
    try:
        connection.request(method, f"/{path}")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_slow_answer_is_not_an_error(proxy: Proxy, bucket: str) -> None:
    """The client waits for bytes, not for the body."""
    s3fs_of(proxy).pipe_file(f"{bucket}/a", DATA)
    proxy.faults = [Fault("slow", method="GET", bytes=1000)]
    filesystem = once(proxy)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(filesystem.cat_file, f"{bucket}/a")
        eventually(lambda: any(request.sent >= 1000 for request in proxy.seen("GET", "/a")))
        assert not answer.done()
        (request,) = proxy.seen("GET", "/a")
        proxy.down()
        assert answer.exception(PATIENCE) is not None
    assert request.status == 200
    assert request.sent < len(DATA)


def test_a_flipped_byte_is_the_only_one(proxy: Proxy, bucket: str) -> None:
    filesystem = once(proxy)
    filesystem.pipe_file(f"{bucket}/a", DATA)
    proxy.faults = [Fault("flip", path="/a", bytes=200_000)]
    found = filesystem.cat_file(f"{bucket}/a", start=0, end=len(DATA) - 1)
    assert [at for at in range(len(DATA) - 1) if found[at] != DATA[at]] == [200_000]
    # S3 keeps a checksum of the whole object, which the client checks when it reads the whole object.
    with pytest.raises(botocore.exceptions.FlexibleChecksumError):
        filesystem.cat_file(f"{bucket}/a")


def test_a_cut_body_announces_its_full_length(proxy: Proxy, bucket: str) -> None:
    s3fs_of(proxy).pipe_file(f"{bucket}/a", DATA, ACL="public-read")
    proxy.faults = [Fault("cut body", path="/a", bytes=1000)]
    with pytest.raises(http.client.IncompleteRead) as caught:
        get(proxy, f"{bucket}/a")
    assert len(caught.value.partial) == 1000
    assert caught.value.expected == len(DATA) - 1000


def test_after_a_lost_reply_the_object_is_written(proxy: Proxy, s3: S3, bucket: str) -> None:
    proxy.faults = [Fault("lost reply", method="PUT")]
    with pytest.raises(botocore.exceptions.ConnectionClosedError):
        once(proxy).pipe_file(f"{bucket}/a", b"x", mode="create")
    assert s3fs_of(s3).cat_file(f"{bucket}/a") == b"x"
    # The HTTP client itself always tries a second time, and is refused because of the object that the first
    # created.
    proxy.faults = [Fault("lost reply", method="PUT", times=1)]
    with pytest.raises(FileExistsError):
        once(proxy).pipe_file(f"{bucket}/b", b"x", mode="create")
    assert s3fs_of(s3).cat_file(f"{bucket}/b") == b"x"


def test_after_a_cut_upload_nothing_is_written(proxy: Proxy, s3: S3, bucket: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(DATA * 44)
    proxy.faults = [Fault("cut upload", method="PUT", path="partNumber=2", bytes=2 << 20)]
    with pytest.raises(Exception, match="onnect"):
        once(proxy).put_file(str(file), f"{bucket}/a", chunksize=5 << 20)
    parts = [request for request in proxy.seen("PUT") if request.fault]
    assert {request.status for request in parts} == {None}
    assert all(2 << 20 <= request.received < 3 << 20 for request in parts)
    assert not s3fs_of(s3).exists(f"{bucket}/a")


def test_faults_apply_to_some_requests_a_number_of_times(proxy: Proxy, bucket: str) -> None:
    s3fs_of(proxy).pipe_file(f"{bucket}/a", b"x", ACL="public-read")
    proxy.clear()
    proxy.faults = [Fault("status", path="/a$", method="GET", after=1, times=2, status=503)]
    assert [get(proxy, f"{bucket}/a")[0] for _ in range(4)] == [200, 503, 503, 200]
    assert get(proxy, f"{bucket}/a", "HEAD")[0] == 200
    assert [request.fault for request in proxy.requests] == [None, "status", "status", None, None]
    with pytest.raises(ValueError, match="'flap', not one of"):
        Fault("flap")


@pytest.mark.parametrize("fresh", [True, False])
def test_the_output_and_the_exit_code_of_a_machine(fresh: bool, tmp_path: Path) -> None:
    program = """
        import os, sys
        print(sys.argv[1], os.environ["HOME"], os.environ["MORE"], "LESS" in os.environ)
        sys.exit(3)
    """
    environment = {"MORE": "m", "LESS": None}
    with running(program, tmp_path / "one", "first", environment=environment, fresh=fresh) as one:
        assert one.wait() == 3
        assert one.stdout.split() == ["first", str(tmp_path / "one"), "m", "False"]
    with (
        running("1 / 0", tmp_path / "two", fresh=fresh) as two,
        pytest.raises(AssertionError, match="ZeroDivision"),
    ):
        two.check()


FAMILY = """
    import os, time
    child = os.fork()
    if child:
        print("child", child, flush=True)
    while True:
        time.sleep(0.02)
        if child:
            print("tick", flush=True)
"""


@pytest.mark.parametrize("fresh", [True, False])
def test_a_machine_that_takes_too_long_is_killed_with_all_its_processes(fresh: bool, tmp_path: Path) -> None:
    with running(FAMILY, tmp_path, fresh=fresh) as one:
        one.says("tick")
        child = int(one.stdout.split()[1])
        with pytest.raises(AssertionError, match=r"ran longer than 0\.1 s"):
            one.wait(0.1)
        assert one.wait() == -signal.SIGKILL
        eventually(lambda: not is_alive(child))


@pytest.mark.parametrize("fresh", [True, False])
def test_servers_and_machines_end_with_the_process_that_started_them(fresh: bool, tmp_path: Path) -> None:
    program = f"""
        import sys, time
        from pathlib import Path
        sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]}
        from machines import running
        from servers import faulty, gcs_server, s3_server
        if __name__ == "__main__":
            with s3_server() as s3, faulty(s3.endpoint) as proxy, gcs_server() as gcs:
                with running({FAMILY!r}, Path({str(tmp_path / "inner")!r}), fresh={fresh}) as one:
                    one.says("tick")
                    endpoints = s3.endpoint, proxy.endpoint, gcs.endpoint
                    print("child", one.stdout.split()[1], *endpoints, flush=True)
                    time.sleep(60)
    """
    path = tmp_path / "program.py"
    path.write_text("\n".join(line[8:] for line in program.split("\n")))
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.kill()
    eventually(lambda: not is_alive(int(said.split()[1])))
    for endpoint in said.split()[2:]:
        eventually(lambda endpoint=endpoint: not is_answered(endpoint))


def is_alive(pid: int) -> bool:
    """True if it runs: a dead process that nothing has waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    finished = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, timeout=10
    )
    return bool(finished.stdout.strip()) and "Z" not in finished.stdout


def is_answered(endpoint: str) -> bool:
    at = urlsplit(endpoint)
    with contextlib.suppress(OSError), socket.create_connection((at.hostname, at.port), PATIENCE):
        return True
    return False
