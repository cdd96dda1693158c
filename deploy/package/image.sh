#!/usr/bin/env bash
# Builds an OCI image from a binary, without a daemon: deploy/package/image.sh BINARY OUT_DIR
#
# The image has one layer: the program without debug information, the C library that it needs, root certificates and an
# unprivileged user. There is no shell. The result is an OCI layout directory and a tar archive of it, which podman, skopeo and
# docker can load.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
binary=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
version=$("$binary" --version | head -1 | awk '{ print $2 }')
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || date +%s)}
created=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root

install -Dm755 "$binary" "$root/usr/bin/batzen"
strip --strip-all "$root/usr/bin/batzen"
# Libraries go where the loader looks for them, the loader itself where the program names it.
ldd "$binary" | awk '$3 ~ /^\// { print $3 } $1 ~ /^\/lib/ { print $1 }' | while read -r library; do
	install -Dm755 "$(realpath "$library")" "$root$library"
done
[ ! -f /etc/ssl/certs/ca-certificates.crt ] ||
	install -Dm644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
mkdir -p "$root/etc" "$root/data" "$root/tmp"
echo 'batzen:x:65532:65532:Batzen:/data:/usr/bin/batzen' >"$root/etc/passwd"
echo 'batzen:x:65532:' >"$root/etc/group"
chmod 1777 "$root/tmp"
cp "$here/LICENSE-MIT" "$here/LICENSE-APACHE" "$root/"

layout=$out/batzen-image
rm -rf "$layout"
mkdir -p "$layout/blobs/sha256"
tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -C "$root" --exclude=./data -cf "$work/layer.tar" .
# The data directory belongs to the service's user.
tar --mtime="@$epoch" --owner=65532 --group=65532 --numeric-owner -C "$root" -rf "$work/layer.tar" ./data
diff_id=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
gzip -9n "$work/layer.tar"

# Adds a file to the layout; prints its digest and size.
blob() {
	local digest
	digest=$(sha256sum "$1" | cut -d' ' -f1)
	cp "$1" "$layout/blobs/sha256/$digest"
	echo "\"digest\": \"sha256:$digest\", \"size\": $(stat -c %s "$1")"
}
layer=$(blob "$work/layer.tar.gz")
case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) arch=$(uname -m) ;; esac
cat >"$work/config.json" <<JSON
{"architecture": "$arch", "os": "linux", "created": "$created",
 "config": {"User": "65532:65532", "Entrypoint": ["/usr/bin/batzen"], "Cmd": ["--help"], "WorkingDir": "/data",
  "Env": ["PATH=/usr/bin", "HOME=/data", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"], "Volumes": {"/data": {}},
  "Labels": {"org.opencontainers.image.title": "batzen", "org.opencontainers.image.version": "$version",
   "org.opencontainers.image.licenses": "Apache-2.0 OR MIT"}},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$diff_id"]},
 "history": [{"created": "$created", "created_by": "deploy/package/image.sh"}]}
JSON
config=$(blob "$work/config.json")
cat >"$work/manifest.json" <<JSON
{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
 "config": {"mediaType": "application/vnd.oci.image.config.v1+json", $config},
 "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", $layer}]}
JSON
manifest=$(blob "$work/manifest.json")
echo '{"imageLayoutVersion": "1.0.0"}' >"$layout/oci-layout"
cat >"$layout/index.json" <<JSON
{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
 "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json", $manifest,
  "annotations": {"org.opencontainers.image.ref.name": "batzen:$version"}}]}
JSON
tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -C "$layout" -cf "$out/batzen-image.tar" .
ls -l "$out/batzen-image.tar" >&2
