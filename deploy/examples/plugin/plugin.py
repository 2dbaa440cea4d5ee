#!/usr/bin/env python3
"""A plugin of interLink in its smallest form: each container is a process of this machine.

    python3 plugin.py 4003
    SIDECARURL=http://127.0.0.1 SIDECARPORT=4003 tarbet interlink

Four calls are all that is needed: /create, /status, /getLogs and /delete. The contract is in
docs/reference/plugin-openapi.yaml. Images, volumes and restarts are left out on purpose, and what
is not understood is refused instead of being dropped.
"""
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PODS = {}  # by UID
LOCK = threading.Lock()
LOGS = tempfile.mkdtemp(prefix="plugin-")


class Refused(Exception):
    """What the caller asked for cannot be done; the text goes into the pod's status."""


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Container:
    def __init__(self, uid, spec):
        self.name, self.image = spec["name"], spec.get("image", "")
        command = (spec.get("command") or []) + (spec.get("args") or [])
        if not command:
            raise Refused(f"the container {self.name} has no command, and this plugin has no images")
        if spec.get("volumeMounts"):
            raise Refused(f"the container {self.name} has volumes, and this plugin has none")
        # Nothing of our own environment reaches the container.
        env = {"PATH": os.environ["PATH"]}
        env.update({entry["name"]: entry.get("value") or "" for entry in spec.get("env") or []})
        self.log = os.path.join(LOGS, f"{uid}-{self.name}")
        self.started, self.finished = now(), None
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def status(self):
        code = self.process.poll()
        if code is None:
            state = {"running": {"startedAt": self.started}}
        else:
            self.finished = self.finished or now()
            # A signal counts from 128, as shells have it.
            code = code if code >= 0 else 128 - code
            reason = "Completed" if code == 0 else "Error"
            state = {"terminated": {"exitCode": code, "reason": reason, "startedAt": self.started, "finishedAt": self.finished}}
        return {
            "name": self.name, "state": state, "lastState": {}, "ready": code is None, "restartCount": 0,
            "image": self.image, "imageID": self.image,
        }

    def end(self, grace):
        for sign, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, None)):
            if self.process.poll() is None:
                os.killpg(self.process.pid, sign)
                try:
                    self.process.wait(patience)
                except subprocess.TimeoutExpired:
                    pass
        if os.path.exists(self.log):
            os.remove(self.log)


def create(body):
    # One pod with its data; a list with one is the form of older API servers.
    data = body[0] if isinstance(body, list) else body
    meta, spec = data["pod"]["metadata"], data["pod"]["spec"]
    with LOCK:
        # The same pod may be sent twice, and is started once.
        if meta["uid"] not in PODS:
            if spec.get("initContainers"):
                raise Refused("this plugin runs no init containers")
            started = []
            try:
                for container in spec["containers"]:
                    started.append(Container(meta["uid"], container))
            except (Refused, OSError) as problem:
                for container in started:
                    container.end(0)
                raise Refused(str(problem))
            PODS[meta["uid"]] = (meta, started)
    return {"PodUID": meta["uid"], "PodJID": "process-" + meta["uid"]}


def status(body):
    if not body:
        # Asking for nothing is how the API server asks whether we are there.
        return {"status": "ok", "resources": {"cpu": str(os.cpu_count()), "pods": "100"}}
    answers = []
    for pod in body:
        uid = pod["metadata"]["uid"]
        with LOCK:
            known = PODS.get(uid)
        # A pod that is not known is left out: nobody may take it for ended.
        if known:
            meta, containers = known
            answers.append({
                "name": meta["name"], "namespace": meta["namespace"], "UID": uid, "JID": "process-" + uid,
                "containers": [container.status() for container in containers], "initContainers": None,
            })
    return answers


def logs(body):
    with LOCK:
        known = PODS.get(body["PodUID"])
    for container in known[1] if known else []:
        if body.get("ContainerName") in ("", None, container.name):
            with open(container.log, "rb") as log:
                lines = log.read().splitlines(keepends=True)
            tail = (body.get("Opts") or {}).get("Tail") or 0
            return b"".join(lines[-tail:] if tail else lines)
    raise Refused("there is no such container")


def delete(body):
    for pod in body if isinstance(body, list) else [body]:
        with LOCK:
            known = PODS.pop(pod["metadata"]["uid"], None)
        grace = (pod.get("spec") or {}).get("terminationGracePeriodSeconds")
        for container in known[1] if known else []:
            container.end(30 if grace is None else grace)
    return b"deleted\n"


CALLS = {"/create": create, "/status": status, "/getLogs": logs, "/delete": delete}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        # Bodies come with any method, also with GET.
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        call = CALLS.get(self.path)
        try:
            code, reply = (200, call(json.loads(body or b"[]"))) if call else (404, b"no such call\n")
        except Refused as refused:
            code, reply = 422, f"{refused}\n".encode()
        except (ValueError, KeyError, TypeError) as problem:
            code, reply = 400, f"the body makes no sense: {problem!r}\n".encode()
        text = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(reply, bytes) else "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, form, *words):
        print(self.log_date_time_string(), form % words, file=sys.stderr)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 4003
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
