# A site's gateway in a container. The gateway works on the network of the machine, and must be
# started like this:
#
#   docker run --network host --cap-drop ALL --cap-add NET_ADMIN --cap-add NET_RAW \
#     --security-opt systempaths=unconfined --device /dev/net/tun \
#     -v /etc/viaduct:/etc/viaduct:ro -v /run/viaduct:/run/viaduct \
#     -v viaduct-state:/var/lib/viaduct \
#     viaduct gateway -c /etc/viaduct/site.toml
#
# /run/viaduct holds the journal of changes. Keep it, so that after a kill -9 the next start can
# revert the changes. The volume keeps the clocks of handshakes, so that handshakes recorded before
# a restart are rejected after it.
# The settings of the gateway's TUN device are below /proc/sys/net, which docker mounts read-only
# unless systempaths are unconfined. docs/packages.md compares the images.

FROM rust:1-slim-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends build-essential pkg-config \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin viaduct --no-default-features

FROM debian:12-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends nftables \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/target/release/viaduct /usr/bin/viaduct
# For the clocks of handshakes, which a volume keeps.
ENV STATE_DIRECTORY=/var/lib/viaduct
RUN mkdir -p /var/lib/viaduct
# On SIGTERM the gateway reverts its changes to the machine.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/viaduct"]
CMD ["--help"]
