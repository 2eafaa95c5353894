"""The one file of StreamOps on every node: fetch what a launch needs, verify it, unpack it, run it.

It uses the standard library and Spark only, because everything else comes with the artifact. It ends with 0
when the driver must not be started again, and with another code when the master shall relaunch it.
"""

import argparse
import hashlib
import os
import shutil
import sys
import threading
import time
import traceback
import zipfile
from pathlib import Path

os.environ["TZ"] = "UTC"  # rows carry naive times; UTC makes them mean what they say
time.tzset()

RELAUNCH = 75


def main() -> int:
    """Run one launch and return the exit code."""
    begun = time.monotonic()
    parser = argparse.ArgumentParser()
    for name in ("job", "launch", "deployment", "bucket", "artifact", "artifact-sha256", "runtime", "runtime-sha256"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()

    from pyspark import SparkContext

    _say(f"driver of {args.job}, launch {args.launch}, deployment {args.deployment}")
    context = SparkContext.getOrCreate()
    context.setLogLevel("WARN")
    ready = time.monotonic()
    work = Path.cwd() / f"streamops-{os.getpid()}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for kind, key, expected in (
        ("artifact", args.artifact, args.artifact_sha256),
        ("runtime", args.runtime, args.runtime_sha256),
    ):
        _fetch(context, f"s3a://{args.bucket}/{key}", work / f"{kind}.zip", expected)
        with zipfile.ZipFile(work / f"{kind}.zip") as archive:
            archive.extractall(work / kind)
    _say("artifact and runtime are verified and unpacked")
    for place in (work / "artifact" / "deps", work / "artifact" / "code", work / "runtime"):
        sys.path.insert(0, str(place))
    from streamops_runtime.runner import Launch, run

    unpacked = time.monotonic()
    phases = {"context": int((ready - begun) * 1000), "artifact": int((unpacked - ready) * 1000)}
    launch = Launch(args.job, args.launch, int(args.deployment), work / "artifact", work / "artifact.zip", phases)
    code = run(context, launch)
    shutil.rmtree(work, ignore_errors=True)
    return code


def _fetch(context: object, source: str, target: Path, expected: str) -> None:
    """Copy from the object store with the node's own credentials, and compare the hash."""
    gateway = context._jvm  # type: ignore[attr-defined]
    path = gateway.org.apache.hadoop.fs.Path(source)
    configuration = context._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    local = gateway.org.apache.hadoop.fs.Path(f"file://{target}")
    path.getFileSystem(configuration).copyToLocalFile(False, path, local, True)
    found = hashlib.sha256(target.read_bytes()).hexdigest()
    if found != expected:
        raise SystemExit(f"{source} has hash {found}, published was {expected}; it was altered, publish it anew.")


def _end_with_parent(parent: int) -> None:
    """Without the JVM this process can do nothing, and would not notice until it talks to it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(RELAUNCH)


def _say(text: str) -> None:
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "bootstrap", text, flush=True)


if __name__ == "__main__":
    try:
        status = main()
    except SystemExit as end:
        if isinstance(end.code, str):
            _say(end.code)
        status = end.code if isinstance(end.code, int) else 0
    except BaseException:
        _say(traceback.format_exc())
        status = RELAUNCH
    sys.stdout.flush()
    if status:
        os._exit(status)
