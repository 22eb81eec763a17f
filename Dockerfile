# syntax=docker/dockerfile:1
ARG RUST_VERSION=1.95.0
FROM docker.io/library/rust:${RUST_VERSION}-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin capcmi && cp target/release/capcmi /capcmi

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /capcmi /capcmi
USER 65532:65532
ENTRYPOINT ["/capcmi"]
CMD ["run"]
