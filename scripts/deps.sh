#!/bin/sh
# Installs missing servers and tools for the tests: PostgreSQL, RabbitMQ and, where the installation
# is easy, pgbouncer, libfaketime, promtool and chromium. The servers need not be running. If all
# are installed, the script does nothing and does not use the network.
set -eu

say() { echo "deps: $*"; }

# look prints the path of a binary. Its arguments are the name of the binary, and
# paths to try if it is not in PATH.
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
	for path in /usr/lib/*/faketime/libfaketime.so.1; do # a library, so not executable
		if [ -e "$path" ]; then
			echo "$path"
			return
		fi
	done
	return 1
}

# The tests look here for the promtool of Debian's package prometheus.
promtool_dir=${XDG_CACHE_HOME:-${HOME:-/nowhere}/.cache}/watermill-once/prometheus

# unpack_promtool unpacks the package, because its installation would start a server.
unpack_promtool() {
	if path=$(look promtool "$promtool_dir/usr/bin/promtool"); then
		say "found $path"
		return
	fi
	temp=$(mktemp -d)
	if (cd "$temp" && apt-get --quiet download prometheus && dpkg-deb -x prometheus_*.deb unpacked) >/dev/null 2>&1 &&
		mkdir -p "$promtool_dir" && cp -R "$temp/unpacked/." "$promtool_dir"; then
		rm -f "$promtool_dir/usr/bin/prometheus" # 50 MB
		say "unpacked $promtool_dir/usr/bin/promtool"
	else
		say "no promtool: the tests of the alerts are left out" >&2
	fi
	rm -rf "$temp"
}

# install_chromium installs the browser that the tests of the console use. It is not among
# the packages of the servers, because some distributions have it only as a snap.
install_chromium() {
	if path=$(look chromium "$(command -v chromium-browser)" "$(command -v google-chrome)"); then
		say "found $path"
		return
	fi
	install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes install --no-install-recommends chromium; }
	if { install || { as_root apt-get --quiet update && install; }; } >/dev/null 2>&1; then
		say "installed $(command -v chromium)"
	else
		say "no chromium: the tests of the console in a browser are left out" >&2
	fi
}

# need adds a server's packages to the missing packages if the server is not found.
# Its arguments are the function that finds the server, and the names of the
# packages of Debian and of Homebrew.
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

# as_root runs a command as root. It fails if sudo requires a password.
as_root() {
	if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

can_be_root() { as_root true 2>/dev/null; }

# give_up prints what to do by hand. It exits successfully if the tests can use
# other servers; tests that start private servers are skipped then.
give_up() {
	say "$*" >&2
	if [ -n "${PG_DSN:-}" ] && [ -n "${AMQP_URL:-}" ]; then
		say "using the servers of PG_DSN and AMQP_URL" >&2
	elif docker version >/dev/null 2>&1; then
		say "using the containers of deploy/compose.yaml" >&2
	else
		say "or set PG_DSN and AMQP_URL to running servers, or start docker" >&2
		exit 1
	fi
	exit 0
}

need find_postgres postgresql postgresql@17
need find_rabbitmq rabbitmq-server rabbitmq
# A few tests need a pooler in front of PostgreSQL, a server with a wrong clock, or a browser. These
# tests are skipped if the installation is not easy.
if command -v apt-get >/dev/null && can_be_root; then
	need find_pgbouncer pgbouncer pgbouncer
	need find_faketime libfaketime libfaketime
	unpack_promtool
	install_chromium
fi
[ -n "$apt" ] || exit 0

# shellcheck disable=SC2086 # the variables are lists of words
if command -v apt-get >/dev/null; then
	can_be_root || give_up "packages are missing; run as root: apt-get install$apt"
	say "apt-get install$apt"
	as_root apt-get --quiet update || say "cannot update the package lists, using the old ones" >&2
	as_root env DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes install --no-install-recommends $apt
elif command -v brew >/dev/null; then
	say "brew install$brew"
	brew install $brew
else
	give_up "packages are missing; install$apt (Debian's names), so that postgres, initdb and rabbitmq-server are found"
fi

# This script and the tests must find the installed servers.
say "found $(find_postgres)"
say "found $(find_rabbitmq)"
