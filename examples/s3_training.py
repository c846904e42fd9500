"""Training from S3 with a small cache, stopped and continued on another machine: the same losses.

    python examples/s3_training.py    # starts an S3 server of its own
    python examples/s3_training.py --url s3://bucket/prefix     # with the AWS environment and S3_ENDPOINT

The first needs the extra `s3` of torchyoga, and `pip install "moto[server]" scikit-learn`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import torchyoga as yoga

BATCH_SIZE, STOP_AFTER = 32, 25  # of 57 batches

SERVER = """
import os, sys, threading
from moto.server import ThreadedMotoServer
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
threading.Event().wait()
"""


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Moto's server in a process of its own, with an empty bucket; gives a URL and sets the environment."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,  # the server ends when this is closed, so also when this program is killed
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    try:
        port = server.stdout.readline().strip()
        if not port:
            sys.exit('the S3 server did not start; pip install "moto[server]"')
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "S3_ENDPOINT": f"http://127.0.0.1:{port}",
        }
        import s3fs

        s3fs.S3FileSystem(**options()).call_s3("create_bucket", Bucket="example")
        yield "s3://example/data"
    finally:
        server.kill()
        server.communicate()


def options() -> dict[str, str]:
    """For s3fs; credentials come from the environment."""
    endpoint = os.environ.get("S3_ENDPOINT")
    return {"endpoint_url": endpoint} if endpoint else {}


def digits(url: str, cache: Path) -> yoga.DataRef:
    """The digits: the first process builds and publishes them, all others read them."""
    storage = yoga.Storage(url, storage_options=options(), cache_dir=cache, cache_bytes=10_000_000)

    @storage.cacheable("digits", "1.0", progress=False)
    def build() -> dict[str, object]:
        print("   built and published", flush=True)
        digits = load_digits()
        return {"image": (digits.images / 16).astype("float32"), "label": digits.target}

    return build()


def train(url: str, folder: Path, machine: str, stop_after: int | None) -> None:
    """One epoch on a machine with a cache of its own, from the checkpoint if there is one."""
    cache = folder / f"cache of {machine}"
    loader = yoga.DataLoader(digits(url, cache), BATCH_SIZE, shuffle="block", seed=7)
    torch.set_num_threads(1)  # the last bits of sums depend on how many threads share the work
    torch.manual_seed(7)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])
    losses = []
    for batch in loader:
        loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        if len(losses) == stop_after:
            data = loader.state_dict()
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": data}
            torch.save(saved, checkpoint)
            print(f"   stopped after {stop_after} batches: {json.dumps(data)}")
            break
    (folder / machine).write_text("\n".join(losses))
    files = [path.stat().st_size for path in (cache / "files").iterdir()]
    print(f"   {len(losses)} batches; the cache holds {len(files)} files, {sum(files) / 1e6:.1f} MB")


def run(url: str, folder: Path, machine: str, stop_after: int | None = None) -> list[str]:
    """Trains in another process; returns the losses, bit for bit."""
    command = [sys.executable, __file__, "--url", url, "--train", str(folder), machine, str(stop_after or "")]
    subprocess.run(command, check=True)
    return (folder / machine).read_text().splitlines()


def main(url: str) -> None:
    """The story."""
    with tempfile.TemporaryDirectory() as name:
        for part in ("whole", "parts"):
            (Path(name) / part).mkdir()
        print(f"1. An epoch from {url} without a break; the first process builds and publishes the dataset")
        whole = run(url, Path(name) / "whole", "machine A")
        print("2. The same on machine B, which only reads, and stops")
        first = run(url, Path(name) / "parts", "machine B", STOP_AFTER)
        print("3. Continued on machine C, with an empty cache")
        rest = run(url, Path(name) / "parts", "machine C")
        assert first + rest == whole, "the losses differ"
        print(f"all {len(whole)} losses are equal")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", help="where to publish; by default on an S3 server that is started here")
    parser.add_argument("--train", nargs=3, metavar=("FOLDER", "MACHINE", "STOP_AFTER"), help="one machine")
    arguments = parser.parse_args()
    if arguments.train:
        folder_, machine_, stop_ = arguments.train
        train(arguments.url, Path(folder_), machine_, int(stop_) if stop_ else None)
    elif arguments.url:
        main(arguments.url)
    else:
        with s3_server() as url_:
            main(url_)
