# Two images from one build:
#   docker build --target server  -t nibble-server .    nibbled and nibble without libtorch: serves and converts models,
#                                                       refuses jobs
#   docker build --target trainer -t nibble-trainer .   the same plus nibble-trainer with libtorch
# tests/deploy/image_root.py runs the steps of this file in a debootstrap root, without docker.

# A full tag; `--build-arg BASE_IMAGE=debian@sha256:...` also pins the bytes.
ARG BASE_IMAGE=debian:12.11-slim

FROM ${BASE_IMAGE} AS build
# on: build the CUDA kernels, for sm_80 and newer.
ARG NIBBLE_CUDA=off
# Shown by `nibble server info`.
ARG NIBBLE_REVISION=""
# Date in the built files; set it to the commit's date for a reproducible build.
ARG SOURCE_DATE_EPOCH=0
WORKDIR /src
# The setup depends only on these files, so a change of the sources does not repeat it.
COPY deploy/setup.sh deploy/versions.env deploy/
COPY server/text/rust/ server/text/rust/
RUN --mount=type=cache,target=/root/.cache/pip deploy/setup.sh --cuda "${NIBBLE_CUDA}"
COPY . .
RUN --mount=type=cache,target=/root/.cache/ccache \
    cmake --preset release -DNIBBLE_TESTS=OFF -DNIBBLE_CUDA="${NIBBLE_CUDA}" -DNIBBLE_COMMIT="${NIBBLE_REVISION}" \
 && cmake --build --preset release --target nibbled nibble nibble-trainer
RUN DESTDIR=/out/server cmake --install build/release --prefix /usr/local --component server --strip \
 && DESTDIR=/out/server cmake --install build/release --prefix /usr/local --component client --strip \
 && DESTDIR=/out/trainer cmake --install build/release --prefix /usr/local --component trainer --strip

FROM ${BASE_IMAGE} AS server
ARG BASE_IMAGE
ARG BASE_DIGEST=""
ARG NIBBLE_VERSION=0.1.0
ARG NIBBLE_REVISION=""
# Address of the sources; set when building a release.
ARG NIBBLE_SOURCE=""
ARG NIBBLE_CREATED=""
LABEL org.opencontainers.image.title="nibble" \
      org.opencontainers.image.description="Fine-tunes language models in low precision and serves the result" \
      org.opencontainers.image.source="${NIBBLE_SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${NIBBLE_VERSION}" \
      org.opencontainers.image.revision="${NIBBLE_REVISION}" \
      org.opencontainers.image.created="${NIBBLE_CREATED}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}"
# Libraries of nibbled and nibble. The Debian release of BASE_IMAGE determines their versions; a version here would only
# block security fixes.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      ca-certificates libabsl20220623 libdnnl2 libfmt9 libgrpc++1.51 libprometheus-cpp-core1.0 \
      libprotobuf32 libre2-9 libsoci-core4.0 libsoci-sqlite3-4.0 libspdlog1.10 libsqlite3-0 libssl3 \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o 65532 -g 65532 -m 0750 /var/lib/nibble
COPY --from=build /out/server/usr/local/ /usr/local/
USER 65532:65532
# Only this directory is written, so the root may be read-only.
VOLUME ["/var/lib/nibble"]
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
# For a plain container with the CMD below; Kubernetes uses the probes of helm/nibble.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["/usr/local/bin/nibble", "--timeout", "4", "health"]
ENTRYPOINT ["/usr/local/bin/nibbled"]
# Loopback only. To serve others, give the container an address, TLS and tokens: see README.md.
CMD ["--state_dir", "/var/lib/nibble"]

FROM server AS trainer
COPY --from=build /out/trainer/usr/local/ /usr/local/
