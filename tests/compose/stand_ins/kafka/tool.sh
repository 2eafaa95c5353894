#!/bin/bash
# The command-line tools under the names that they have in the published image.
set -euo pipefail
case ${0##*/} in
    kafka-topics.sh) class=TopicCommand ;;
    kafka-broker-api-versions.sh) class=BrokerApiVersionsCommand ;;
    *) echo "there is no tool ${0##*/} in this stand-in" >&2 && exit 2 ;;
esac
exec java -Xmx128m -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=warn \
    -cp '/opt/kafka/libs/*' "org.apache.kafka.tools.$class" "$@"
