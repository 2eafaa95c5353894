"""The only place that imports clients of other servers (boto3, httpx, kafka, influxdb_client, supervisor's RPC)."""
