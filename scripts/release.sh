#!/bin/sh
# Builds the command line as static binaries, with their checksums.
#
#   scripts/release.sh VERSION DIRECTORY [SYSTEM/ARCHITECTURE...]
#
# The same source and Go version give the same bytes: paths, times and the state of the
# repository are not in the binaries. Check a download with
#
#   sha256sum --check --ignore-missing SHA256SUMS
set -eu
if [ $# -lt 2 ]; then
	echo "usage: scripts/release.sh VERSION DIRECTORY [SYSTEM/ARCHITECTURE...]" >&2
	exit 2
fi
version=$1
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
[ $# -gt 0 ] || set -- linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
go=${GO:-go}

cd "$(dirname "$0")/../cmd/once"
names=
for target in "$@"; do
	system=${target%/*}
	architecture=${target#*/}
	name=once_${system}_$architecture
	echo "$name"
	GOWORK=off CGO_ENABLED=0 GOOS=$system GOARCH=$architecture "$go" build -trimpath -buildvcs=false \
		-ldflags "-s -w -X main.release=$version" -o "$out/$name" .
	names="$names $name"
done

cd "$out"
# shellcheck disable=SC2086 # the names have no blanks
if command -v sha256sum >/dev/null; then
	sha256sum $names >SHA256SUMS
else
	shasum -a 256 $names >SHA256SUMS
fi
