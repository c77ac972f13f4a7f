#!/bin/sh
# Checks that go.work.sum is complete, because otherwise go doc changes it in every clean clone. Checks
# that the go.mod and go.sum of each module are tidy. Also checks that the workspace, which the tests
# use, builds the library with the versions in the library's go.mod, because users get these versions:
# `make tidy` repairs both. If the examples need a newer version, raise it in the library's go.mod:
# `make tidy` does not sync the examples.
#
# Arguments: the directories of the modules.
set -eu
cd "$(dirname "$0")/.."
go=${GO:-go}
status=0

# go doc lists all modules, and needs more sums than go build and go list ./... do.
echo "go list -m all leaves go.work.sum as it is"
before=$(mktemp)
cp go.work.sum "$before"
"$go" list -m all >/dev/null
if ! diff "$before" go.work.sum; then
	rm "$before"
	echo "go.work.sum was incomplete, and now has the lines above: commit it" >&2
	exit 1
fi
rm "$before"

for module in "$@"; do
	echo "go mod tidy -diff ($module)"
	(cd "$module" && GOWORK=off "$go" mod tidy -diff) || status=1
done

# Users do not build the packages that only tests and commands import.
versions() {
	packages=$("$go" list ./... | grep -vE '/internal/test(/|$)')
	list=$("$go" list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}' $packages) || exit
	printf '%s\n' "$list" | sort -u
}

echo "compare versions in go.mod and in go.work"
own=$(GOWORK=off versions)
workspace=$(versions)
if [ "$own" != "$workspace" ]; then
	echo "the workspace builds other versions than go.mod says:"
	printf '%s\n' "$workspace" | grep -vxF "$own" || true
	status=1
fi

[ $status -eq 0 ] || echo "run make tidy" >&2
exit $status
