"""Serves a folder over plain HTTP, read-only, with listings, and ranges if asked; prints its port."""

from __future__ import annotations

import re
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from leash import leash


class Files(SimpleHTTPRequestHandler):
    """The standard library's handler, with ranges, which it does not support."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if "no ranges" in sys.argv or not path.is_file() or asked is None or asked.groups() == ("", ""):
            return super().do_GET()
        size = path.stat().st_size
        first, last = asked.groups()
        start = int(first) if first else max(0, size - int(last))
        stop = min(size, int(last) + 1) if first and last else size
        if start >= stop:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(206)
        self.send_header("Content-Type", self.guess_type(path))
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        with path.open("rb") as file:
            file.seek(start)
            self.wfile.write(file.read(stop - start))

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "none" if "no ranges" in sys.argv else "bytes")
        super().end_headers()

    def log_message(self, *args: object) -> None:
        """Logs nothing."""


leash()
server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=sys.argv[1]))
server.daemon_threads = True
print(server.server_address[1], flush=True)
server.serve_forever()
