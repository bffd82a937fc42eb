# Each target works as the first command in a fresh clone: missing programs are installed.
.PHONY: demo test matrix bench lint audit fuzz arm bare build dist dist-test new-user clean help

# Test programs run under scripts/bounded, which ends those that hang. The path is absolute, because
# Cargo starts them in the directory of their package. (If there is no Rust toolchain yet, Debian's
# will be installed, hence the default for `host`.)
host := $(shell (rustc -vV 2>/dev/null || echo host: $$(uname -m)-unknown-linux-gnu) | sed -n 's/^host: //p' | tr a-z- A-Z_)
test matrix: export CARGO_TARGET_$(host)_RUNNER := $(CURDIR)/scripts/bounded

help:             ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'

demo:             ## four programs over a lossy link, without and with gateways
	@scripts/need run
	@[ -e target/release/viaduct ] || echo "building: some minutes the first time"
	@cargo run --release --locked --quiet --bin viaduct -- demo

build:            ## target/release/viaduct, and beside it the preload library
	@scripts/need build
	cargo build --release --locked -p viaduct -p viaduct-preload

# Clippy runs as the compiler: a separate run before the build would take three minutes more.
test: export RUSTC_WORKSPACE_WRAPPER := $(CURDIR)/scripts/test-rustc
test: export RUSTFLAGS := -D warnings
test:             ## lints, unit and property tests, end-to-end tests in namespaces
	@scripts/need test
	cargo fmt --all --check
	scripts/prose
	scripts/docs
	# All packages in one build: the features of a dependency depend on which packages are built.
	cargo build --workspace --all-targets --profile checked --locked
	# The memory of the dashboard's page is watched for ten minutes, beside the other tests, after the
	# tests of the page's delays.
	@(sleep 60; exec env --default-signal=INT \
		cargo test --workspace --profile checked --locked --test dash -- --ignored) & \
	heap=$$!; scripts/awake cargo test --workspace --profile checked --locked --no-fail-fast; \
	code=$$?; wait $$heap && exit $$code

matrix:           ## real programs under `viaduct run`, quick forms of slow experiments
	@scripts/need matrix
	cargo build -p viaduct-preload --profile checked --locked
	cargo test -p viaduct --profile checked --locked --test experiments -- --ignored

lint:             ## formatting, lints, documents, licences of dependencies
	@scripts/need lint
	cargo fmt --all --check
	scripts/prose
	scripts/docs
	cargo clippy --workspace --all-targets --profile checked --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --profile checked --locked
	cargo deny check licenses bans sources
	cd fuzz && RUSTFLAGS="--cfg fuzzing" cargo check --locked

audit:            ## known vulnerabilities of dependencies, from a download of RustSec's list
	@scripts/need lint
	cargo deny check advisories

bench:            ## absolute speed of the protocol cores, compared with memcpy
	@scripts/need run
	cargo bench --locked -p viaduct-proto --bench fec --bench plane
	@cargo run --locked --quiet --release -p viaduct-proto --example bounds

fuzz:             ## every parser of network data, for FUZZ_SECONDS each (default 60)
	@scripts/need fuzz
	scripts/fuzz $${FUZZ_SECONDS:-60}

# All of them, also those of the SIMD kernels: ten minutes of CPU time.
arm:              ## unit tests of the protocol cores on aarch64, in an emulator
	@scripts/need arm
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
	cargo test -p viaduct-proto --lib --target aarch64-unknown-linux-gnu --profile checked --locked

bare:             ## `make demo` first in a fresh Debian 12 with only make and git (root, half an hour)
	scripts/bare make demo

dist:             ## packages, tarballs and images of x86_64 and aarch64, in target/packages (ARCHES)
	@scripts/need dist
	scripts/dist

dist-test:        ## the packages: every format, lintian, units, install, two gateways, purge (root)
	@scripts/need disttest
	scripts/dist-test

new-user:         ## the README's commands on two fresh Debian machines, until the plots move (root)
	@scripts/need newuser
	scripts/new-user

clean:
	cargo clean
