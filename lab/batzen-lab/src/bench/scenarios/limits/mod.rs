//! `batzen-lab bench limits`: what one core of this machine can do. Implementations are compared within the same
//! run.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use batzen_cli_support::numbers::{milliseconds, number};
use batzen_crypto::{EddsaPrivateKey, HashCode, Path as Implementation, base32, hash};
use batzen_protocol::api::exchange::DepositRequest;
use batzen_protocol::api::parse_body;
use serde::{Deserialize, Serialize};

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::affinity::{self, Cores};
use crate::bench::load::meter::{self, Effort, Rival};
use crate::bench::results::machine::Machine;
use crate::bench::results::output;
use crate::bench::results::result::{self, LIMITS_FILE, ResultError};
use crate::bench::results::words::line;
use crate::bench::scenarios::ceiling::{Cipher, Material, Share, Step, steps_of};

mod disk;
mod http;

pub(crate) use disk::{StoreLimit, SyncLimit};
pub(crate) use http::HttpLimit;

/// Version of the format of [`Limits`].
pub(crate) const SCHEMA: u32 = 1;
/// Arguments of `batzen-lab bench limits`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  batzen-lab bench limits\n  batzen-lab bench limits --json --directory /var/lib/batzen\n  BATZEN_NO_IFMA=1 batzen-lab bench limits --quick      without eight lanes"
)]
pub struct LimitsArgs {
    /// The core to measure on [default: the first]
    #[arg(long, value_name = "CORE")]
    core: Option<usize>,
    /// The disk to measure: a directory on it
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Measure for a shorter time
    #[arg(long)]
    quick: bool,
    /// Also write limits.json into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The speed of one implementation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Speed {
    /// CPU time per item, µs.
    pub(crate) us: f64,
    /// Items per second on one core.
    pub(crate) per_s: f64,
}

impl Speed {
    fn of(us: f64) -> Self {
        Self { us, per_s: 1e6 / us }
    }
}

/// One measured item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Limit {
    /// Its group: `RSA-2048`, `Ed25519`, `text`.
    pub(crate) group: String,
    /// The measured operation.
    pub(crate) name: String,
    /// Done by a library, one item after another.
    pub(crate) library: Speed,
    /// Done eight items at a time; `None` if there is no such implementation or the processor lacks the
    /// instructions.
    pub(crate) lanes: Option<Speed>,
    /// `lanes.per_s` ÷ `library.per_s`.
    pub(crate) ratio: Option<f64>,
}

/// The resulting speed of an exchange operation on one core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Derived {
    pub(crate) operation: String,
    /// Operations per request.
    pub(crate) per_request: f64,
    /// Operations per second if only the required cryptography is computed, with the library.
    pub(crate) cryptography_library_per_s: f64,
    /// The same in lanes.
    pub(crate) cryptography_lanes_per_s: Option<f64>,
    /// Operations per second including HTTP, JSON and the journal, with the best implementation.
    pub(crate) whole_per_s: f64,
}

/// The ceilings of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// [`SCHEMA`].
    pub(crate) schema: u32,
    /// Where it was measured.
    pub(crate) machine: Machine,
    pub(crate) core: usize,
    /// Version of Batzen.
    pub(crate) version: String,
    /// The commit it was built from, or `unknown`.
    #[serde(default = "unknown")]
    pub(crate) commit: String,
    /// The time of the measurement, RFC 3339 in UTC.
    pub(crate) started: String,
    /// Cryptography, hashes, text.
    pub(crate) limits: Vec<Limit>,
    /// Requests over the loopback interface.
    pub(crate) http: HttpLimit,
    /// Commits of the embedded store.
    pub(crate) store: Vec<StoreLimit>,
    /// Making written bytes durable.
    pub(crate) sync: Vec<SyncLimit>,
    /// The resulting speeds of operations.
    pub(crate) derived: Vec<Derived>,
    /// Remarks for judging the figures.
    #[serde(default)]
    pub(crate) remarks: Vec<String>,
}

fn unknown() -> String {
    "unknown".to_owned()
}

impl Limits {
    /// Reads `limits.json` of a directory.
    pub(crate) fn read(directory: &std::path::Path) -> Result<Self, ResultError> {
        result::read_json(&directory.join(LIMITS_FILE), u64::from(SCHEMA))
    }
}

/// Rows that an operation writes on average: the changed row of the reserve or the coin, and the row of the
/// event.
const ROWS_PER_OPERATION: f64 = 2.0;

/// Runs `batzen-lab bench limits` for a program built from `commit`.
///
/// # Errors
/// When the core may not be used, the disk cannot be written, or the output directory already contains a
/// result.
pub fn run(args: &LimitsArgs, commit: &str) -> Result<ExitCode> {
    let limits = Limits { commit: commit.to_owned(), ..measure(args)? };
    let json = output::json(&limits);
    if let Some(directory) = &args.out {
        output::replace_file(&directory.join(LIMITS_FILE), &json)?;
    }
    output::print(&if args.json { json } else { table(&limits) })?;
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &LimitsArgs) -> Result<Limits> {
    let allowed = affinity::allowed();
    let core = args.core.or_else(|| allowed.first().copied()).unwrap_or(0);
    if !allowed.contains(&core) {
        let all = Cores(allowed);
        return Err(BenchError::Usage(format!("--core: core {core} cannot be used here, only {all}")));
    }
    // Checked now rather than after minutes of measuring.
    args.out.as_deref().map_or(Ok(()), result::claim_directory)?;
    let other = allowed.iter().copied().find(|other| *other != core);
    let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
    affinity::on_cores(&[core], || measure_here(args, core, other, effort))?
}

fn measure_here(args: &LimitsArgs, core: usize, other: Option<usize>, effort: Effort) -> Result<Limits> {
    let started = result::utc_now();
    let mut remarks = Vec::new();
    if cfg!(debug_assertions) {
        remarks.push("A debug build: only the cryptography is as fast as it should be.".to_owned());
    }
    if other.is_none() {
        remarks.push("One core only: the HTTP client runs beside the server.".to_owned());
    }
    if Implementation::fastest() == Implementation::Library {
        remarks.push("No AVX-512 IFMA: everything runs by libraries, one after the other.".to_owned());
    }
    let mut limits = Vec::new();
    let mut sheets = Vec::new();
    for cipher in [Cipher::Rsa(1024), Cipher::Rsa(2048), Cipher::Rsa(3072), Cipher::Cs] {
        progress(&cipher.to_string());
        let sheet = Sheet::measure(cipher, effort)?;
        limits.extend(sheet.limits(limits.is_empty()));
        sheets.push(sheet);
    }
    progress("text");
    let json_us = text(effort, &mut limits);
    progress("HTTP");
    let http = http::measure(core, other, args.quick)?;
    progress("store");
    let store = disk::commits(&args.directory, args.quick)?;
    progress("disk");
    let sync = disk::syncs(&args.directory, args.quick)?;
    let store_us = store.first().map_or(0.0, |limit| limit.cpu_us_per_row) * ROWS_PER_OPERATION;
    let derived = derive(&sheets, http.cpu_us_per_request + json_us, store_us);
    Ok(Limits {
        schema: SCHEMA,
        machine: Machine::detect(),
        core,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: unknown(),
        started,
        limits,
        http,
        store,
        sync,
        derived,
        remarks,
    })
}

/// Shows on a terminal what is being measured.
fn progress(what: &str) {
    use std::io::IsTerminal as _;
    if std::io::stderr().is_terminal() {
        eprint!("\r\u{1b}[Kmeasuring {what}…");
        if what == "disk" {
            eprint!("\r\u{1b}[K");
        }
    }
}

/// The times of one cipher's steps with both implementations, µs.
struct Sheet {
    cipher: Cipher,
    steps: Vec<(Step, f64, Option<f64>)>,
    /// Ed25519 verification of the batch by one equation.
    one_equation_us: f64,
}

/// The row that compares the lanes with it.
const ONE_EQUATION: &str = "Ed25519 verify, by one equation for 64";

impl Sheet {
    fn measure(cipher: Cipher, effort: Effort) -> Result<Self> {
        let material =
            Material::new(cipher).map_err(|error| BenchError::Usage(format!("{cipher}: {error}")))?;
        let steps: Vec<Step> = Step::ALL.into_iter().filter(|step| step.exists(cipher)).collect();
        let has_lanes =
            |step: Step| step.has_lanes(cipher) && Implementation::fastest() == Implementation::Lanes;
        let mut rivals: Vec<Rival<'_>> = Vec::new();
        for step in &steps {
            rivals.push(material.rival(*step, Implementation::Library));
            if has_lanes(*step) {
                rivals.push(material.rival(*step, Implementation::Lanes));
            }
        }
        rivals.push(material.one_equation());
        let mut times = meter::best_us(effort, &mut rivals).into_iter();
        let mut next = || times.next().expect("a time for each rival");
        let steps = steps.into_iter().map(|step| (step, next(), has_lanes(step).then(&mut next))).collect();
        Ok(Self { cipher, steps, one_equation_us: next() })
    }

    /// The rows of the table; steps that all ciphers share appear only once.
    fn limits(&self, with_common: bool) -> Vec<Limit> {
        let group = |step: Step| match step {
            Step::EddsaVerify | Step::EddsaSign => "Ed25519".to_owned(),
            Step::KeyExchange => "X25519".to_owned(),
            _ => self.cipher.to_string(),
        };
        let row = |step: Step, name: String, library: f64, lanes: Option<f64>| Limit {
            group: group(step),
            name,
            library: Speed::of(library),
            lanes: lanes.map(Speed::of),
            ratio: lanes.map(|lanes| library / lanes),
        };
        let mut rows = Vec::new();
        for &(step, library, lanes) in &self.steps {
            if with_common || group(step) == self.cipher.to_string() {
                rows.push(row(step, step.name(self.cipher), library, lanes));
            }
            if with_common && step == Step::EddsaVerify {
                rows.push(row(step, ONE_EQUATION.into(), self.one_equation_us, lanes));
            }
        }
        rows
    }

    /// CPU time of one operation, µs; if `in_lanes`, in lanes where a step supports them.
    fn us(&self, share: Share, in_lanes: bool) -> f64 {
        let time = |step: Step| {
            self.steps
                .iter()
                .find(|(of, ..)| *of == step)
                .map_or(0.0, |(_, library, lanes)| lanes.filter(|_| in_lanes).unwrap_or(*library))
        };
        steps_of(self.cipher, &[share]).iter().map(|(step, times)| times * time(*step)).sum()
    }
}

fn derive(sheets: &[Sheet], request_us: f64, store_us: f64) -> Vec<Derived> {
    let mut derived = Vec::new();
    for sheet in sheets {
        for (name, share, per_request, rows) in [
            ("withdraw", "withdraw", 1.0, 1.0),
            ("batch-withdraw", "withdraw", 8.0, 1.0),
            ("deposit", "deposit", 1.0, 1.0),
            ("batch-deposit", "deposit", 8.0, 1.0),
            ("refresh to 3 coins", "refresh/3", 0.5, 2.0),
        ] {
            let share: Share = share.parse().expect("a share");
            let has_lanes = sheet.steps.iter().any(|(.., lanes)| lanes.is_some());
            // Clause Schnorr needs a separate request for R values.
            let requests = 1.0 / per_request
                * if sheet.cipher == Cipher::Cs && name != "deposit" && name != "batch-deposit" {
                    2.0
                } else {
                    1.0
                };
            let whole_us = sheet.us(share, true) + requests * request_us + rows * store_us;
            derived.push(Derived {
                operation: format!("{name} {}", sheet.cipher),
                per_request,
                cryptography_library_per_s: 1e6 / sheet.us(share, false),
                cryptography_lanes_per_s: has_lanes.then(|| 1e6 / sheet.us(share, true)),
                whole_per_s: 1e6 / whole_us,
            });
        }
    }
    derived
}

/// The beginning of the name of the limit that [`json_us`] measures.
pub(crate) const JSON: &str = "JSON: read a deposit";

/// The time to parse the body of a deposit, µs.
pub(crate) fn json_us(effort: Effort) -> f64 {
    text(effort, &mut Vec::new())
}

/// Measures hashes, base32 and JSON. Returns the time to parse the body of a deposit, µs.
fn text(effort: Effort, limits: &mut Vec<Limit>) -> f64 {
    use std::hint::black_box;
    let binary = [0xa5_u8; 64];
    let encoded = base32::encode(&binary);
    let body = deposit_body();
    let read = parse_body::<DepositRequest>(&body);
    assert!(read.is_ok(), "the example is one: {read:?}");
    let names = [
        "SHA-512 of 200 bytes".to_owned(),
        "base32 encode, 64 bytes".to_owned(),
        "base32 decode, 64 bytes".to_owned(),
        format!("{JSON}, {} bytes", body.len()),
    ];
    let mut rivals = [
        Rival::new(1, || {
            black_box(hash::sha512(black_box(&[7; 200])));
        }),
        Rival::new(1, || drop(black_box(base32::encode(black_box(&binary))))),
        Rival::new(1, || drop(black_box(base32::decode(black_box(&encoded))))),
        Rival::new(1, || drop(black_box(parse_body::<DepositRequest>(black_box(&body))))),
    ];
    let times = meter::best_us(effort, &mut rivals);
    for (name, us) in names.into_iter().zip(&times) {
        let group = "text and hashes".to_owned();
        limits.push(Limit { group, name, library: Speed::of(*us), lanes: None, ratio: None });
    }
    times.last().copied().unwrap_or(0.0)
}

/// The body of a deposit as wallets send it, with an RSA-2048 coin.
fn deposit_body() -> Vec<u8> {
    let key = EddsaPrivateKey::generate();
    let random = |bytes: usize| {
        let mut data = vec![0; bytes];
        batzen_crypto::fill_random(&mut data);
        base32::encode(&data)
    };
    let body = serde_json::json!({
        "merchant_payto_uri": "payto://x-taler-bank/bank.example.com/merchant-17?receiver-name=Merchant",
        "wire_salt": random(16),
        "contribution": "KUDOS:8.13",
        "denom_pub_hash": HashCode::random(),
        "ub_sig": { "cipher": "RSA", "rsa_signature": random(256) },
        "merchant_pub": key.public_key(),
        "h_contract_terms": HashCode::random(),
        "coin_sig": key.sign(b"coin"),
        "timestamp": { "t_s": 1_763_728_365 },
        "refund_deadline": { "t_s": 1_763_728_365 },
        "wire_transfer_deadline": { "t_s": 1_763_814_765 },
    });
    body.to_string().into_bytes()
}

fn table(limits: &Limits) -> String {
    const WIDTHS: [usize; 4] = [12; 4];
    const STEP_WIDTHS: [usize; 3] = [12, 12, 7];
    let machine = &limits.machine;
    let mut text = format!("{}, {}, core {}\n\n", machine.model, machine.flags.join(" "), limits.core);
    let name = |name: &str| format!("{name:<34}");
    let optional = |value: Option<f64>| value.map_or_else(String::new, number);
    line(&mut text, &name("a second on one core"), &STEP_WIDTHS, ["library", "lanes", "ratio"]);
    for limit in &limits.limits {
        let lanes = optional(limit.lanes.as_ref().map(|speed| speed.per_s));
        let figures = [number(limit.library.per_s), lanes, optional(limit.ratio)];
        line(&mut text, &name(&limit.name), &STEP_WIDTHS, figures);
    }
    let http = &limits.http;
    let _ = writeln!(
        text,
        "{:<34} {:>12}   ({} µs of server CPU; {} + {} bytes, {} connections)",
        "HTTP requests, empty handler",
        number(http.per_s),
        number(http.cpu_us_per_request),
        http.request_bytes,
        http.response_bytes,
        http.connections
    );
    text.push('\n');
    line(&mut text, &name("store"), &WIDTHS, ["rows/s", "CPU µs/row", "p50 ms", "p99 ms"]);
    for store in &limits.store {
        let figures = [
            number(store.rows_per_s),
            number(store.cpu_us_per_row),
            milliseconds(store.commit_p50_us),
            milliseconds(store.commit_p99_us),
        ];
        line(&mut text, &name(&format!("{} rows a commit", store.rows_per_commit)), &WIDTHS, figures);
    }
    for sync in &limits.sync {
        let figures = [String::new(), String::new(), milliseconds(sync.p50_us), milliseconds(sync.p99_us)];
        line(&mut text, &name(&format!("write and sync {} kB", sync.bytes / 1024)), &WIDTHS, figures);
    }
    text.push('\n');
    let head = ["library", "lanes", "all included"];
    line(&mut text, &name("cryptography alone, a second"), &WIDTHS, head);
    for derived in &limits.derived {
        let figures = [
            number(derived.cryptography_library_per_s),
            optional(derived.cryptography_lanes_per_s),
            number(derived.whole_per_s),
        ];
        line(&mut text, &name(&derived.operation), &WIDTHS, figures);
    }
    for remark in &limits.remarks {
        let _ = writeln!(text, "\n{remark}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_measured_and_comes_back_from_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let args = LimitsArgs {
            core: None,
            directory: directory.path().to_owned(),
            quick: true,
            out: None,
            json: false,
        };
        let tiny = Effort { rounds: 1, turn: std::time::Duration::from_millis(1) };
        let core = affinity::allowed()[0];
        let limits = affinity::on_cores(&[core], || measure_here(&args, core, None, tiny)).unwrap().unwrap();
        std::fs::write(directory.path().join(LIMITS_FILE), output::json(&limits)).unwrap();
        let read = Limits::read(directory.path()).unwrap();
        assert_eq!(read.limits.len(), limits.limits.len());
        assert_eq!((read.commit, limits.commit.as_str()), ("unknown".to_owned(), "unknown"));
        assert!(limits.limits.iter().all(|limit| limit.library.us > 0.0 && limit.library.us < 1e6));
        let names: Vec<&str> = limits.limits.iter().map(|limit| limit.name.as_str()).collect();
        for name in [
            "Ed25519 verify",
            ONE_EQUATION,
            "RSA-1024 blind sign",
            "RSA-3072 verify",
            "CS R values",
            "SHA-512 of 200 bytes",
        ] {
            assert_eq!(names.iter().filter(|other| **other == name).count(), 1, "{name} in {names:?}");
        }
        let rows: Vec<usize> = limits.store.iter().map(|store| store.rows_per_commit).collect();
        assert_eq!(rows, [1_000, 100]);
        assert!(
            limits.store.iter().all(|store| store.rows_per_s > 0.0 && store.journal_bytes_per_row > 200.0)
        );
        let mean_us = |store: &StoreLimit| store.rows_per_commit as f64 * 1e6 / store.rows_per_s;
        assert!(
            limits.store.iter().all(|store| store.commit_p99_us > mean_us(store) / 2.0),
            "{:?}",
            limits.store
        );
        assert!(limits.http.per_s > 0.0 && limits.http.requests > 0);
        assert!(limits.sync.iter().all(|sync| sync.p50_us <= sync.p99_us));
        let text = table(&limits);
        assert!(text.contains("withdraw RSA-2048") && text.contains("write and sync 256 kB"), "{text}");
    }

    #[test]
    fn ceilings_follow_from_the_parts() {
        let sheet = Sheet {
            cipher: Cipher::Rsa(2048),
            steps: vec![(Step::EddsaVerify, 20.0, Some(10.0)), (Step::BlindSign, 180.0, Some(70.0))],
            one_equation_us: 15.0,
        };
        let rows: Vec<_> = sheet.limits(true).into_iter().map(|limit| (limit.name, limit.ratio)).collect();
        let expected = [("Ed25519 verify", 2.0), (ONE_EQUATION, 1.5), ("RSA-2048 blind sign", 180.0 / 70.0)];
        assert_eq!(rows, expected.map(|(name, ratio)| (name.to_owned(), Some(ratio))));
        assert_eq!(sheet.limits(false).len(), 1);
        let derived = derive(&[sheet], 16.0, 4.0);
        let [withdraw, batch, ..] = &derived[..] else { panic!("two withdrawals first") };
        assert!((withdraw.cryptography_library_per_s - 5_000.0).abs() < 1e-6);
        assert!((withdraw.cryptography_lanes_per_s.unwrap() - 12_500.0).abs() < 1e-6);
        assert!((withdraw.whole_per_s - 10_000.0).abs() < 1e-6);
        assert!((batch.whole_per_s - 1e6 / 86.0).abs() < 1e-6);
    }

    #[test]
    fn a_core_that_is_not_there_is_refused() {
        let args =
            LimitsArgs { core: Some(9_999), directory: ".".into(), quick: true, out: None, json: false };
        assert!(measure(&args).unwrap_err().to_string().contains("core 9999 cannot be used here"));
    }
}
