#!/bin/sh
# Makes a base image where no registry of images answers: `sh tests/docker/debian_base.sh NAME`, as root, then
# `make image BASE=NAME`. A stand-in for python:3.11-slim: Debian 12 with its own Python 3.11, by debootstrap and buildah.
# It has this machine's sources and certificates of packages and pip's configuration, so it is for tests alone. Folders
# that pip.conf names, of wheels say, are given by `make image … ARGS="--volume FOLDER:FOLDER:ro"`.
set -eu
name=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
sources=/etc/apt/sources.list.d/debian.sources
debootstrap --variant=minbase --include=ca-certificates,python-is-python3,python3-venv bookworm "$root" \
    "$(sed -n 's/^URIs: //p' $sources | head -n 1)"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/archives/*.deb "$root"/etc/apt/sources.list
cp $sources "$root"/etc/apt/sources.list.d/
cp /etc/ssl/certs/ca-certificates.crt "$root"/etc/ssl/certs/
[ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$root"/etc/
[ ! -f ~/.config/pip/pip.conf ] || install -D -m 644 ~/.config/pip/pip.conf "$root"/root/.config/pip/pip.conf
container=$(buildah from scratch)
buildah add --quiet "$container" "$root" /
buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
buildah commit --quiet --rm "$container" "$name"
