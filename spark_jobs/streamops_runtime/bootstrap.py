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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["TZ"] = "UTC"  # rows carry naive times; UTC makes them mean what they say
time.tzset()

RELAUNCH = 75
LIBRARY = "library.zip"  # Python imports from it as it is


def main() -> int:
    """Run one launch and return the exit code."""
    begun = time.monotonic()
    parser = argparse.ArgumentParser()
    for name in ("job", "launch", "deployment", "bucket", "artifact", "artifact-sha256", "runtime", "runtime-sha256"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--library")
    parser.add_argument("--library-sha256")
    args = parser.parse_args()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()

    from pyspark import SparkContext

    _say(f"driver of {args.job}, launch {args.launch}, deployment {args.deployment}")
    SparkContext._ensure_initialized()
    work = Path.cwd() / f"streamops-{os.getpid()}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    # Both take seconds and mostly wait: Spark for its executors, this for the object store and the disk.
    with ThreadPoolExecutor(1) as pool:
        brought = pool.submit(_bring, args, work)
        context = SparkContext.getOrCreate()
        context.setLogLevel("WARN")
        ready = time.monotonic()
        phases = brought.result()
    from streamops_runtime.runner import Launch, run

    phases["context"] = int((ready - begun) * 1000)
    phases["boot"] = int((time.monotonic() - begun) * 1000)
    library = work / LIBRARY if args.library else None
    archive = work / "artifact.zip"
    launch = Launch(args.job, args.launch, int(args.deployment), work / "artifact", archive, phases, library)
    code = run(context, launch)
    shutil.rmtree(work, ignore_errors=True)
    return code


def _bring(args: argparse.Namespace, work: Path) -> dict:
    """Fetch, verify, unpack and import; returns how long each took, in milliseconds."""
    times = [time.monotonic()]
    _fetch(f"s3a://{args.bucket}/{args.artifact}", work / "artifact.zip", args.artifact_sha256)
    # Shared by all launches with the same bytes, so that a relaunch finds it unpacked and compiled.
    runtime = Path(__file__).resolve().parent / "runtimes" / args.runtime_sha256
    known = runtime.is_dir()
    if not known:
        _fetch(f"s3a://{args.bucket}/{args.runtime}", work / "runtime.zip", args.runtime_sha256)
    if args.library:
        _fetch(f"s3a://{args.bucket}/{args.library}", work / LIBRARY, args.library_sha256)
    times.append(time.monotonic())
    _unpack(work / "artifact.zip", work / "artifact")
    if not known:
        runtime.parent.mkdir(mode=0o700, exist_ok=True)
        _unpack(work / "runtime.zip", fresh := runtime.with_name(f".{os.getpid()}"))
        try:
            fresh.rename(runtime)
        except OSError:  # another driver was first
            shutil.rmtree(fresh)
    for place in (work / "artifact" / "deps", work / "artifact" / "code", runtime):
        sys.path.insert(0, str(place))
    _say("artifact and runtime are verified and unpacked")
    times.append(time.monotonic())
    import streamops_runtime.runner

    assert Path(streamops_runtime.runner.__file__).is_relative_to(runtime)
    times.append(time.monotonic())
    names = ("fetch", "unpack", "import")
    return {name: int((after - before) * 1000) for name, before, after in zip(names, times, times[1:])}  # noqa: B905


def _unpack(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(target)


def _fetch(source: str, target: Path, expected: str) -> None:
    """Copy from the object store with the node's own credentials, and compare the hash."""
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    configuration = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(
        jvm.org.apache.spark.SparkConf(True)
    )
    path = jvm.org.apache.hadoop.fs.Path(source)
    local = jvm.org.apache.hadoop.fs.Path(f"file://{target}")
    path.getFileSystem(configuration).copyToLocalFile(False, path, local, True)
    found = hashlib.sha256(target.read_bytes()).hexdigest()
    if found != expected:
        raise SystemExit(f"{source} has hash {found}, published was {expected}; it was altered, publish it again.")


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
