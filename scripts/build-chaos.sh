#!/usr/bin/env bash
# Builds tests/chaos as it is in a commit, to run beside that of the work tree,
# and prints where the binary is. It is kept, by the commit's hash.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ $# -ne 1 ]; then
	echo "usage: scripts/build-chaos.sh COMMIT" >&2
	exit 2
fi
commit=$(git rev-parse --verify --quiet "$1^{commit}") || {
	echo "scripts/build-chaos.sh: there is no commit $1 here" >&2
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
