#!/bin/sh
# What the image gets of an environment: `sh finish_venv.sh /opt/venv` removes what no server reads, and writes the
# bill of materials (CycloneDX) of what is left into it.
set -eu
venv=$1
cd "$venv"/lib/python3*/site-packages
# Of torch 2.13: 83 MB of tests, 62 of headers, 50 of programs. Our kernels are compiled without its headers, and
# torch_shm_manager is the one program that it starts itself.
rm -rf torch/test torch/include torch/share
find torch/bin -type f ! -name torch_shm_manager -delete
# The image installs nothing at run time.
rm -rf pip pip-*.dist-info "$venv"/bin/pip*

python3 -m venv /tmp/sbom
/tmp/sbom/bin/pip install --quiet "cyclonedx-bom>=7,<8"
/tmp/sbom/bin/cyclonedx-py environment "$venv/bin/python" --output-reproducible --output-format JSON \
    --output-file "$venv/sbom.cdx.json"
rm -rf /tmp/sbom
