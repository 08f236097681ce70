"""Stands in for `vllm`: records what it was given and behaves, or misbehaves, as a file says.

The file `behaviour.json` of the folder in STANDIN_FOLDER holds one word for each kind of process
(`prefill`, `decode`, `headless`, `serve`), or for one rank of it (`decode-1`):

    late:SECONDS   answers /health after a while       die:SECONDS  ends itself once it was healthy
    crash          fails with a traceback at once      hang         never answers /health
    mute           is healthy, but completes nothing   deaf         takes no notice of SIGTERM
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(os.environ["STANDIN_FOLDER"])
ARGV = sys.argv[1:]
BEGAN = time.monotonic()


def value(flag, default=None):
    return ARGV[ARGV.index(flag) + 1] if flag in ARGV else default


def kind():
    if "--headless" in ARGV:
        return "headless"
    role = json.loads(value("--kv-transfer-config", "{}")).get("kv_role")
    return {"kv_producer": "prefill", "kv_consumer": "decode"}.get(role, "serve")


KIND = kind()
NAME = KIND if value("--data-parallel-rank") is None else f"{KIND}-{value('--data-parallel-rank')}"
LISTED = json.loads((FOLDER / "behaviour.json").read_text())
BEHAVIOUR, _, SECONDS = LISTED.get(NAME, LISTED.get(KIND, "")).partition(":")


def note(event):
    with (FOLDER / "events").open("a") as stream:
        stream.write(f"{event} {NAME} {os.getpid()}\n")


def end(*_):
    note("drained")
    os._exit(0)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, tree, status=200):
        body = json.dumps(tree).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/v1/models":
            self.send({"object": "list", "data": [{"id": value("--served-model-name")}]})
            return
        early = BEHAVIOUR == "late" and time.monotonic() - BEGAN < float(SECONDS)
        healthy = not early and BEHAVIOUR != "hang"
        if healthy and not self.server.was_healthy:
            self.server.was_healthy = True
            note("healthy")
            if BEHAVIOUR == "die":
                threading.Timer(float(SECONDS), os._exit, (3,)).start()
        self.send({}, 200 if healthy else 503)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = json.loads(body)
        with (FOLDER / "requests").open("a") as stream:
            stream.write(json.dumps({"name": NAME, "path": self.path, "body": request}) + "\n")
        note("asked")
        if BEHAVIOUR == "mute":
            self.send({"error": {"message": "no cache"}}, 500)
            return
        choice = {"index": 0, "text": f"from {NAME}", "finish_reason": "stop"}
        answer = {"id": "1", "object": "text_completion", "choices": [choice]}
        if KIND == "prefill":
            answer["kv_transfer_params"] = {"remote_engine_id": "0", "remote_host": NAME}
        self.send(answer)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    was_healthy = False


def main():
    record = {"name": NAME, "argv": ARGV, "env": dict(os.environ), "pid": os.getpid()}
    (FOLDER / f"{NAME}.json").write_text(json.dumps(record))
    note("started")
    if BEHAVIOUR == "crash":
        raise RuntimeError("Available KV cache memory: -1.5 GiB")
    # A worker below the server: nobody may leave it behind.
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    (FOLDER / f"{NAME}.worker").write_text(str(worker.pid))
    handler = signal.SIG_IGN if BEHAVIOUR == "deaf" else end
    signal.signal(signal.SIGTERM, handler)
    if KIND == "headless":
        if BEHAVIOUR == "die":
            time.sleep(float(SECONDS))
            os._exit(3)
        while True:
            time.sleep(0.05)
    Server((value("--host", "127.0.0.1"), int(value("--port"))), Handler).serve_forever()


main()
