#!/bin/sh
# Compares the exported API and the migrations with the last release (or TAG). It fails if the API
# has an incompatible change that CHANGELOG.md does not name, or if a released migration changed.
#
#   scripts/api.sh [TAG]
set -eu
cd "$(dirname "$0")/.."
go=${GO:-go}
tag=${1:-$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null || true)}
if [ -z "$tag" ]; then
	echo "There is no release yet, so there is no API to compare with."
	exit 0
fi
status=0

changed=$(git diff --name-only --diff-filter=MDR "$tag" -- 'schema/postgres/[0-9]*.sql' 'schema/sqlite/[0-9]*.sql')
if [ -n "$changed" ]; then
	echo "a released migration never changes, add a new one instead of:" >&2
	echo "$changed" >&2
	status=1
fi

old=$(mktemp -d)
trap 'rm -rf "$old"; git worktree prune' EXIT
git worktree add -q --detach "$old/tree" "$tag"
GOWORK=off "$go" build -modfile="$PWD/tools/go.mod" -o "$old/apidiff" golang.org/x/exp/cmd/apidiff

# The notes are all that the changelog says about the versions after the tag.
sed "/^## ${tag#v} /,\$d" CHANGELOG.md >"$old/notes"
for directory in . rabbit/amqpv3 outbox/pgxoutbox outbox/sqlv4; do
	[ -f "$old/tree/$directory/go.mod" ] || continue
	module=$(sed -n 's/^module //p' "$directory/go.mod")
	(cd "$old/tree/$directory" && GOWORK=off "$old/apidiff" -m -w "$old/old" "$module" 2>"$old/log") || { cat "$old/log" >&2; exit 1; }
	(cd "$directory" && GOWORK=off "$old/apidiff" -m -w "$old/new" "$module" 2>"$old/log") || { cat "$old/log" >&2; exit 1; }
	"$old/apidiff" -m -incompatible "$old/old" "$old/new" >"$old/found" 2>"$old/log" || { cat "$old/log" >&2; exit 1; }
	while read -r line; do
		name=$(printf '%s' "$line" | sed -n 's/^- \([^:]*\):.*/\1/p')
		if [ -z "$name" ] || ! grep -qwF -e "${name#./}" "$old/notes"; then
			printf '%s: %s\n' "$module" "${line#- }" >&2
			status=1
		fi
	done <"$old/found"
done
[ $status -eq 0 ] || echo "These changes since $tag are not compatible. Undo them, or name each of them in CHANGELOG.md." >&2
exit $status
