#!/bin/sh
# Installs what the tests need beside Go and is missing: PostgreSQL's server
# and RabbitMQ, and pgbouncer where that is easy. What is installed counts,
# whether it runs or not; nothing is done, and nothing is asked of the network,
# when all are there.
set -eu

say() { echo "deps: $*"; }

# look takes a binary's name and where packages put it if not in PATH, and
# prints its path.
look() {
	command -v "$1" && return
	shift
	for path in "$@"; do
		if [ -x "$path" ]; then
			echo "$path"
			return
		fi
	done
	return 1
}

find_postgres() {
	look postgres /usr/lib/postgresql/*/bin/postgres /usr/pgsql-*/bin/postgres \
		/opt/homebrew/opt/postgresql*/bin/postgres /usr/local/opt/postgresql*/bin/postgres
}

find_rabbitmq() {
	look rabbitmq-server /usr/lib/rabbitmq/bin/rabbitmq-server \
		/opt/homebrew/opt/rabbitmq/sbin/rabbitmq-server /usr/local/opt/rabbitmq/sbin/rabbitmq-server
}

find_pgbouncer() {
	look pgbouncer /usr/sbin/pgbouncer
}

find_faketime() {
	for path in /usr/lib/*/faketime/libfaketime.so.1; do # a library: not executable
		if [ -e "$path" ]; then
			echo "$path"
			return
		fi
	done
	return 1
}

# need takes the function that looks for a server, and the packages that bring
# it, of Debian and of Homebrew. It adds to the packages that are missing.
apt=
brew=
need() {
	if path=$("$1"); then
		say "found $path"
	else
		apt="$apt $2"
		brew="$brew $3"
	fi
}

# as_root runs a command as root, or fails if that takes a password.
as_root() {
	if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

can_be_root() { as_root true 2>/dev/null; }

# give_up says what to do by hand. It is no failure if servers can be had
# without: the tests that kill their own are skipped then.
give_up() {
	say "$*" >&2
	if [ -n "${PG_DSN:-}" ] && [ -n "${AMQP_URL:-}" ]; then
		say "going on with the servers of PG_DSN and AMQP_URL" >&2
	elif docker version >/dev/null 2>&1; then
		say "going on with the containers of compose.yaml" >&2
	else
		say "or name servers that run by PG_DSN and AMQP_URL, or start docker" >&2
		exit 1
	fi
	exit 0
}

need find_postgres postgresql postgresql@17
need find_rabbitmq rabbitmq-server rabbitmq
# A few tests put a pooler in front of PostgreSQL, or its clock wrong. They are
# skipped where that is not easily had.
if command -v apt-get >/dev/null && can_be_root; then
	need find_pgbouncer pgbouncer pgbouncer
	need find_faketime libfaketime libfaketime
fi
[ -n "$apt" ] || exit 0

# shellcheck disable=SC2086 # lists of words
if command -v apt-get >/dev/null; then
	can_be_root || give_up "missing; as root: apt-get install$apt"
	say "apt-get install$apt"
	as_root apt-get --quiet update || say "going on with the old lists of packages" >&2
	as_root env DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes install --no-install-recommends $apt
elif command -v brew >/dev/null; then
	say "brew install$brew"
	brew install $brew
else
	give_up "missing; install what Debian calls$apt, so that postgres, initdb and rabbitmq-server are found"
fi

# What the packages brought has to be where we, and the tests, look.
say "found $(find_postgres)"
say "found $(find_rabbitmq)"
