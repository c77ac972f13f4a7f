#!/bin/sh
# Says whether the go.mod or go.sum of a module is not tidy, and whether the
# workspace, and so the tests, build the library with other versions than its
# go.mod gives to its users. Changes nothing: `make tidy` puts both right.
# Where the examples need a newer version, raise it in the library's go.mod: they
# take no part in the sync of make tidy.
#
# Takes the directories of the modules.
set -eu
cd "$(dirname "$0")/.."
go=${GO:-go}
status=0

for module in "$@"; do
	echo "go mod tidy -diff ($module)"
	(cd "$module" && GOWORK=off "$go" mod tidy -diff) || status=1
done

versions() {
	list=$("$go" list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}' ./...) || exit
	printf '%s\n' "$list" | sort -u
}

echo "versions in go.mod and in go.work"
own=$(GOWORK=off versions)
workspace=$(versions)
if [ "$own" != "$workspace" ]; then
	echo "the workspace builds other versions than go.mod says:"
	printf '%s\n' "$workspace" | grep -vxF "$own" || true
	status=1
fi

[ $status -eq 0 ] || echo "run make tidy" >&2
exit $status
