# syntax=docker/dockerfile:1
# As in rust-toolchain.toml. `make pin-images` gives base images their digests, without which nothing is released.
FROM docker.io/library/rust:1.95.0-bookworm AS build
# Or rustup would fetch what the toolchain file asks for besides the compiler.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /src
# All of the workspace: Cargo wants every target that a manifest names, and build scripts read more than sources.
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    # Kernels of arm64 have pages of up to 64 KiB, and the allocator takes those of the machine that builds it.
    if [ "$(uname -m)" = aarch64 ]; then export JEMALLOC_SYS_WITH_LG_PAGE=16; fi && \
    cargo build --release --locked --bin capcmi && cp target/release/capcmi /capcmi

# The same Debian as above: the binary wants its C library, and nothing else.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /capcmi /capcmi
USER 65532:65532
ENTRYPOINT ["/capcmi"]
CMD ["run"]
