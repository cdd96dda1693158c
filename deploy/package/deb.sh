#!/usr/bin/env bash
# Builds a Debian package from a binary: deploy/package/deb.sh BINARY OUT_DIR
#
# The package has the program and the laboratory's, which is beside it (without debug information, which is in a separate package), man pages, completions, the systemd
# units, a user for each service, and sample configurations. It starts no service: the operator edits the configurations and
# enables the units of the services that this machine runs.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
binary=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
version=$("$binary" --version | head -1 | awk '{ print $2 }')
arch=$(dpkg --print-architecture)
# Files have the date of the commit, so that builds are reproducible.
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH=$epoch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/batzen
debug=$work/batzen-dbgsym

mkdir -p "$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/vendor-completions" \
	"$root/usr/share/fish/vendor_completions.d"
for name in batzen batzen-lab; do
	program=$(dirname "$binary")/$name
	install -Dm755 "$program" "$root/usr/bin/$name"
	build_id=$(readelf -n "$program" | awk '/Build ID/ { print $3 }')
	symbols=usr/lib/debug/.build-id/${build_id:0:2}/${build_id:2}.debug
	mkdir -p "$debug/$(dirname "$symbols")"
	objcopy --only-keep-debug --compress-debug-sections "$program" "$debug/$symbols"
	strip --strip-all "$root/usr/bin/$name"
	"$program" man --out "$root/usr/share/man/man1"
	"$program" completions bash >"$root/usr/share/bash-completion/completions/$name"
	"$program" completions zsh >"$root/usr/share/zsh/vendor-completions/_$name"
	"$program" completions fish >"$root/usr/share/fish/vendor_completions.d/$name.fish"
done
gzip -9n "$root"/usr/share/man/man1/*.1

for name in $(sed -n 's/^    ("\(taler-[a-z-]*\)".*/\1/p' "$here/crates/batzen/src/names.rs"); do
	ln -s batzen "$root/usr/bin/$name"
done
mkdir -p "$root/etc/batzen" "$root/usr/share/taler"
for service in auditor bank exchange ledger merchant signer switch; do
	"$binary" "$service" sample-config --system >"$root/etc/batzen/$service.conf"
done
cp -r "$here/deploy/config.d" "$root/usr/share/taler/config.d"
for unit in "$here"/deploy/systemd/*.service; do
	install -d "$root/usr/lib/systemd/system"
	sed 's#/usr/local/bin/#/usr/bin/#; /^DynamicUser=/d' "$unit" >"$root/usr/lib/systemd/system/$(basename "$unit")"
done
cp "$here/deploy/systemd/secmod.conf" "$root/etc/batzen/"
install -d "$root/usr/lib/sysusers.d"
for service in auditor bank exchange ledger merchant signer switch secmod-rsa secmod-cs secmod-eddsa; do
	echo "u batzen-$service - \"Batzen $service\" /var/lib/batzen-$service"
done >"$root/usr/lib/sysusers.d/batzen.conf"
docs=$root/usr/share/doc/batzen
mkdir -p "$docs" "$debug/usr/share/doc"
cp "$here/README.md" "$here/CHANGELOG.md" "$here"/docs/*.md "$docs/"
cp -r "$here/deploy/prometheus" "$here/deploy/grafana" "$here/deploy/nginx" "$here/lab/topologies" "$docs/"
for file in batzen.cdx.json third-party-licences.txt; do
	if [ -f "$out/$file" ]; then
		cp "$out/$file" "$docs/"
	else
		echo "the package has no $file: make sbom" >&2
	fi
done
cat "$here/LICENSE-MIT" "$here/LICENSE-APACHE" >"$docs/copyright"
ln -s batzen "$debug/usr/share/doc/batzen-dbgsym"

mkdir -p "$root/DEBIAN" "$debug/DEBIAN"
(cd "$root" && find etc -type f | sed 's#^#/#') >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/postinst" <<'SCRIPT'
#!/bin/sh
set -e
if [ "$1" = configure ]; then
	systemd-sysusers batzen.conf
	# These hold the operators' tokens and the addresses of keys, so only their service may read them.
	for service in auditor bank exchange ledger merchant signer switch; do
		chown "root:batzen-$service" "/etc/batzen/$service.conf"
		chmod 640 "/etc/batzen/$service.conf"
	done
	if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
fi
SCRIPT
cat >"$root/DEBIAN/prerm" <<'SCRIPT'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
	systemctl stop 'batzen-*.service' || true
fi
SCRIPT
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
libc=$(objdump -T "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1 | sed 's/GLIBC_//')
control() {
	cat <<CONTROL
Package: $1
Version: $version
Architecture: $arch
Maintainer: Batzen maintainers <maintainers@batzen.example>
Section: $2
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$3" | cut -f1)
Depends: $4
Description: $5
CONTROL
}
control batzen net "$root" "libc6 (>= $libc), libgcc-s1, systemd" "digital cash: exchange, bank, ledger, switch, wallet
 Batzen is a digital-cash stack with the protocol of GNU Taler 0.9: blind-signed coins on a two-phase,
 double-entry ledger. Services start after their configuration in /etc/batzen is edited and their unit
 is enabled." >"$root/DEBIAN/control"
control batzen-dbgsym debug "$debug" "batzen (= $version)" "debug information of batzen" >"$debug/DEBIAN/control"

find "$work" -exec touch --no-dereference --date="@$epoch" {} +
for package in "$root" "$debug"; do
	dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$package" "$out/$(basename "$package")_${version}_$arch.deb" >&2
done
ls -l "$out"/batzen*_"${version}_$arch.deb" >&2
