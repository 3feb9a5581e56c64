# syntax=docker/dockerfile:1
#
#   docker build -t splitfuse .                        the CPU image (the last stage)
#   docker build -t splitfuse:cuda --target cuda .     for NVIDIA GPUs; the driver comes from the container runtime
#   docker build -t splitfuse:native --target native . a CPU image that compiles its kernels at the first start
#   docker run --rm -p 127.0.0.1:8000:8000 -v splitfuse-cache:/cache splitfuse
#
# The demo model is part of the package; other models are named as the last argument of `docker run … serve MODEL`.

# any image with this Python, its venv and apt; .github/workflows/release.yml resolves the tag to a digest
ARG BASE=python:3.11-slim

# The CPU kernels for each class of processors. On the machine that builds, if need be by a cross compiler: an emulated
# compiler takes hours.
FROM --platform=$BUILDPLATFORM ${BASE} AS kernels
ARG TARGETARCH
WORKDIR /src
RUN case "$TARGETARCH" in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; *) machine=$(uname -m) ;; esac \
    && if [ "$machine" = "$(uname -m)" ]; then compiler=g++; else compiler=g++-$(echo "$machine" | tr _ -)-linux-gnu; fi \
    && apt-get update \
    && apt-get install --yes --no-install-recommends "$compiler" \
    && echo "$machine" > machine
# Only what is compiled and what compiles: a change elsewhere keeps the libraries, minutes of processor time.
COPY docker/kernel_libraries.py docker/
COPY kernels/cpu/compilation.py kernels/cpu/compiler_group.py kernels/cpu/prebuilt.py kernels/cpu/
COPY kernels/cpu/csrc/ kernels/cpu/csrc/
RUN python docker/kernel_libraries.py /prebuilt --machine "$(cat machine)"

# pip and the writer of the bill of materials are not in the image's environment, /opt/venv.
FROM ${BASE} AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv --without-pip /opt/venv && python -m venv /opt/tools && /opt/tools/bin/pip install "cyclonedx-bom>=7,<8"
ENV PIP_PYTHON=/opt/venv/bin/python \
    PATH=/opt/venv/bin:/opt/tools/bin:$PATH
COPY constraints.txt docker/requirements.txt docker/trim_torch.sh ./

FROM build AS packages-cpu
# torch first and alone: the largest package, and the only one that comes from another index (empty: from pip's own)
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps ${TORCH_INDEX_URL:+--index-url "${TORCH_INDEX_URL}"} -c constraints.txt torch && sh trim_torch.sh
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --require-hashes -r requirements.txt

FROM build AS packages-cuda
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install -c constraints.txt torch triton && sh trim_torch.sh
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --require-hashes -r requirements.txt

# The package alone in /opt/package, so that it is a layer of its own: another version of it is a download of some MB.
FROM packages-cpu AS build-cpu
COPY __init__.py py.typed pyproject.toml README.md LICENSE docker/install_package.sh ./
COPY client/ client/
COPY engine/ engine/
COPY kernels/ kernels/
COPY --from=kernels /prebuilt/ kernels/cpu/prebuilt/
COPY server/ server/
RUN --mount=type=cache,target=/root/.cache/pip \
    sh install_package.sh /opt/package

FROM packages-cuda AS build-cuda
COPY __init__.py py.typed pyproject.toml README.md LICENSE docker/install_package.sh ./
COPY client/ client/
COPY engine/ engine/
COPY kernels/ kernels/
COPY server/ server/
RUN --mount=type=cache,target=/root/.cache/pip \
    sh install_package.sh /opt/package

FROM ${BASE} AS runtime
ARG BASE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="splitfuse" \
      org.opencontainers.image.description="LLM inference server: Dynamic SplitFuse over a paged KV cache" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN useradd --uid 10001 --user-group --home-dir /cache --no-create-home --shell /usr/sbin/nologin splitfuse \
    && install --directory --owner=10001 --group=10001 --mode=0755 /cache \
    && install --directory --owner=10001 --group=10001 --mode=0700 /results
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/cache \
    HF_HOME=/cache/huggingface \
    TRITON_CACHE_DIR=/cache/triton \
    XDG_CACHE_HOME=/cache/xdg \
    SPLITFUSE_HOST=0.0.0.0
WORKDIR /cache
VOLUME /cache /results
EXPOSE 8000
USER 10001:10001
STOPSIGNAL SIGTERM
# no curl in slim images; and no proxy between a container and itself
HEALTHCHECK --interval=15s --timeout=5s --start-period=300s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:' + os.environ.get('SPLITFUSE_PORT', '8000') + '/health', timeout=4)"]
ENTRYPOINT ["splitfuse"]
CMD ["serve"]

# What is compiled at run time goes to /cache.
FROM runtime AS compiler
USER root
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
USER 10001:10001

# Triton compiles a launcher for each kernel.
FROM compiler AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=packages-cuda /opt/venv /opt/venv
COPY --from=build-cuda /opt/package /opt/venv

# The kernels for the very processor (-march=native), built at the first start.
FROM compiler AS native
ENV SPLITFUSE_NATIVE=build
COPY --from=packages-cpu /opt/venv /opt/venv
COPY --from=build-cpu /opt/package /opt/venv

FROM runtime AS cpu
COPY --from=packages-cpu /opt/venv /opt/venv
COPY --from=build-cpu /opt/package /opt/venv
