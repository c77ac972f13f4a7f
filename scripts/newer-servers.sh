#!/usr/bin/env bash
# Unpacks newer servers for the tests, and installs nothing: RabbitMQ 4.3 and PostgreSQL 18 of Debian
# sid, RabbitMQ 4.0 and PostgreSQL 17 of Debian trixie.
#
#   scripts/newer-servers.sh [VERSION]...     for example 18 4.3; without a version, all of them
#
# Servers that are unpacked already are not fetched again. Needs Debian, because the packages come from
# the mirror of this machine.
set -euo pipefail

say() { echo "newer-servers: $*" >&2; }

# internal/test/servers looks here too. PostgreSQL does not run as root, and the user that it runs as
# cannot enter root's home.
if [ -n "${XDG_CACHE_HOME:-}" ]; then
	cache=$XDG_CACHE_HOME
elif [ "$(id -u)" -eq 0 ]; then
	cache=/var/cache
else
	cache=$HOME/.cache
fi
cache=$cache/watermill-once/servers

# The libraries of the packages. Debian's amd64 is x86_64-linux-gnu.
lib=usr/lib/$(uname -m)-linux-gnu

# The servers run without these packages.
skip='^(libllvm|libz3|perl|libperl|python|libpython|locales|libc-l10n|systemd$|libsystemd-shared|passwd|dpkg|procps)'

# use_apt_of makes apt use a suite of the machine's mirror, as if no package were installed. So
# apt also returns the packages that this machine has, down to the C library.
use_apt_of() {
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/$') || {
		say "the package sources of this machine name no Debian mirror; install newer servers yourself, and set PG_DSN and AMQP_URL"
		return 1
	}
	mkdir -p "$work"/{state/lists/partial,archives/partial,none}
	: >"$work/status"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main" >"$work/sources.list"
	cat >"$work/apt.conf" <<-END
		Dir::State "$work/state";
		Dir::State::status "$work/status";
		Dir::Cache "$work";
		Dir::Etc::sourcelist "$work/sources.list";
		Dir::Etc::sourceparts "$work/none";
		Dir::Etc::preferences "$work/none/preferences";
		Dir::Etc::preferencesparts "$work/none";
		Acquire::Languages "none";
		Acquire::Retries "3";
		APT::Sandbox::User "root";
	END
	export APT_CONFIG=$work/apt.conf
	apt-get update -qq
}

# unpack SUITE PACKAGE... unpacks the packages of a suite, with everything that they need, into one
# directory. The file .done says that the directory is complete, and that its programs run.
unpack() {
	suite=$1
	root=$cache/$suite
	shift
	mkdir -p "$cache"
	exec 9>"$cache/lock"
	flock 9 # only one process unpacks
	[ ! -e "$root/.done" ] || return 0
	say "fetching $* of Debian $suite"
	work=$cache/fetch
	rm -rf "$root" "$work" # of a process that was interrupted
	trap 'rm -rf "$work"' EXIT
	mkdir -p "$root" "$work"
	use_apt_of "$suite"
	mapfile -t packages < <(apt-get install -s --no-install-recommends patchelf "$@" | awk '/^Inst/ { print $2 }' | grep -vE "$skip")
	(cd "$work/archives" && apt-get download -qq "${packages[@]}")
	for package in "$work"/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
	use_own_libraries
	"$root"/usr/lib/postgresql/*/bin/postgres --version >/dev/null
	"$root/usr/lib/erlang/bin/erl" -noinput -eval 'halt().'
	chmod 755 "$root"
	touch "$root/.done"
	say "unpacked ${#packages[@]} packages into $root"
}

# use_own_libraries makes the executables below $root use the loader and the libraries below $root.
# Each of them gets a DT_RPATH, because this also applies to the libraries that it loads later.
use_own_libraries() {
	loader=$(ls "$root/$lib"/ld-linux-*.so.*)
	patchelf() { "$loader" --library-path "$root/$lib" "$root/usr/bin/patchelf" "$@"; }
	find "$root/usr/lib/erlang" "$root/usr/lib/postgresql" -type f -perm -100 -print0 |
		while IFS= read -r -d '' file; do
			! patchelf --print-interpreter "$file" >/dev/null 2>&1 || # not a program, but a script or a library
				patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$root/$lib" "$file"
		done
	sed -i "s|ROOTDIR=.*/usr/lib/erlang\"*$|ROOTDIR=\"$root/usr/lib/erlang\"|" "$root/usr/lib/erlang/bin/erl"
	rm -f "$root"/usr/lib/postgresql/*/lib/llvmjit.so # without libllvm, PostgreSQL compiles no queries
}

[ $# -gt 0 ] || set -- 18 17
for version; do
	case $version in
	18 | 4.3) suite=sid packages="rabbitmq-server postgresql-18" ;;
	17 | 4.0) suite=trixie packages="rabbitmq-server postgresql-17" ;;
	*) continue ;; # must be installed
	esac
	if ! command -v apt-get >/dev/null || ! command -v flock >/dev/null; then
		say "this machine is not Debian; install newer servers yourself, and set PG_DSN and AMQP_URL"
		exit 1
	fi
	(unpack "$suite" $packages) # in a process of its own, for its trap and its APT_CONFIG
	if ! compgen -G "$cache/$suite/usr/lib/postgresql/$version" >/dev/null &&
		! compgen -G "$cache/$suite/usr/lib/rabbitmq/lib/rabbitmq_server-$version.*" >/dev/null; then
		say "$cache/$suite does not contain version $version: delete it, or change the version of Debian in this script"
		exit 1
	fi
done
