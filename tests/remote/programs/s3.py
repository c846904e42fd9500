"""Moto's S3 server; prints its port."""

import logging
import threading

from leash import leash
from moto.server import ThreadedMotoServer
from werkzeug.serving import WSGIRequestHandler

leash()
# As real stores do, and several times as fast for small requests: a connection serves more than one.
WSGIRequestHandler.protocol_version = "HTTP/1.1"
WSGIRequestHandler.disable_nagle_algorithm = True
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
threading.Event().wait()
