# Each target works as the first command in a fresh clone: it installs what is missing.
.PHONY: demo test matrix bench lint audit fuzz arm bare build clean help

# Test programs run under this: it ends those that hang. Cargo looks for it from each package's directory.
# (Where there is no toolchain yet, Debian's is installed.)
host := $(shell (rustc -vV 2>/dev/null || echo host: $$(uname -m)-unknown-linux-gnu) | sed -n 's/^host: //p' | tr a-z- A-Z_)
test matrix: export CARGO_TARGET_$(host)_RUNNER := $(CURDIR)/scripts/bounded

help:             ## what can be made
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*##/\t/'

demo:             ## two sites, a bad link, four ways across, one table
	@scripts/need run
	@[ -e target/release/viaduct ] || echo "building: some minutes the first time"
	@cargo run --release --locked --quiet --bin viaduct -- demo

build:            ## target/release/viaduct, and beside it the library that it puts into programs
	@scripts/need build
	cargo build --release --locked -p viaduct -p viaduct-preload

# Clippy checks what it compiles: to check first and compile then would take three minutes more.
test: export RUSTC_WORKSPACE_WRAPPER := clippy-driver
test: export RUSTFLAGS := -D warnings
test:             ## lints, unit and property tests, end-to-end tests in namespaces
	@scripts/need test
	cargo fmt --all --check
	scripts/prose
	scripts/docs
	# All at once: what a package is built with depends on who else asks for it.
	cargo build --workspace --all-targets --profile checked --locked
	scripts/awake cargo test --workspace --profile checked --locked --no-fail-fast

matrix:           ## real programs under `viaduct run`, and TESLA's figures in their quick form
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

audit:            ## known vulnerabilities of dependencies, from RustSec's list, which it downloads
	@scripts/need lint
	cargo deny check advisories

bench:            ## absolute figures of the cores, with memcpy measured beside them
	@scripts/need run
	cargo bench --locked -p viaduct-proto --bench fec --bench plane
	@cargo run --locked --quiet --release -p viaduct-proto --example bounds

fuzz:             ## every parser that reads the network, FUZZ_SECONDS each (default 60)
	@scripts/need fuzz
	scripts/fuzz $${FUZZ_SECONDS:-60}

arm:              ## the codes' tests on aarch64, whose vectors are others, by an emulator of its processors
	@scripts/need arm
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
	cargo test -p viaduct-proto --lib --target aarch64-unknown-linux-gnu --profile checked --locked -- fec::

bare:             ## `make demo` as the first command in a fresh Debian 12 with make and git alone (root, half an hour)
	scripts/bare make demo

clean:
	cargo clean
