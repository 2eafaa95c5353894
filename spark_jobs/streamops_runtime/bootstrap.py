"""The one file of StreamOps on every node: fetch what a launch needs, verify it, unpack it, run it.

It uses the standard library and Spark only, because everything else comes with the artifact. It ends with 0
when the driver must not be started again, and with another code when the worker shall start it again. A launch that
cannot work says so in its status: what was published is altered or gone, or start after start ended before the driver
had come to its work. A store that is away is no such reason.
"""

import argparse
import hashlib
import io
import json
import os
import shutil
import socket
import sys
import threading
import time
import traceback
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

os.environ["TZ"] = "UTC"  # rows carry naive times; UTC makes them mean what they say
time.tzset()

RELAUNCH = 75
MOST_STARTS = 5  # in a row that end before the driver has the lease
SPEAKS_S = 5.0
ARCHIVE = "archive.zip"  # what a runtime was unpacked from, beside it
LIBRARY = "library.zip"  # Python imports from it as it is


class _CannotWorkError(Exception):
    """What no further start cures."""


class _AwayError(Exception):
    """What another start may cure, however many it takes."""


class Starts:
    """How many starts in a row ended before the driver had the lease; Spark starts all of them in one directory.

    Each is counted when it begins, so that one that is killed counts as well; ``number`` says which this one is.
    """

    def __init__(self, directory: Path) -> None:
        self.number = 1
        self._file = directory / "starts"

    def begin(self) -> None:
        """Count a start; a full disk counts nothing."""
        try:
            text = self._file.read_text() if self._file.exists() else ""
            self.number = int(text) + 1 if text.isdigit() else 1
            self._file.write_text(str(self.number))
        except OSError as error:
            _say(f"starts are not counted: {error}")

    def clear(self) -> None:
        """Reset the count: this start has come to its work, or waits for others."""
        self.number = 0
        with suppress(OSError):
            self._file.unlink(missing_ok=True)


def arguments() -> argparse.Namespace:
    """What the submission says."""
    parser = argparse.ArgumentParser()
    for name in ("job", "launch", "deployment", "bucket", "artifact", "artifact-sha256", "runtime", "runtime-sha256"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("library", "library-sha256", "status"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--nice", type=int, default=0)
    return parser.parse_args()


def end(args: argparse.Namespace, starts: Starts) -> int:
    """Run one launch to its end, whatever that is, and return the exit code."""
    starts.begin()
    try:
        return main(args, starts)
    except _CannotWorkError as error:
        return _give_up(args, str(error))
    except _AwayError:
        _say(traceback.format_exc())
        starts.clear()
        return RELAUNCH
    except BaseException as error:
        _say(traceback.format_exc())
        if starts.number < MOST_STARTS:
            return RELAUNCH
        last = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        return _give_up(
            args, f"{starts.number} starts in a row ended before the job could continue, the last with {last[:400]}"
        )


def main(args: argparse.Namespace, starts: Starts) -> int:
    """Run one launch and return the exit code."""
    begun = time.monotonic()
    if args.nice:
        give_way(args.nice)
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
        try:
            context = SparkContext.getOrCreate()
        except Exception as error:
            if wrong := _refused_setting(error):
                raise _CannotWorkError(
                    f"Spark refuses a setting: {wrong}. Correct it in the definition ('spark') or in the cluster's own "
                    "settings; then deploy the job again."
                ) from error
            raise _AwayError("the Spark master") from error
        context.setLogLevel("WARN")
        ready = time.monotonic()
        phases = brought.result()
    from streamops_runtime.runner import Launch, run

    phases["context"] = int((ready - begun) * 1000)
    phases["boot"] = int((time.monotonic() - begun) * 1000)
    library = work / LIBRARY if args.library else None
    archive = work / "artifact.zip"
    launch = Launch(
        args.job, args.launch, int(args.deployment), work / "artifact", archive, phases, library, starts.clear
    )
    code = run(context, launch)
    shutil.rmtree(work, ignore_errors=True)
    return code


def give_way(nice: int) -> None:
    """Let what else runs on this node come before this driver.

    On Linux each thread has a priority of its own, which those inherit that it starts (setpriority(2)). As
    ``streamops.spark.priority`` does it, of which nothing is there yet.
    """
    for process in (os.getpid(), os.getppid()):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)


def _refused_setting(error: Exception) -> str:
    """What Spark says of a setting that it cannot read; empty where something else is wrong, as a name of a host."""
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    java = getattr(error, "java_exception", None)
    if java is None:
        return ""
    causes = SparkContext._jvm.org.apache.commons.lang3.exception.ExceptionUtils.getThrowableList(java)

    def caused_by(kind: str) -> bool:
        return any(is_instance_of(SparkContext._gateway, cause, kind) for cause in causes)

    refused = caused_by("java.lang.IllegalArgumentException") and not caused_by("java.io.IOException")
    return str(java.getMessage()).splitlines()[0] if refused else ""


def _bring(args: argparse.Namespace, work: Path) -> dict:
    """Fetch, verify, unpack and import; returns how long each took, in milliseconds."""
    times = [time.monotonic()]
    _fetch(f"s3a://{args.bucket}/{args.artifact}", work / "artifact.zip", args.artifact_sha256)
    # Shared by all launches with the same bytes, so that a relaunch finds it unpacked and compiled.
    runtime = Path(__file__).resolve().parent / "runtimes" / args.runtime_sha256
    known = _intact(runtime, args.runtime_sha256)
    if not known:
        _fetch(f"s3a://{args.bucket}/{args.runtime}", work / "runtime.zip", args.runtime_sha256)
    if args.library:
        _fetch(f"s3a://{args.bucket}/{args.library}", work / LIBRARY, args.library_sha256)
    times.append(time.monotonic())
    _unpack(work / "artifact.zip", work / "artifact")
    if not known:
        _place(work / "runtime.zip", runtime)
    for place in (work / "artifact" / "deps", work / "artifact" / "code", runtime):
        sys.path.insert(0, str(place))
    _say("artifact and runtime are verified and unpacked")
    times.append(time.monotonic())
    import streamops_runtime.runner

    assert Path(streamops_runtime.runner.__file__).is_relative_to(runtime)
    times.append(time.monotonic())
    names = ("fetch", "unpack", "import")
    return {name: int((after - before) * 1000) for name, before, after in zip(names, times, times[1:])}  # noqa: B905


def _intact(runtime: Path, expected: str) -> bool:
    """Whether an unpacked runtime is what was published, byte for byte; what Python has compiled of it is left out.

    It takes a fifth of a second: the archive is hashed, and each file compared with it.
    """
    try:
        archive = (runtime / ARCHIVE).read_bytes()
        if hashlib.sha256(archive).hexdigest() != expected:
            return False
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            published = {runtime / item.filename: item for item in opened.infolist() if not item.is_dir()}
            found = {path for path in runtime.rglob("*") if path.is_symlink() or not path.is_dir()}
            more = found - published.keys() - {runtime / ARCHIVE}
            if any(path.is_symlink() or path.parent.name != "__pycache__" or path.suffix != ".pyc" for path in more):
                return False
            return all(path.read_bytes() == opened.read(item) for path, item in published.items())
    except OSError:
        return False


def _place(archive: Path, runtime: Path) -> None:
    """Unpack a runtime that was verified, in the place of one that is not what it was; others may do so as well."""
    runtime.parent.mkdir(mode=0o700, exist_ok=True)
    fresh, altered = (runtime.with_name(f".{os.getpid()}{end}") for end in ("", "-altered"))
    for left in (fresh, altered):
        shutil.rmtree(left, ignore_errors=True)
    _unpack(archive, fresh)
    shutil.copyfile(archive, fresh / ARCHIVE)
    if not _intact(runtime, hashlib.sha256(archive.read_bytes()).hexdigest()):  # else another driver was first
        known = (runtime / ARCHIVE).exists()  # the release before kept none
        with suppress(OSError):
            runtime.rename(altered)
            if known:
                _say(f"{runtime} was altered; it is replaced by what was published")
    try:
        fresh.rename(runtime)
    except OSError:  # another driver was first
        shutil.rmtree(fresh)
    shutil.rmtree(altered, ignore_errors=True)


def _unpack(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(target)


def _fetch(source: str, target: Path, expected: str) -> None:
    """Copy from the object store, and compare the hash."""
    from py4j.protocol import Py4JJavaError

    local, _ = _file(f"file://{target}")
    path, system = _file(source)
    try:
        system.copyToLocalFile(False, path, local, True)
    except Py4JJavaError as error:
        kind = error.java_exception.getClass().getSimpleName()
        if kind == "FileNotFoundException":
            raise _CannotWorkError(f"{source} is not there any more; put it back, then start the job again.") from error
        if kind == "AccessDeniedException":
            raise
        raise _AwayError(source) from error
    found = hashlib.sha256(target.read_bytes()).hexdigest()
    if found != expected:
        raise _CannotWorkError(
            f"{source} was altered: it has hash {found}, published was {expected}; put back what was published, then "
            "start the job again."
        )


def _file(uri: str) -> tuple:
    """A path, and the file system that it is of, with the node's own credentials."""
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    configuration = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(
        jvm.org.apache.spark.SparkConf(True)
    )
    path = jvm.org.apache.hadoop.fs.Path(uri)
    return path, path.getFileSystem(configuration)


def status(args: argparse.Namespace, reason: str) -> dict:
    """The final status of a launch that cannot work, as ``DriverStatus`` reads it."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    known = {"job": args.job, "launch": args.launch, "deployment": int(args.deployment), "state": "failed"}
    return known | {
        "holder": f"bootstrap-{os.getpid()}",
        "reason": _discreet(reason),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "driver": Path.cwd().name,
        "started": moment,
        "updated": moment,
    }


def _give_up(args: argparse.Namespace, reason: str) -> int:
    """Say in the launch's status why it cannot work, and do not come back."""
    _say(reason)
    if args.status:
        try:
            path, system = _file(f"s3a://{args.bucket}/{args.status}")
            if _changes(path, system):
                _say("the status belongs to another driver of this launch, which works")
                return 0
            stream = system.create(path, True)
            stream.write(json.dumps(status(args, reason)).encode())
            stream.close()
        except Exception:  # the store refuses this as well: the log is all there is
            _say(traceback.format_exc())
    return 0


def _end_with_parent(parent: int) -> None:
    """Without the JVM this process can do nothing, and would not notice until it talks to it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(RELAUNCH)


def _changes(path, system) -> bool:
    """Whether someone writes a file: a driver that works does so each second."""
    if not system.exists(path):
        return False
    before = system.getFileStatus(path).getModificationTime()
    time.sleep(SPEAKS_S)
    return system.getFileStatus(path).getModificationTime() != before


def _say(text: str) -> None:
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "bootstrap", _discreet(text), flush=True)


def _discreet(text: str) -> str:
    """Without credentials, once the runtime is there, which knows them; before that nothing of the job has run."""
    try:
        from streamops.model.discretion import without_credentials
    except ImportError:
        return text
    return without_credentials(text)


if __name__ == "__main__":
    code = end(arguments(), Starts(Path.cwd()))
    sys.stdout.flush()
    if code:
        os._exit(code)
