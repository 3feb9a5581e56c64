#!/bin/sh
# Installs the package beside its environment: `sh install_package.sh FOLDER`. The folder, copied over the environment,
# completes it, also by the bill of materials of both (CycloneDX), sbom.cdx.json.
set -eu
folder=$1
pip install --no-deps --prefix="$folder" .
environment=$(python -c 'import sys; print(sys.prefix)')
cp -a "$folder"/. "$environment"
pip check
splitfuse --version
cyclonedx-py environment "$(command -v python)" --output-reproducible --output-format JSON \
    --output-file "$folder"/sbom.cdx.json
