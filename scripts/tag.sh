#!/bin/sh
# Creates the tags of a release in this clone: of the library, and of each other module that users
# can get. A tagged module requires the tagged library, so `go get` and `go install` work. In the
# branch, the modules use the library beside them (replace).
#
#   scripts/tag.sh v0.1.0
#
# It pushes nothing. It prints the command that does, and the command that removes the tags.
set -eu
version=${1:-}
if ! printf '%s' "$version" | grep -qE '^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$'; then
	echo "usage: scripts/tag.sh v0.1.0" >&2
	exit 2
fi
cd "$(dirname "$0")/.."
go=${GO:-go}
library=github.com/watermill-once/once
modules='rabbit/amqpv3 outbox/pgxoutbox outbox/sqlv4 cmd/once'

if [ -n "$(git status --porcelain)" ]; then
	echo "the tree has changes: commit them first" >&2
	exit 1
fi
if ! grep -q "^## ${version#v} " CHANGELOG.md; then
	echo "CHANGELOG.md has no section \"## ${version#v} (date)\"" >&2
	exit 1
fi
for tag in "$version" $(for module in $modules; do echo "$module/$version"; done); do
	if git rev-parse -q --verify "refs/tags/$tag" >/dev/null; then
		echo "the tag $tag exists: a released version never changes" >&2
		exit 1
	fi
done

temp=$(mktemp -d)
trap 'rm -rf "$temp"; git worktree prune' EXIT
tree=$temp/tree
git worktree add -q --detach "$tree"
git tag "$version"

# Until the tag is pushed, go gets the library from this clone, and into a cache of its own, because
# the other cache may have an earlier try of this version. Everything else comes from the other cache.
cache=$("$go" env GOMODCACHE)
GOPROXY="file://$cache/cache/download,$("$go" env GOPROXY)"
export GOWORK=off GOPROXY GOPRIVATE=$library GOMODCACHE="$temp/cache" GOFLAGS=-modcacherw
export GIT_CONFIG_COUNT=2
export GIT_CONFIG_KEY_0="url.file://$PWD.insteadOf" GIT_CONFIG_VALUE_0="https://$library"
export GIT_CONFIG_KEY_1=safe.directory GIT_CONFIG_VALUE_1='*'
failed() {
	git tag -d "$version" >/dev/null
	echo "$1: no tag was created" >&2
	exit 1
}
for module in $modules; do
	(
		cd "$tree/$module"
		"$go" mod edit -dropreplace "$library" -require "$library@$version"
		for other in $modules; do
			if grep -q "$library/$other v" go.mod; then
				echo "$module requires the module $other, which is not tagged yet" >&2
				exit 1
			fi
		done
		"$go" mod tidy
		CGO_ENABLED=0 "$go" build -trimpath -o /dev/null ./... # as scripts/release.sh does, so that they share the cache
	) || failed "$module"
done
git -C "$tree" commit -qam "Modules of $version: they require the tagged library" || failed "commit"
tags=$version
for module in $modules; do
	git -C "$tree" tag "$module/$version"
	tags="$tags $module/$version"
done

echo "Created $tags. Push all of them at once:"
echo "  git push --atomic origin $tags"
echo "Before the push, this removes them:"
echo "  git tag -d $tags"
