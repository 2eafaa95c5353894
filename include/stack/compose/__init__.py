"""The stack in containers: what has to be there before docker-compose.yaml is started."""
