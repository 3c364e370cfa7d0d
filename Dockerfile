# All programs in one small image: docker build -t refit:0.1.0 .
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    # One call each: a joint call would build shared libraries with the features of all.
    cargo build --profile ship --locked -p refit-controller \
    && cargo build --profile ship --locked -p refit-managed \
    && cargo build --profile ship --locked -p refit --no-default-features \
    && cargo build --profile dist --locked -p refit-agent \
    && mkdir /out \
    && cp target/ship/refit-controller target/ship/refit-managed target/ship/refit target/dist/refit-agent /out/

FROM gcr.io/distroless/cc-debian12:nonroot
LABEL org.opencontainers.image.title="refit" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/refit-controller /out/refit-managed /out/refit-agent /out/refit /
COPY LICENSE NOTICE /licenses/
# The agent needs root on its host; its DaemonSet overrides this user.
USER 65532:65532
ENTRYPOINT ["/refit-controller"]
