#!/bin/sh
# Builds the command line as static binaries, with their checksums and, for each, the list of the
# modules in it (a CycloneDX SBOM).
#
#   scripts/release.sh VERSION DIRECTORY [SYSTEM/ARCHITECTURE...]
#
# The same source and Go version give the same bytes: paths, times and the state of the
# repository are in no file. Check a download with
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
export GOWORK=off

cd "$(dirname "$0")/../cmd/once"
names=
for target in "$@"; do
	system=${target%/*}
	architecture=${target#*/}
	name=once_${system}_$architecture
	echo "$name"
	CGO_ENABLED=0 GOOS=$system GOARCH=$architecture "$go" build -trimpath -buildvcs=false \
		-ldflags "-s -w -X main.release=$version" -o "$out/$name" .
	GOFLAGS=-trimpath "$go" tool -modfile=../../tools/go.mod cyclonedx-gomod bin -json -noserial -std -version "$version" \
		-output "$out/$name.cdx.json.part" "$out/$name" 2>/dev/null
	# Only the time differs between two builds.
	sed '/^ *"timestamp": /d' "$out/$name.cdx.json.part" >"$out/$name.cdx.json"
	rm "$out/$name.cdx.json.part"
	names="$names $name $name.cdx.json"
done

cd "$out"
# shellcheck disable=SC2086 # the names have no blanks
if command -v sha256sum >/dev/null; then
	sha256sum $names >SHA256SUMS
else
	shasum -a 256 $names >SHA256SUMS
fi
