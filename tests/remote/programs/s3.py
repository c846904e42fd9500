"""Moto's S3 server; prints its port."""

import logging
import threading
from typing import Any

from leash import leash
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
from werkzeug.serving import WSGIRequestHandler

leash()
# Moto checks a condition and then writes, and two threads may both check first. Real stores do both in one
# step.
LOCK, put_object = threading.Lock(), S3Response.put_object


def put_in_one_step(self: S3Response) -> Any:
    with LOCK:
        return put_object(self)


S3Response.put_object = put_in_one_step
# A connection serves several requests, as with real stores; this is several times as fast for small ones.
WSGIRequestHandler.protocol_version = "HTTP/1.1"
WSGIRequestHandler.disable_nagle_algorithm = True
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
threading.Event().wait()
