"""Runs a command in a session of its own, and kills the whole session as soon as the process that asked is
gone.

guard.py STDOUT STDERR COMMAND...: prints the command's process id, and its exit code at the end. Standard
input is the leash: the kernel closes it, however the other end dies.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

with open(sys.argv[1], "wb") as stdout, open(sys.argv[2], "wb") as stderr:
    child = subprocess.Popen(
        sys.argv[3:], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
    )
print(child.pid, flush=True)


def watch() -> None:
    os.read(0, 1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


threading.Thread(target=watch, daemon=True).start()
code = child.wait()
with contextlib.suppress(BrokenPipeError):
    print(code, flush=True)
# Processes that the command has left in its session are killed with it, also while the other end still lives.
with contextlib.suppress(ProcessLookupError):
    os.killpg(child.pid, signal.SIGKILL)
