module streamops.local/minio

go 1.26.8
