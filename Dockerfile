# All programs in one small image: docker build -t refit:0.1.0 .
FROM rust:1.95-bookworm AS build
ARG TARGETARCH
WORKDIR /src
# The agent runs with the C library of hosts that are older than this image: docs/agent.md.
COPY tools/zig/requirements.txt /zig/
RUN apt-get update && apt-get install --yes --no-install-recommends python3-pip \
    && python3 -m pip install --no-deps --require-hashes --only-binary :all: -r /zig/requirements.txt --target /zig
ENV PATH=/zig/bin:$PATH CARGO_ZIGBUILD_ZIG_PATH=/zig/ziglang/zig
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target,id=target-$TARGETARCH \
    # One call each: a joint call would build shared libraries with the features of all.
    cargo build --profile ship --locked -p refit-controller \
    && cargo build --profile ship --locked -p refit-managed \
    && cargo build --profile ship --locked -p refit --no-default-features \
    && cargo zigbuild --target "$(uname -m)-unknown-linux-gnu.2.28" --profile dist --locked -p refit-agent \
    && mkdir /out \
    && cp target/ship/refit-controller target/ship/refit-managed target/ship/refit \
        "target/$(uname -m)-unknown-linux-gnu/dist/refit-agent" /out/

FROM gcr.io/distroless/cc-debian12:nonroot
LABEL org.opencontainers.image.title="refit" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/refit-controller /out/refit-managed /out/refit-agent /out/refit /
COPY LICENSE NOTICE /licenses/
# The agent needs root on its host; its DaemonSet overrides this user.
USER 65532:65532
ENTRYPOINT ["/refit-controller"]
