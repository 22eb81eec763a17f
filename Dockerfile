# syntax=docker/dockerfile:1
# As in rust-toolchain.toml. `make pin-images` moves the digests of base images on; nothing is released without.
FROM docker.io/library/rust:1.95.0-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
# Or rustup would fetch what the toolchain file asks for besides the compiler.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /src
# All of the workspace: Cargo wants every target that a manifest names, and build scripts read more than sources.
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    # Kernels of arm64 have pages of up to 64 KiB, and the allocator takes those of the machine that builds it.
    if [ "$(uname -m)" = aarch64 ]; then export JEMALLOC_SYS_WITH_LG_PAGE=16; fi && \
    cargo build --release --locked --bin capcmi-manager && cp target/release/capcmi-manager /capcmi-manager

# The same Debian as above: the binary wants its C library, and nothing else.
FROM gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f
# By the source ghcr.io shows the image beside the repository.
LABEL org.opencontainers.image.source="https://github.com/capcmi/cluster-api-provider-cmi" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /capcmi-manager /capcmi-manager
USER 65532:65532
ENTRYPOINT ["/capcmi-manager"]
