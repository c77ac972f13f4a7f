#!/bin/sh
# Checks that the go.mod files require the lowest versions that work: with the version before, a package
# does not build. docs/contributing/proof.md lists the reasons. Changes no file of the repository.
set -eu
cd "$(dirname "$0")/.."
go=${GO:-go}
status=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fails DIRECTORY PACKAGE MODULE@VERSION... expects that a package of a module does not build with
# these versions.
fails() {
	directory=$1 package=$2
	shift 2
	cp "$directory/go.mod" "$directory/go.sum" "$work"
	for version; do "$go" mod edit -replace="${version%@*}=$version" "$work/go.mod"; done
	(cd "$directory" && GOWORK=off GOFLAGS=-mod=mod "$go" mod download -modfile="$work/go.mod" $(printf '%s ' "$@" | sed 's/@[^ ]*//g'))
	if (cd "$directory" && GOWORK=off GOFLAGS=-mod=mod "$go" build -modfile="$work/go.mod" -o /dev/null "$package") 2>"$work/errors"; then
		echo "$package builds with $*: lower the version in go.mod" >&2
		status=1
	elif ! grep -q '\.go:[0-9]' "$work/errors"; then # not an error of the compiler
		cat "$work/errors" >&2
		status=1
	else
		echo "$package does not build with $*"
	fi
}

otel=go.opentelemetry.io/otel
fails . . github.com/ThreeDotsLabs/watermill@v1.5.0
fails . ./rabbit github.com/rabbitmq/amqp091-go@v1.9.0
fails . ./internal/telemetry $otel@v1.39.0 $otel/metric@v1.39.0 $otel/trace@v1.39.0
fails examples/recipes gorm.io/driver/postgres github.com/jackc/pgx/v5@v5.5.5
exit $status
