//! Fuzzing on the stable compiler, in short: the seeds of every fuzz target and mutations of them.
//!
//! The mutations are the same on every run. `BATZEN_FUZZ_ITERATIONS` sets their number per target.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

/// The name of a target's corpus, its entry, and the number of mutations.
type Target = (&'static str, fn(&[u8]), u64);

/// The targets, except those of the protocol, which `batzen_protocol::fuzz_entry::ENTRIES` lists.
const TARGETS: &[Target] = &[
    ("config", config, 15_000),
    ("eddsa_paths", batzen_crypto::fuzz_entry::eddsa_paths, 400),
    ("feed_messages", batzen_feed::fuzz_entry::messages, 15_000),
    ("http_messages", batzen_http::codec::fuzz_entry::frame, 10_000),
    ("ledger_frames", batzen_ledger_service::net::fuzz_entry::frames, 20_000),
    ("liabilities", batzen_protocol::liabilities::fuzz_entry::documents, 2_000),
    ("signer_frames", batzen_signer::fuzz_entry::frames, 15_000),
    ("store_loader", batzen_store::embedded::fuzz_entry::load, 3_000),
];

/// Mutations of each target of the protocol.
const PROTOCOL_MUTATIONS: u64 = 15_000;

fn config(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = batzen_config::Config::parse(text);
    }
}

/// Pseudo-random numbers, the same on every run (xorshift*, Vigna 2016).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).expect("below a size")
    }
}

/// Tokens with a meaning for the parsers.
const TOKENS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "null",
    "true",
    "-1",
    "0",
    "1.5",
    "1e9",
    "18446744073709551616",
    "never",
    "forever",
    "\\u0000",
    "\\ud800",
    "EUR:",
    ".",
    "%",
    "%zz",
    "/",
    "//",
    "?",
    "&",
    "=",
    "RSA",
    "CS",
    "\u{0}",
    "ü",
    "$forgettable",
];

fn mutate(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut data = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(data.len() + 1);
        let end = at + random.below(data.len() - at + 1).min(64);
        match random.below(8) {
            0 | 1 if at < data.len() => data[at] ^= 1 << random.below(8),
            2 => data.insert(at, random.next().to_le_bytes()[0]),
            3 => drop(data.drain(at..end)),
            4 => {
                let token = TOKENS[random.below(TOKENS.len())].as_bytes();
                data.splice(at..end.min(at + token.len()), token.iter().copied());
            }
            5 => {
                let piece = data[at..end].to_vec();
                let to = random.below(data.len() + 1);
                data.splice(to..to, piece);
            }
            6 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                data.truncate(at);
                data.extend_from_slice(&other[from..]);
            }
            _ => data.truncate(at),
        }
    }
    data
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus")
}

fn smoke((name, entry, mutations): Target) {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(corpus().join(name))
        .unwrap_or_else(|error| panic!("the corpus of {name}: {error}"))
        .map(|file| file.unwrap().path())
        .collect();
    paths.sort();
    let mut seeds: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(!seeds.is_empty(), "no seeds for {name}");
    seeds.push(Vec::new());
    let iterations =
        std::env::var("BATZEN_FUZZ_ITERATIONS").map_or(mutations, |text| text.parse().expect("a number"));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mutated = (0..iterations).map(|_| mutate(&mut random, &seeds)).collect::<Vec<_>>();
    for data in seeds.iter().chain(&mutated) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| entry(data))) {
            eprintln!("{name} failed on {}", data.escape_ascii());
            resume_unwind(panic);
        }
    }
}

#[test]
fn mutated_seeds_break_no_target() {
    let protocol = batzen_protocol::fuzz_entry::ENTRIES;
    let protocol = protocol.iter().map(|(name, entry)| (*name, *entry as fn(&[u8]), PROTOCOL_MUTATIONS));
    let targets: Vec<Target> = TARGETS.iter().copied().chain(protocol).collect();
    let listed: BTreeSet<String> = targets.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let there: BTreeSet<String> = std::fs::read_dir(corpus())
        .unwrap()
        .map(|directory| directory.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(listed, there, "every corpus has a target here");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for part in targets.chunks(targets.len().div_ceil(threads)) {
            scope.spawn(move || part.iter().copied().for_each(smoke));
        }
    });
}
