#!/bin/bash
# As apache/kafka documents it: KAFKA_<NAME> is a property, with "_" for a dot, "__" for "_" and "___" for "-".
set -euo pipefail

properties=/opt/kafka/config/server.properties
: > "$properties"
while IFS='=' read -r -d '' name value; do
    case $name in
        KAFKA_HEAP_OPTS | KAFKA_OPTS | KAFKA_JVM_PERFORMANCE_OPTS | KAFKA_LOG4J_* | KAFKA_JMX_* | KAFKA_GC_LOG_OPTS) ;;
        KAFKA_*)
            key=${name#KAFKA_}
            key=${key,,}
            key=${key//___/-}
            key=${key//__/$'\001'}
            key=${key//_/.}
            key=${key//$'\001'/_}
            printf '%s=%s\n' "$key" "${value//\\/\\\\}" >> "$properties"
            ;;
    esac
done < <(env -0)

# The options are lists of words by convention.
# shellcheck disable=SC2206
java=(
    java ${KAFKA_HEAP_OPTS:--Xms256m -Xmx1g} ${KAFKA_OPTS:-} -Djava.awt.headless=true
    -Dorg.slf4j.simpleLogger.showDateTime=true "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss"
    -cp '/opt/kafka/libs/*'
)
# Does nothing to a storage that has its format already.
"${java[@]}" kafka.tools.StorageTool format --ignore-formatted \
    --cluster-id "${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}" --config "$properties"
exec "${java[@]}" kafka.Kafka "$properties"
