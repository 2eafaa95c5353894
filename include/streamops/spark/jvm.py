"""How Spark's JVMs are started: drivers, executors, masters, workers, and local sessions.

All of them share an *archive of classes*: what Java's class data sharing keeps of a training run, loaded and verified,
so that a start maps it instead of reading thousands of classes from jars. Java takes it only where the class path
begins as it did then, from the same jars, on the same Java; otherwise it reads the jars, as it would without one.
"""

from __future__ import annotations

from pathlib import Path

# A driver is started by Spark's own submission inside a worker, which leaves out what Spark opens elsewhere by itself
# (JavaModuleOptions): sources in Python hand their rows over through Arrow, which needs direct buffers.
_OPENED = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util java.util.concurrent "
    "java.util.concurrent.atomic jdk.internal.ref sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar"
).split()
_DRIVER = " ".join(
    (
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Xss16m",  # the check of a failed batch's message runs a deep regular expression, and would overflow
    )
)
_SERIAL = "-XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError"  # one thread for collecting keeps a JVM small
# A driver plans and waits, so that compiling less starts it sooner and costs nothing later. An executor that compiled
# so little had its first result a third sooner after a kill, and then could not hold 10,000 trades a second.
_LEAN = f"-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m {_SERIAL}"
_YOUNG = "-XX:NewRatio=1"  # nearly all that a batch allocates dies with it
# Ten times Java's own thresholds for its second compiler, which else takes a core of an executor for a minute and a
# half. What is called for every event reaches them in a second; what is called for every batch is not worth it.
_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)


def class_path(spark_home: str | Path) -> str:
    """What comes first on the class path, before the directory of settings that Spark puts there itself."""
    return f"{spark_home}/jars/*"


def archive(spark_home: str | Path) -> Path:
    """Where the archive of classes is, if set-up could make one."""
    return Path(spark_home) / "classes.jsa"


def sharing(spark_home: str | Path) -> str:
    """Options that use the archive; an archive of other jars or another Java is passed over in silence."""
    return f"-XX:SharedArchiveFile={archive(spark_home)} -Xlog:cds=off -Xlog:class+path=off"


def driver(spark_home: str | Path, memory: str) -> str:
    """Java options of a driver, which has its whole heap at once."""
    return f"{_DRIVER} {_LEAN} {sharing(spark_home)} -Xms{memory}"


def executor(spark_home: str | Path, memory: str) -> str:
    """Java options of an executor, which has its whole heap at once."""
    return f"{_SERIAL} {_YOUNG} {_LATER} {sharing(spark_home)} -Xms{memory}"


def client() -> str:
    """Java options of ``spark-submit``, which only hands a driver over and ends: a third of the time, half the work."""
    return _LEAN


def brief(spark_home: str | Path | None = None) -> dict[str, str]:
    """Spark's settings of a local session that lives for seconds, with the archive where this Spark has one.

    What the second compiler and parallel collectors gain comes too late for it.
    """
    options = "spark.driver.extraJavaOptions"
    if not spark_home or not archive(spark_home).exists():
        return {options: _LEAN}
    return {options: f"{_LEAN} {sharing(spark_home)}", "spark.driver.extraClassPath": class_path(spark_home)}


def daemon(spark_home: str | Path) -> str:
    """Java options of a master or a worker."""
    return f"{_LEAN} {sharing(spark_home)}"


def training(spark_home: str | Path, java: str, script: str | Path, target: str | Path) -> list[str]:
    """The command that runs a script as a driver would be, and keeps the classes that it loaded in ``target``."""
    options = [*_DRIVER.split(), *_LEAN.split(), f"-XX:ArchiveClassesAtExit={target}", "-Xlog:cds=off"]
    spark = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2]", str(script)]
    return [java, *options, "-cp", class_path(spark_home), *spark]


def proof(spark_home: str | Path, java: str, target: str | Path) -> list[str]:
    """The command that fails unless Java takes ``target`` as an archive of these jars."""
    return [java, "-Xshare:on", f"-XX:SharedArchiveFile={target}", "-cp", class_path(spark_home), "-version"]
