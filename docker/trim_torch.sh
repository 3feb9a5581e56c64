#!/bin/sh
# Removes what no server reads of torch 2.13: 83 MB of tests, 62 of headers, 50 of programs. Of these, files that pip
# has recorded: no other program's.
set -eu
cd "$(python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"
# Our kernels are compiled without its headers, and torch_shm_manager is the one program that it starts itself.
sed -nE 's#^(torch/(test|include|share|bin)/[^,"]+),.*#\1#p' torch-*.dist-info/RECORD |
    grep -v '^torch/bin/torch_shm_manager$' | xargs -d '\n' rm -f
find torch/test torch/include torch/share torch/bin -type d -empty -delete
