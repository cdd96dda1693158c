//! Feeds mutated seeds to every parser: a short version of fuzzing.
//!
//! The mutations are the same on every run. `BATZEN_FUZZ_ITERATIONS` sets their number per parser.

use std::path::Path;

use batzen_protocol::fuzz_entry::ENTRIES;

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
        match random.below(7) {
            0 if at < data.len() => data[at] ^= 1 << random.below(8),
            1 => data.insert(at, random.next().to_le_bytes()[0]),
            2 => drop(data.drain(at..end)),
            3 => {
                let token = TOKENS[random.below(TOKENS.len())].as_bytes();
                data.splice(at..end.min(at + token.len()), token.iter().copied());
            }
            4 => {
                let piece = data[at..end].to_vec();
                let to = random.below(data.len() + 1);
                data.splice(to..to, piece);
            }
            5 => {
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

#[test]
fn fuzz_smoke() {
    let iterations =
        std::env::var("BATZEN_FUZZ_ITERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(15_000);
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
    for (name, entry) in ENTRIES {
        let directory = corpus.join(name);
        let listing =
            std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
        let mut paths: Vec<_> = listing.map(|file| file.expect("a file").path()).collect();
        paths.sort();
        let mut seeds: Vec<_> = paths.iter().map(|path| std::fs::read(path).expect("a seed")).collect();
        assert!(!seeds.is_empty(), "no seeds for {name}");
        seeds.push(Vec::new());
        for seed in &seeds {
            entry(seed);
        }
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for _ in 0..iterations {
            let data = mutate(&mut random, &seeds);
            if let Err(panic) = std::panic::catch_unwind(|| entry(&data)) {
                eprintln!("{name} failed on {}", String::from_utf8_lossy(&data));
                std::panic::resume_unwind(panic);
            }
        }
    }
}
