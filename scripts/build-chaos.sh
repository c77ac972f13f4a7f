#!/usr/bin/env bash
# Builds tests/chaos of a commit, to run beside tests/chaos of the work tree, and
# prints the path of the binary. The binary is cached under the commit's hash.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ $# -ne 1 ]; then
	echo "usage: scripts/build-chaos.sh COMMIT" >&2
	exit 2
fi
commit=$(git rev-parse --verify --quiet "$1^{commit}") || {
	echo "scripts/build-chaos.sh: commit $1 does not exist in this repository" >&2
	exit 2
}
binary=${XDG_CACHE_HOME:-$HOME/.cache}/watermill-once/chaos-$commit
if [ ! -x "$binary" ]; then
	tree=$(mktemp -d)
	trap 'rm -rf "$tree"' EXIT
	git archive "$commit" | tar -x -C "$tree"
	(cd "$tree" && go build -o "$binary" ./tests/chaos) >&2
fi
echo "$binary"
