#!/bin/sh
# Removes what no server reads of torch 2.13: 83 MB of tests, 62 of headers, 50 of programs.
set -eu
cd "$(python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"/torch
# Our kernels are compiled without its headers, and torch_shm_manager is the one program that it starts itself.
rm -rf test include share
find bin -type f ! -name torch_shm_manager -delete
