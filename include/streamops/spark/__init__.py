"""All that knows Spark: checkpoints, the submission of drivers, the master's answers, local Spark, Java's options.

It talks to Spark through files, commands and HTTP, without PySpark. May import ``store`` and what lies below.

Entry points: ``checkpoints.tail``, ``submission.Submission``, ``submitter.SparkSubmitter``, ``master.Master``,
``local_spark.ask``.
"""
